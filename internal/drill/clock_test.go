package drill

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wallClock are the methods and functions through which a time loses its monotonic reading, or gets none.
var wallClock = map[string]bool{"Unix": true, "UnixNano": true, "UnixMilli": true, "UnixMicro": true, "Date": true, "Truncate": true, "Round": true, "UTC": true,
	"Local": true, "In": true, "Parse": true}

// where may say why a use decides nothing.
var where = map[string]string{
	"transport/tcp/handshake.go Unix": "a deadline that is long past, to end a read at once",
	"keyring/identity.go Date":        "a certificate's dates, which hold under any clock",
	"fleet/session.go Round":          "of a duration, for a message",
	"worker/reason.go Round":          "of a duration, for a message",
}

// TestNoDecisionReadsTheWallClock: the packages that make a handoff compare times that Go's monotonic clock made, so a wall clock that jumps
// changes nothing that they do.
func TestNoDecisionReadsTheWallClock(t *testing.T) {
	seen := map[string]bool{}
	for _, dir := range []string{"handoff", "page", "pool", "mac", "wire", "admission", "capacity", "keyring", "transport/tcp", "engine", "worker", "fleet", "gateway/upstream/native", "gateway/legs"} {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files (%v)", dir, len(files), err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, src, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(src), `"time"`) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				s, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !wallClock[s.Sel.Name] {
					return true
				}
				use := dir + "/" + filepath.Base(path) + " " + s.Sel.Name
				seen[use] = true
				if where[use] == "" {
					t.Errorf("%s: %s loses the monotonic clock; say in this test why that decides nothing, or use time.Since", set.Position(n.Pos()), s.Sel.Name)
				}
				return true
			})
		}
	}
	for use := range where {
		if !seen[use] {
			t.Errorf("%s is not used there any more", use)
		}
	}
}
