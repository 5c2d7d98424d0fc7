package report

import (
	"encoding/json"
	"encoding/xml"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/drill"
)

func sample() drill.Matrix {
	yes := true
	return drill.Matrix{Seed: 4, Cells: []drill.Cell{
		{Class: "late write", Phase: "stream", Fired: 3, Guard: "gate", Status: 200, PoolFree: 4, PoolTotal: 4, RedWithoutGuard: &yes, Removed: "gate", Injected: "<writes & more>"},
		{Class: "late write", Phase: "stream", Why: []string{"12 bytes of another request's text"}, ForeignBytes: 12},
		{Class: "network", Phase: "landing", Skipped: "needs root"},
	}}
}

func TestEachFormatSaysWhatIsRed(t *testing.T) {
	for _, f := range Formats {
		var b strings.Builder
		if err := Write(&b, f, sample()); err != nil {
			t.Fatal(err)
		}
		out := b.String()
		if f != "json" && !strings.Contains(out, "12 bytes of another request") {
			t.Errorf("%s does not say why a cell is red:\n%s", f, out)
		}
		switch f {
		case "json":
			var v struct {
				Cells []map[string]any `json:"cells"`
			}
			if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Cells) != 3 || len(v.Cells[0]) != 10 || v.Cells[0]["red_without_guard"] != true || v.Cells[1]["red_without_guard"] != nil {
				t.Errorf("%v %v", v, err)
			}
		case "junit":
			var s suite
			if err := xml.Unmarshal([]byte(out), &s); err != nil || s.Tests != 3 || s.Failures != 1 || s.Skipped != 1 || len(s.Cases) != 3 {
				t.Errorf("%+v %v", s, err)
			}
		case "html":
			if strings.Contains(out, "<writes & more>") || regexp.MustCompile(`(src|href)=|url\(|@import`).MatchString(out) {
				t.Errorf("the report is not escaped, or asks for another file")
			}
			if !regexp.MustCompile(`class="s [^"]*\bred\b`).MatchString(out) || !regexp.MustCompile(`class="s [^"]*\bnot-run\b`).MatchString(out) {
				t.Error("the picture does not show the red cell")
			}
		}
	}
	if err := Write(&strings.Builder{}, "pdf", sample()); err == nil {
		t.Error("pdf")
	}
}
