package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lookAt looks at a directory as it is after everything in it stood still for a while.
func lookAt(t *testing.T, d *fleetDir) (workers, problems []string) {
	t.Helper()
	ws, problems, err := d.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ws {
		workers = append(workers, w.Name)
	}
	return workers, problems
}

// Each file is a worker or a list of workers; a bad or half-written one changes nothing, and the others go on.
func TestWorkersFromADirectory(t *testing.T) {
	dir := t.TempDir()
	clock := time.Now()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		clock = time.Now().Add(time.Minute) // it was written long ago
	}
	d := newFleetDir(dir, "sglang", time.Second)
	d.now = func() time.Time { return clock }
	check := func(what string, want []string, problem string) {
		t.Helper()
		got, problems := lookAt(t, d)
		if !slices.Equal(got, want) {
			t.Errorf("%s: workers %v, want %v", what, got, want)
		}
		if all := strings.Join(problems, "\n"); problem == "" && all != "" || !strings.Contains(all, problem) {
			t.Errorf("%s: problems %q, want %q", what, all, problem)
		}
	}
	check("an empty directory", nil, "")
	put("a.yaml", `{role: prefill, url: "http://10.0.0.1:30000", bootstrap_port: 8998, name: a}`)
	put("b.yml", "- {role: decode, url: \"http://10.0.0.2:30000\"}\n- {role: decode, url: \"http://10.0.0.3:30000\", pool_tokens: 4096}\n")
	put("notes.txt", "not a worker")
	put(".hidden.yaml", "not a worker")
	all := []string{"a", "decode 10.0.0.2:30000", "decode 10.0.0.3:30000"}
	check("three workers", all, "")
	for text, why := range map[string]string{
		"{role: prefill, url: \"http://10.0.0.9:30": "a.yaml", // cut
		"": "a.yaml: is empty",
		"{role: prefill, url: \"http://10.0.0.9:1\", pool: 4}": `a.yaml: :1: unknown key "pool"`,
		"{role: both, url: \"http://10.0.0.9:1\"}":             `a.yaml:1: worker 0: role "both"`,
		"{role: prefill, url: \"ftp://10.0.0.9:1\"}":           "must be http://",
		"{role: prefill, url: \"http://u:secret@10.0.0.9:1\"}": "without a user",
		"just words": "must be a worker, or a list",
		"{role: prefill, url: \"http://10.0.0.9:1\"}\n---\n{role: x}\n":   "more than one document",
		"- {role: decode, url: \"http://10.0.0.2:30000\"}":                "worker decode 10.0.0.2:30000",
		"{role: prefill, url: \"http://h:1\", api_key_file: /none/there}": "/none/there",
	} {
		put("a.yaml", text)
		want := all
		if strings.Contains(why, "worker decode") {
			want = []string{"decode 10.0.0.2:30000"} // the later of two files that name one worker
			got, problems := lookAt(t, d)
			if !slices.Equal(got, want) || !strings.Contains(strings.Join(problems, "\n"), "b.yml: worker decode 10.0.0.2:30000 is in a.yaml already") {
				t.Errorf("%v %v", got, problems)
			}
			put("a.yaml", `{role: prefill, url: "http://10.0.0.1:30000", bootstrap_port: 8998, name: a}`)
			check("mended", all, "")
			continue
		}
		check(text, want, why)
	}
	put("a.yaml", `{role: prefill, url: "http://10.0.0.1:30000", name: a2}`)
	all[0] = "a2"
	check("changed", all, "")
	if err := os.Remove(filepath.Join(dir, "b.yml")); err != nil {
		t.Fatal(err)
	}
	check("a file that is gone", all[:1], "")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Look(t.Context()); err == nil {
		t.Error("a directory that is not there says nothing, and not that there is nobody")
	}
}

