package source

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
)

// expected is what stands beside a fixture. A null is a fact that is not in the lines: nothing may be guessed.
type expected struct {
	Engine  *string `json:"engine"`
	Version *string `json:"version"`
	Role    *string `json:"role"`
	Pool    *int    `json:"pool_tokens"`
	Context *int    `json:"context"`
	Page    *int    `json:"page_size"`
	DType   *string `json:"kv_dtype"`
	Verdict string  `json:"verdict"`
}

// notInTheLines are expected facts that the recorder knew from elsewhere (the text), which no reader of the file
// can find.
var notInTheLines = map[string]string{
	"r05-2026-01-swa-two-pools":           "page_size",
	"r07-2026-05-pd-prefill-swa-cap":      "role",
	"v04-2025-09-refuses-to-start":        "kv_dtype",
	"v05-2025-09-fp8-ok":                  "kv_dtype",
	"v07-2026-07-log-contradicts-metrics": "version page_size kv_dtype",
}

// roots are where fixtures lie: the ones that are ours, and the shared ones when they are there.
func roots(t *testing.T) []string {
	rs := []string{"../testdata/fixtures"}
	if shared := "../../../../shared/fixtures"; exists(shared) {
		rs = append(rs, shared)
	}
	return rs
}

func exists(p string) bool { _, err := os.Stat(p); return err == nil }

func TestEveryFixtureGivesItsExpectedFacts(t *testing.T) {
	for _, root := range roots(t) {
		count := 0
		for _, dir := range []string{"sglang/rendered", "sglang/real", "vllm-logs"} {
			want, err := filepath.Glob(filepath.Join(root, dir, "*.json"))
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				base := strings.TrimSuffix(w, ".json")
				if strings.HasSuffix(base, ".body") {
					continue
				}
				var files []string
				for _, ext := range []string{".log", ".metrics", ".body.json"} {
					if exists(base + ext) {
						files = append(files, base+ext)
					}
				}
				count++
				t.Run(filepath.Base(base), func(t *testing.T) { compareFixture(t, w, base, files) })
			}
		}
		if count < 50 && strings.Contains(root, "shared") || count == 0 {
			t.Errorf("%s: %d fixtures", root, count)
		}
	}
}

func compareFixture(t *testing.T, want, base string, files []string) {
	b, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	var e expected
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	inv, err := Read(context.Background(), files, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Problems) > 0 || len(inv.Nodes) != 1 {
		t.Fatalf("%d nodes, problems %v", len(inv.Nodes), inv.Problems)
	}
	n := inv.Nodes[0]
	skip := notInTheLines[filepath.Base(base)]
	text := func(name string, k facts.Key, want *string) {
		got := n.Text(k)
		switch {
		case strings.Contains(skip, name):
		case want == nil || *want == "null":
			if got != "" && got != "both" {
				t.Errorf("%s = %q at %s, but it is not in the lines", name, got, n.At(k))
			}
		case !facts.Same(k, got, *want):
			t.Errorf("%s = %q, want %q", name, got, *want)
		}
	}
	num := func(name string, k facts.Key, want *int) {
		got := n.Int(k)
		switch {
		case strings.Contains(skip, name):
		case want == nil && got != 0:
			t.Errorf("%s = %d at %s, but it is not in the lines", name, got, n.At(k))
		case want != nil && got != *want:
			t.Errorf("%s = %d, want %d", name, got, *want)
		}
	}
	text("engine", facts.Engine, e.Engine)
	text("version", facts.Version, e.Version)
	text("role", facts.Role, e.Role)
	num("pool_tokens", facts.Pool, e.Pool)
	num("context", facts.Context, e.Context)
	num("page_size", facts.PageSize, e.Page)
	text("kv_dtype", facts.KVDType, e.DType)

	f := n.Capacity(0)
	l := capacity.Node(f)
	verdict := "ok"
	switch {
	case n.Text(facts.Refused) == "true":
		verdict = "refused_to_start"
	case f.Context == 0:
		verdict = "unknown_context"
	case f.PoolTokens < f.Context:
		verdict = "pool_below_context"
	case l.Pool:
		verdict = "edge_no_reserve"
	}
	if verdict != e.Verdict {
		t.Errorf("verdict %s, want %s (%+v)", verdict, e.Verdict, l)
	}
	for _, fact := range n.Facts {
		if fact.At.Name == "" {
			t.Errorf("%s=%s has no source", fact.Key, fact.Value)
		}
	}
}

// Folders of real engines' answers, logs and metrics: what each node says of itself, from all of its files together.
func TestFoldersOfRealEngines(t *testing.T) {
	for _, root := range roots(t) {
		for dir, want := range map[string][]string{
			"sglang/bodies/0.5.19": {"D 0.5.19 sglang decode pool 8192 context 8192 page 16", "P 0.5.19 sglang prefill pool 1024 context 8192 page 16"},
			"sglang/bodies/0.5.23": {"D 0.5.23 sglang decode pool 8192 context 8192 page 16", "P  sglang prefill pool 1024 context 8192 page 16"},
			"vllm/http":            {"http 0.32.0 vllm both pool 699008 context 8192 page 128"},
			"vllm/metrics":         {"pd.decode  vllm  pool 32768 context 8192 page 32", "pd.prefill  vllm  pool 32768 context 8192 page 32", "single  vllm  pool 699008 context 8192 page 128"},
			"vllm/logs": {"pd.nixl_lines  vllm  pool 32768 context 8192 page 0", "routes  vllm  pool 0 context 0 page 0", "routes.dev_mode  vllm  pool 0 context 0 page 0",
				"startup.refused_pool_smaller_than_context  vllm  pool 2016 context 8192 page 0", "startup.single 0.32.0 vllm both pool 699008 context 8192 page 0"},
		} {
			t.Run(root+"/"+dir, func(t *testing.T) {
				inv, err := Read(context.Background(), []string{filepath.Join(root, dir)}, Options{})
				if err != nil || len(inv.Problems) > 0 {
					t.Fatalf("%v %v", err, inv.Problems)
				}
				var got []string
				for _, n := range inv.Nodes {
					if n.Name == "A_autotruncate" { // not among ours
						continue
					}
					got = append(got, strings.Replace(brief(n), " ", " "+n.Text(facts.Version)+" ", 1))
					for _, d := range n.Disagreements() {
						t.Errorf("%s: %s is %s at %s and %s at %s", n.Name, d.Key, d.A.Value, d.A.At, d.B.Value, d.B.At)
					}
				}
				if strings.Join(got, "\n") != strings.Join(want, "\n") {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		}
	}
}

// Nothing in the whole tree of shared fixtures is read wrongly: no panic, no node that is no engine, no broken file.
func TestTheWholeTreeOfSharedFixtures(t *testing.T) {
	shared := "../../../../shared/fixtures"
	if !exists(shared) {
		t.Skip("there are no shared fixtures here")
	}
	inv, err := Read(context.Background(), []string{shared}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range inv.Problems {
		t.Errorf("%s: %s", p.At, p.Text)
	}
	for _, n := range inv.Nodes {
		if e := n.Text(facts.Engine); e != "sglang" && e != "vllm" {
			t.Errorf("%s (%s) is said to be %q", n.Name, n.ID, e)
		}
	}
	if len(inv.Nodes) < 60 || len(inv.Passed) < 100 {
		t.Errorf("%d nodes, %d files passed over", len(inv.Nodes), len(inv.Passed))
	}
	t.Logf("%d nodes, %d files passed over", len(inv.Nodes), len(inv.Passed))
}
