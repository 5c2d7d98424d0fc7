package gateway

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
)

var writeDocs = flag.Bool("write-docs", false, "write docs/metrics.md")

const docs, deploy = "../../docs/metrics.md", "../../deploy"

// all metrics of a gateway that has everything that can be had.
func allMetrics(t *testing.T) (*door, []metricAbout) {
	t.Helper()
	d, _ := keyed(t, fleettest.Honest('x'), "alice", func(c *Config) { c.AccessLog = filepath.Join(t.TempDir(), "access") })
	ms := slices.Clone(d.g.metrics.abouts)
	slices.SortFunc(ms, func(a, b metricAbout) int { return strings.Compare(a.Name, b.Name) })
	return d, ms
}

// docs/metrics.md lists what there is: make metrics-doc writes it.
func TestMetricsAreDocumented(t *testing.T) {
	_, ms := allMetrics(t)
	var b bytes.Buffer
	b.WriteString("# Metrics\n\nThe admin listener serves them at `/metrics`. This table is written by `make metrics-doc` from what a gateway registers, and a test\n" +
		"compares it. Beside these there are the Go runtime's and the process's own (`go_*`, `process_*`).\n\n| metric | kind | labels | |\n| --- | --- | --- | --- |\n")
	for _, m := range ms {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(m.Labels, ", "), m.Help)
	}
	if *writeDocs {
		if err := os.WriteFile(docs, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docs)
	if err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("docs/metrics.md is not what the gateway registers; make metrics-doc writes it (%v)", err)
	}
}

// What is said of a metric is what Prometheus gathers, and names follow its conventions.
func TestMetricsAreWhatTheySay(t *testing.T) {
	d, ms := allMetrics(t)
	d.post("/v1/completions", complete("x", ""), as("alice")...)
	d.post("/v1/completions", "{", as("alice")...)
	d.quiet()
	about := map[string]metricAbout{}
	for _, m := range ms {
		if _, twice := about[m.Name]; twice {
			t.Errorf("%s is there twice", m.Name)
		}
		about[m.Name] = m
		if strings.HasSuffix(m.Name, "_total") != (m.Kind == "counter") {
			t.Errorf("%s is a %s", m.Name, m.Kind)
		}
		if m.Kind == "histogram" && !strings.HasSuffix(m.Name, "_seconds") || !strings.HasPrefix(m.Name, "sluice_") || m.Help == "" || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%+v", m)
		}
	}
	families, err := d.g.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "sluice_") {
			continue
		}
		seen++
		a, ok := about[f.GetName()]
		kind := map[dto.MetricType]string{dto.MetricType_COUNTER: "counter", dto.MetricType_GAUGE: "gauge", dto.MetricType_HISTOGRAM: "histogram"}[f.GetType()]
		if !ok || a.Kind != kind || a.Help != f.GetHelp() {
			t.Errorf("%s is a %s (%s), and said to be %+v", f.GetName(), kind, f.GetHelp(), a)
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			want := slices.Clone(a.Labels)
			slices.Sort(want)
			if !slices.Equal(labels, want) {
				t.Errorf("%s has the labels %v, and is said to have %v", f.GetName(), labels, want)
			}
		}
	}
	if seen < 25 {
		t.Errorf("%d metrics", seen)
	}
}

// Tenants beyond the first share one label, whatever the file holds.
func TestTenantsLabelsAreBounded(t *testing.T) {
	lines := ""
	for i := range 1100 {
		lines += fmt.Sprintf("t%d\n", i)
	}
	d, _ := keyed(t, fleettest.Honest('x'), lines, nil)
	for _, i := range []int{0, 999, 1000, 1099} {
		if a := d.post("/v1/completions", complete("x", ""), as(fmt.Sprintf("t%d", i))...); a.status != 200 {
			t.Fatal(a.status)
		}
	}
	m := d.get(d.admin("/metrics")).body
	for want, there := range map[string]bool{`tenant="t999"} 1`: true, `tenant="(other)"} 2`: true, `tenant="t1000"`: false, `tenant="t1099"`: false} {
		if strings.Contains(m, want) != there {
			t.Errorf("%s: %v", want, !there)
		}
	}
}

// What alerts and the dashboard name, there is.
func TestAlertsNameMetricsThatThereAre(t *testing.T) {
	_, ms := allMetrics(t)
	known := map[string]bool{}
	for _, m := range ms {
		known[m.Name] = true
		if m.Kind == "histogram" {
			for _, s := range []string{"_bucket", "_sum", "_count"} {
				known[m.Name+s] = true
			}
		}
	}
	// Each alert has a test in which it fires.
	rules, _ := os.ReadFile(filepath.Join(deploy, "alerts.yaml"))
	tests, _ := os.ReadFile(filepath.Join(deploy, "alerts_test.yaml"))
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	for _, a := range alerts {
		for _, what := range []string{" fires\n", " does not fire\n"} {
			if !strings.Contains(string(tests), "- name: "+a[1]+what) {
				t.Errorf("alerts_test.yaml has no %q", a[1]+what)
			}
		}
	}
	if len(alerts) < 10 {
		t.Errorf("%d alerts", len(alerts))
	}
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "grafana.json"} {
		b, err := os.ReadFile(filepath.Join(deploy, file))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\bsluice_[a-z_]+`).FindAllString(string(b), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, n := range names {
			if !known[n] {
				t.Errorf("%s names %s, and there is none", file, n)
			}
		}
	}
}