// A file that was written a moment ago may be half of what is being written: it counts once it stood still for a look.
func TestAFileThatIsBeingWrittenIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "w.yaml")
	d := newFleetDir(dir, "plain", time.Second)
	clock := time.Now()
	d.now = func() time.Time { return clock }
	whole := "- {url: \"http://10.0.0.1:1\"}\n- {url: \"http://10.0.0.2:1\"}\n"
	for _, part := range []string{whole[:31], whole} { // the first half is a good list by itself
		if err := os.WriteFile(at, []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(at, clock, clock); err != nil {
			t.Fatal(err)
		}
		if got, problems := lookAt(t, d); len(got) != 0 || len(problems) != 0 {
			t.Fatalf("half a file was taken: %v %v", got, problems)
		}
		clock = clock.Add(settleTime / 2)
	}
	clock = clock.Add(settleTime)
	if got, _ := lookAt(t, d); len(got) != 2 {
		t.Fatalf("a whole file is not taken: %v", got)
	}
}

func FuzzWorkerFile(f *testing.F) {
	f.Add([]byte(`{role: prefill, url: "http://10.0.0.1:30000", bootstrap_port: 8998, name: a}`))
	f.Add([]byte("- {role: decode, url: \"http://10.0.0.2:30000\"}\n- {role: decode, url: \"http://10.0.0.3:30000\", kv_hosts: [a, b]}\n"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ws, err := readWorkers("w.yaml", b, "sglang")
		if err != nil && !strings.HasPrefix(err.Error(), "w.yaml") {
			t.Errorf("an error without its file: %v", err)
		}
		for _, w := range ws {
			if w.URL == nil || w.URL.Host == "" || w.URL.User != nil || w.Name == "" {
				t.Errorf("%+v", w)
			}
		}
	})
}

func TestDiscoveryInTheFile(t *testing.T) {
	ms, err := readFleet(t, `
- name: m
  engine: sglang
  workers_dir: /etc/sluice/workers
  workers_dns: {name: decode.example, port: 30000, role: decode, pool_tokens: 4096}
- name: n
  engine: plain
  workers_dns: [{name: _http._tcp.a.example}, {name: b.example, port: 1, interval: 5s, scheme: https}]
`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"directory /etc/sluice/workers every 2s", "dns decode.example:30000 (decode) pool_tokens was 0, now 4096"},
		{"dns _http._tcp.a.example (both)", "dns b.example:1 (both) scheme was not set, now https, interval was not set, now 5s"},
	} {
		g, err := ms[i].guarded()
		if err != nil {
			t.Fatal(err)
		}
		for j, s := range g.Fleet.Sources {
			if s.ID() != want[j] {
				t.Errorf("%q, want %q", s.ID(), want[j])
			}
		}
	}
	for text, want := range map[string]string{
		`[{name: m, engine: sglang, workers_dns: [{name: a, port: 1, role: prefill}]}]`:             "one prefill and one decode",
		`[{name: m, engine: plain, workers_dns: [{name: a}]}]`:                                      "0 is not a port",
		`[{name: m, engine: plain, workers_dns: [{name: _a._tcp.b, port: 1}]}]`:                     "SRV records say it",
		`[{name: m, engine: plain, workers_dns: [{name: "a b", port: 1}]}]`:                         "not a name of the DNS",
		`[{name: m, engine: plain, workers_dns: [{name: a, port: 1, url: "http://h:1"}]}]`:          "url:",
		`[{name: m, engine: plain, workers_dns: [{name: a, port: 1, interval: 1ms}]}]`:              "interval",
		`[{name: m, engine: plain, workers_dns: [{name: a, port: 1, prot: 3}]}]`:                    `unknown key "prot"`,
		`[{name: m, engine: plain, workers_dir_every: 1s, workers: [{url: "http://h:1"}]}]`:         "needs workers_dir",
		`[{name: m, engine: plain, canaries: 1000, workers: [{url: "http://h:1"}]}]`:                "canaries",
		`[{name: m, engine: plain, session_header: Authorization, workers: [{url: "http://h:1"}]}]`: "session_header",
		`[{name: m, engine: plain, max_ejected: 2, workers: [{url: "http://h:1"}]}]`:                "max_ejected",
		`[{name: m, engine: native, workers_dir: /x}]`:                                              "for other engines",
	} {
		if _, err := readFleet(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
