package check

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/check/advisory"
)

var update = flag.Bool("update", false, "write the golden reports anew")

type jsonReport struct {
	Nodes []struct {
		Name       string   `json:"name"`
		Role       string   `json:"role"`
		Engine     string   `json:"engine"`
		Version    string   `json:"version"`
		PoolTokens int      `json:"pool_tokens"`
		Context    int      `json:"context"`
		PageSize   int      `json:"page_size"`
		Sources    []string `json:"sources"`
	} `json:"nodes"`
	Findings []struct {
		ID       string `json:"id"`
		Severity string `json:"severity"`
		Node     string `json:"node"`
		Message  string `json:"message"`
		Fix      string `json:"fix"`
		Source   string `json:"source"`
	} `json:"findings"`
	Exit int `json:"exit"`
}

// runJSON checks args and reads the report; unknown keys in it are an error.
func runJSON(t *testing.T, o Options, args ...string) (jsonReport, int) {
	t.Helper()
	o.Args, o.Format = args, "json"
	var out, errs bytes.Buffer
	code := Run(context.Background(), o, strings.NewReader(""), &out, &errs)
	var r jsonReport
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("%v; stderr %s", err, errs.String())
	}
	if r.Exit != code {
		t.Errorf("exit %d in the report, %d returned", r.Exit, code)
	}
	return r, code
}

func (r jsonReport) ids() map[string]string {
	m := map[string]string{}
	for _, f := range r.Findings {
		m[f.ID] = f.Severity
	}
	return m
}

func TestTheIncidentFailsWithTheRightAdvice(t *testing.T) {
	r, code := runJSON(t, Options{}, "testdata/incident/prefill.log")
	if code != 1 || len(r.Nodes) != 1 {
		t.Fatalf("exit %d, %d nodes", code, len(r.Nodes))
	}
	n := r.Nodes[0]
	if n.Name != "prefill" || n.Role != "prefill" || n.Engine != "sglang" || n.Version != "0.5.19" || n.PoolTokens != 681280 || n.Context != 1048576 || n.PageSize != 64 {
		t.Errorf("%+v", n)
	}
	first := r.Findings[0]
	if first.ID != "pool-below-context" || first.Severity != "high" || first.Source != "testdata/incident/prefill.log:8" ||
		!strings.Contains(first.Message, "681,280") || !strings.Contains(first.Message, "1,048,576") || !strings.Contains(first.Fix, "--context-length 681152") {
		t.Errorf("%+v", first)
	}
	second := r.Findings[1]
	if second.ID != "SGL-KV-01" || second.Severity != "high" || !strings.Contains(second.Fix, "0.5.21") || second.Source != "testdata/incident/prefill.log:2" {
		t.Errorf("%+v", second)
	}
	if r, code := runJSON(t, Options{}, "testdata/incident"); code != 1 || len(r.Nodes) != 2 || r.ids()["pair-limits-differ"] == "" {
		t.Errorf("exit %d, %v", code, r.ids())
	}
}

func TestTheSameFleetFixedPasses(t *testing.T) {
	r, code := runJSON(t, Options{}, "testdata/fixed")
	if code != 0 || len(r.Nodes) != 2 {
		t.Fatalf("exit %d, %v", code, r.ids())
	}
	for id, s := range r.ids() {
		if s != "low" && s != "info" {
			t.Errorf("%s is %s", id, s)
		}
	}
	if _, code := runJSON(t, Options{FailOn: "medium"}, "testdata/fixed"); code != 0 {
		t.Errorf("exit %d with --fail-on medium", code)
	}
	if _, code := runJSON(t, Options{FailOn: "low"}, "testdata/fixed"); code != 1 {
		t.Errorf("exit %d with --fail-on low", code)
	}
}

