package model

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTheModelImportsNothingItJudges: nothing of the house but itself; the validator also the format of what it reads.
func TestTheModelImportsNothingItJudges(t *testing.T) {
	const house = "github.com/sluicekv/sluice/"
	allowed := map[string][]string{
		".":        {"internal/handoff/model/check"},
		"check":    {},
		"validate": {"internal/handoff/model", "internal/handoff/trace", "internal/attempt", "internal/guard"},
	}
	for dir, may := range allowed {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, im := range parsed.Imports {
				path, _ := strconv.Unquote(im.Path.Value)
				of, ours := strings.CutPrefix(path, house)
				ok := !ours
				for _, m := range may {
					ok = ok || of == m
				}
				if !ok {
					t.Errorf("%s imports %s", f, path)
				}
			}
		}
	}
}