func TestVerdictsOfAllFixtures(t *testing.T) {
	for _, root := range []string{"testdata/fixtures", "../../../shared/fixtures"} {
		if _, err := os.Stat(root); err != nil {
			continue
		}
		for _, dir := range []string{"sglang/rendered", "sglang/real", "vllm-logs"} {
			files, _ := filepath.Glob(filepath.Join(root, dir, "*.json"))
			for _, f := range files {
				base := strings.TrimSuffix(f, ".json")
				if strings.HasSuffix(base, ".body") {
					continue
				}
				t.Run(filepath.Base(base), func(t *testing.T) {
					b, err := os.ReadFile(f)
					if err != nil {
						t.Fatal(err)
					}
					var want struct{ Verdict string }
					if err := json.Unmarshal(b, &want); err != nil {
						t.Fatal(err)
					}
					var args []string
					for _, ext := range []string{".log", ".metrics", ".body.json"} {
						if _, err := os.Stat(base + ext); err == nil {
							args = append(args, base+ext)
						}
					}
					r, code := runJSON(t, Options{}, args...)
					exit, id := map[string]int{"ok": 0, "pool_below_context": 1, "edge_no_reserve": 0, "unknown_context": 2, "refused_to_start": 1}[want.Verdict],
						map[string]string{"pool_below_context": "pool-below-context", "edge_no_reserve": "pool-at-the-edge", "unknown_context": "missing-fact", "refused_to_start": "refused-to-start"}[want.Verdict]
					if code != exit || id != "" && r.ids()[id] == "" {
						t.Errorf("%s: exit %d, want %d and %s; %v", want.Verdict, code, exit, id, r.ids())
					}
					if want.Verdict == "ok" && (r.ids()["pool-below-context"] != "" || r.ids()["pool-at-the-edge"] != "") {
						t.Errorf("a healthy node has %v", r.ids())
					}
				})
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		args []string
		want int
	}{
		"nothing to check":  {args: nil, want: 3},
		"bad format":        {o: Options{Format: "xml"}, args: []string{"testdata/fixed"}, want: 3},
		"bad threshold":     {o: Options{FailOn: "critical"}, args: []string{"testdata/fixed"}, want: 3},
		"bad version":       {o: Options{Version: "newest"}, args: []string{"testdata/fixed"}, want: 3},
		"negative context":  {o: Options{Context: -1}, args: []string{"testdata/fixed"}, want: 3},
		"no waivers file":   {o: Options{Waivers: "testdata/none.yaml"}, args: []string{"testdata/fixed"}, want: 3},
		"no key file":       {o: Options{APIKeyFile: "testdata/none"}, args: []string{"testdata/fixed"}, want: 3},
		"bundle, no key":    {o: Options{Advisories: "testdata/none"}, args: []string{"testdata/fixed"}, want: 3},
		"not there":         {args: []string{"testdata/none.log"}, want: 2},
		"one of two":        {args: []string{"testdata/fixed", "testdata/none.log"}, want: 2},
		"finding and blind": {args: []string{"testdata/incident", "testdata/none.log"}, want: 1},
		"fixed":             {args: []string{"testdata/fixed"}, want: 0},
		"wanted context":    {o: Options{Context: 1048576}, args: []string{"testdata/fixed"}, want: 1},
		"smaller context":   {o: Options{Context: 600000}, args: []string{"testdata/fixed"}, want: 0},
		"context given":     {o: Options{Context: 8192}, args: []string{"testdata/fixtures/sglang/real/r15-2026-07-vs-vllm.log"}, want: 0},
		"context too large": {o: Options{Context: 400000}, args: []string{"testdata/fixtures/sglang/real/r15-2026-07-vs-vllm.log"}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Args = c.args
			var out, errs bytes.Buffer
			if got := Run(context.Background(), c.o, strings.NewReader(""), &out, &errs); got != c.want {
				t.Errorf("exit %d, want %d\n%s%s", got, c.want, out.String(), errs.String())
			}
			if c.want == 3 && errs.Len() == 0 {
				t.Error("nothing says why")
			}
		})
	}
}

func TestStandardInputAndNames(t *testing.T) {
	b, err := os.ReadFile("testdata/incident/prefill.log")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := Run(context.Background(), Options{Args: []string{"p7=-"}, Format: "json"}, bytes.NewReader(b), &out, os.Stderr); code != 1 {
		t.Errorf("exit %d", code)
	}
	var r jsonReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Nodes[0].Name != "p7" || !strings.HasPrefix(r.Nodes[0].Sources[0], "-:") {
		t.Errorf("%v %+v", err, r.Nodes)
	}
}

func TestReportsAreTheSameEachTime(t *testing.T) {
	for _, format := range []string{"table", "json", "sarif", "junit", "md"} {
		t.Run(format, func(t *testing.T) {
			var first []byte
			for range 5 {
				var out bytes.Buffer
				Run(context.Background(), Options{Args: []string{"testdata/incident"}, Format: format, Program: "sluice v1.2.3", Width: 120}, nil, &out, os.Stderr)
				if first == nil {
					first = bytes.Clone(out.Bytes())
				}
				if !bytes.Equal(first, out.Bytes()) {
					t.Fatal(cmp.Diff(string(first), out.String()))
				}
			}
			golden := filepath.Join("testdata/golden", "incident."+format)
			if *update {
				if err := os.WriteFile(golden, first, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(first)); d != "" {
				t.Errorf("-want +got (go test -update writes it anew):\n%s", d)
			}
		})
	}
}

func TestSARIFHasItsShape(t *testing.T) {
	var out bytes.Buffer
	Run(context.Background(), Options{Args: []string{"testdata/incident"}, Format: "sarif", Program: "sluice v1.2.3"}, nil, &out, os.Stderr)
	var s struct {
		Schema  string `json:"$schema"`
		Version string `json:"version"`
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name  string `json:"name"`
					Rules []struct {
						ID    string `json:"id"`
						Short struct{ Text string }
					} `json:"rules"`
				} `json:"driver"`
			} `json:"tool"`
			Results []struct {
				RuleID    string `json:"ruleId"`
				RuleIndex int    `json:"ruleIndex"`
				Level     string `json:"level"`
				Message   struct{ Text string }
				Locations []struct {
					Physical *struct {
						Artifact struct{ URI string } `json:"artifactLocation"`
						Region   *struct {
							StartLine int `json:"startLine"`
						} `json:"region"`
					} `json:"physicalLocation"`
				} `json:"locations"`
			} `json:"results"`
		} `json:"runs"`
	}
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Version != "2.1.0" || len(s.Runs) != 1 || len(s.Runs[0].Results) == 0 {
		t.Fatalf("%+v", s)
	}
	run := s.Runs[0]
	for i, r := range run.Results {
		if r.RuleIndex < 0 || r.RuleIndex >= len(run.Tool.Driver.Rules) || run.Tool.Driver.Rules[r.RuleIndex].ID != r.RuleID {
			t.Errorf("result %d: rule %s is not at %d", i, r.RuleID, r.RuleIndex)
		}
		if r.Message.Text == "" || r.Level != "error" && r.Level != "warning" && r.Level != "note" {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	if p := run.Results[0].Locations[0].Physical; p.Artifact.URI != "testdata/incident/prefill.log" || p.Region.StartLine != 8 {
		t.Errorf("%+v", p)
	}
}

func TestJUnitCountsItsCases(t *testing.T) {
	var out bytes.Buffer
	Run(context.Background(), Options{Args: []string{"testdata/incident", "testdata/none.log"}, Format: "junit"}, nil, &out, os.Stderr)
	var s struct {
		Suites []struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Errors   int `xml:"errors,attr"`
			Cases    []struct {
				Name     string     `xml:"name,attr"`
				Failures []struct{} `xml:"failure"`
				Errors   []struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	x := s.Suites[0]
	if x.Tests != 3 || x.Failures != 1 || x.Errors != 1 || len(x.Cases) != 3 {
		t.Errorf("%+v", x)
	}
}

func TestColourOnlyWhereItIsAskedFor(t *testing.T) {
	for _, color := range []bool{false, true} {
		var out bytes.Buffer
		Run(context.Background(), Options{Args: []string{"testdata/incident"}, Color: color}, nil, &out, os.Stderr)
		if got := strings.Contains(out.String(), "\x1b["); got != color {
			t.Errorf("colour %v, escapes %v", color, got)
		}
	}
}

func TestALogCannotDriveTheTerminal(t *testing.T) {
	p := filepath.Join(t.TempDir(), "x.log")
	if err := os.WriteFile(p, []byte("server_args={'model_path': '\x1b]0;owned\x07\u202e', 'disaggregation_mode': 'prefill', 'context_length': 8192, 'served_model_name': 'a\x01b\x07c\x7f'}\nmax_total_num_tokens=10, context_len=8192\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"table", "json", "sarif", "junit", "md"} {
		var out bytes.Buffer
		Run(context.Background(), Options{Args: []string{p}, Format: format}, nil, &out, os.Stderr)
		if strings.ContainsAny(out.String(), "\x1b\x07\x01\x7f\u202e") {
			t.Errorf("%s lets control characters through", format)
		}
	}
}

const waivers = `waivers:
- id: pool-below-context
  scope: "pre*"
  reason: the gateway caps prompts at 600,000 tokens
  owner: jo@example.com
  expires: 2026-12-31
- id: SGL-KV-01
  scope: prefill
  reason: as above
  owner: jo@example.com
  expires: 2026-12-31
`

func TestWaiversExcuseUntilTheirLastDay(t *testing.T) {
	p := filepath.Join(t.TempDir(), "waivers.yaml")
	write := func(s string) {
		if err := os.WriteFile(p, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	day := func(s string) func() time.Time {
		d, err := time.Parse("2006-01-02", s)
		if err != nil {
			t.Fatal(err)
		}
		return func() time.Time { return d.Add(23 * time.Hour) }
	}
	write(waivers)
	r, code := runJSON(t, Options{Waivers: p, Now: day("2026-12-31")}, "testdata/incident")
	if code != 0 || r.ids()["pool-below-context"] != "" {
		t.Errorf("exit %d, %v", code, r.ids())
	}
	r, code = runJSON(t, Options{Waivers: p, Now: day("2027-01-01")}, "testdata/incident")
	if code != 1 || r.ids()["waiver-expired"] != "high" || r.ids()["pool-below-context"] != "high" {
		t.Errorf("after the last day: exit %d, %v", code, r.ids())
	}
	// An expired waiver fails also when there is nothing else.
	if _, code := runJSON(t, Options{Waivers: p, Now: day("2027-01-01")}, "testdata/fixed"); code != 1 {
		t.Errorf("an expired waiver of nothing: exit %d", code)
	}
	r, code = runJSON(t, Options{Waivers: p, Now: day("2026-12-01")}, "testdata/fixed")
	if code != 0 || r.ids()["waiver-unused"] != "low" {
		t.Errorf("unused: exit %d, %v", code, r.ids())
	}
	// The scope holds: another node is not excused.
	write(strings.ReplaceAll(waivers, "pre*", "dec*"))
	if _, code := runJSON(t, Options{Waivers: p, Now: day("2026-12-01")}, "testdata/incident"); code != 1 {
		t.Errorf("another scope: exit %d", code)
	}
	for name, bad := range map[string]string{
		"no owner":    strings.Replace(waivers, "  owner: jo@example.com\n", "", 1),
		"no day":      strings.Replace(waivers, "2026-12-31", "soon", 1),
		"unknown key": strings.Replace(waivers, "owner:", "owners:", 1),
		"no YAML":     "waivers: [",
		"pattern":     strings.Replace(waivers, "pre*", "[", 1),
	} {
		write(bad)
		var out, errs bytes.Buffer
		if code := Run(context.Background(), Options{Args: []string{"testdata/fixed"}, Waivers: p}, nil, &out, &errs); code != 3 || errs.Len() == 0 {
			t.Errorf("%s: exit %d %s", name, code, errs.String())
		}
	}
}

func TestBlindnessCanBeWaived(t *testing.T) {
	p := filepath.Join(t.TempDir(), "waivers.yaml")
	if err := os.WriteFile(p, []byte("waivers:\n- {id: missing-fact, scope: \"*\", reason: pools are checked at start, owner: jo, expires: 2099-01-01}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(m, []byte("kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: c, image: \"lmsysorg/sglang:v0.5.23\", command: [python3, -m, sglang.launch_server, --context-length, \"8192\"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code := runJSON(t, Options{}, m); code != 2 {
		t.Errorf("exit %d without a waiver", code)
	}
	if _, code := runJSON(t, Options{Waivers: p}, m); code != 0 {
		t.Errorf("exit %d with a waiver", code)
	}
}

func TestASignedFileAddsAdvisories(t *testing.T) {
	dir := t.TempDir()
	es, err := advisory.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	e := *es[0]
	for _, x := range es {
		if x.ID == "SGL-KV-38" {
			e = *x
		}
	}
	e.ID = "ACME-1"
	e.Specific.Sluice.Severity = "high"
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	rec := filepath.Join(dir, "acme.json")
	if err := os.WriteFile(rec, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	signed, private := filepath.Join(dir, "signed.json"), filepath.Join(dir, "key")
	if err := SignAdvisories(&out, private, signed, 1, []string{rec}); err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(out.String()[strings.Index(out.String(), "--key ")+6:])
	r, code := runJSON(t, Options{Advisories: signed, AdvisoriesKey: key}, "testdata/fixed")
	if code != 1 || r.ids()["ACME-1"] != "high" {
		t.Errorf("exit %d, %v", code, r.ids())
	}
	// With another key nothing of it is believed, and the check does not pass.
	other := base64.StdEncoding.EncodeToString(make([]byte, 32))
	var errs bytes.Buffer
	if code := Run(context.Background(), Options{Args: []string{"testdata/fixed"}, Advisories: signed, AdvisoriesKey: other}, nil, &out, &errs); code != 2 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	out.Reset()
	if err := VerifyAdvisories(&out, signed, key); err != nil || strings.Count(out.String(), ": ok") != 2 {
		t.Errorf("%v %s", err, out.String())
	}
}

func TestEveryIDIsExplained(t *testing.T) {
	var list bytes.Buffer
	if err := Explain(&list, "list"); err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(list.String()) {
		id, _, _ := strings.Cut(l, " ")
		var out bytes.Buffer
		if err := Explain(&out, id); err != nil || out.Len() < 50 {
			t.Errorf("%s: %v %s", id, err, out.String())
		}
	}
	var out bytes.Buffer
	if err := Explain(&out, "CVE-2025-32444"); err != nil || !strings.Contains(out.String(), "VLLM-CVE-2025-32444") {
		t.Errorf("%v %s", err, out.String())
	}
	if err := Explain(&out, "nothing"); err == nil {
		t.Error("an unknown id is explained")
	}
}
