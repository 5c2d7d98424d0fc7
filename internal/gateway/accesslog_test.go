package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
)

// locked is a buffer that several goroutines write.
type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

type accessLine struct {
	Msg, Request, Attempt, Tenant, Key, Model, Endpoint, Verdict, Layer, Prefill, Decode string
	Stream                                                                               bool
	Status, Tries                                                                        int
	Prompt                                                                               int `json:"prompt_tokens"`
	Completion                                                                           int `json:"completion_tokens"`
	Total                                                                                int `json:"total_us"`
	First                                                                                int `json:"first_byte_us"`
}

// One line a request, whatever becomes of it; ids and numbers alone.
func TestAccessLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access")
	d, _ := keyed(t, fleettest.Honest(text("SECRETREPLY")...), "alice", func(c *Config) { c.AccessLog = file })
	const prompt = "SECRETPROMPT"
	d.post("/v1/completions", complete(prompt, `,"max_tokens":20`), append(as("alice"), "X-Request-Id", "one")...)
	d.post("/v1/completions", complete(prompt, `,"max_tokens":20,"stream":true,"user":"SECRETPROMPT"`), append(as("alice"), "X-Request-Id", "two")...)
	d.post("/v1/completions", `{"model":"SECRETPROMPT","prompt":"SECRETPROMPT"}`, append(as("alice"), "X-Request-Id", "three")...)
	d.post("/v1/completions", complete(prompt, `,"SECRETPROMPT":1`), append(as("alice"), "X-Request-Id", "four")...)
	d.post("/v1/completions", complete(prompt, ""), append(as("mallory"), "X-Request-Id", "five-sk-mallory")...)
	d.post("/v1/completions", complete(strings.Repeat(prompt, 1000), ""), append(as("alice"), "X-Request-Id", "six")...)
	d.quiet()
	d.close()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"SECRET", "sk-", "Bearer"} {
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s in the access log:\n%s", secret, b)
		}
	}
	var lines []accessLine
	for l := range bytes.Lines(b) {
		var a accessLine
		if err := json.Unmarshal(l, &a); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		lines = append(lines, a)
	}
	if len(lines) != 6 {
		t.Fatalf("%d lines for 6 requests:\n%s", len(lines), b)
	}
	one, two := lines[0], lines[1]
	if one.Request != "one" || one.Tenant != "alice" || one.Key != "alice" || one.Model != "m" || one.Endpoint != "completions" || one.Status != 200 || one.Verdict != "ok" ||
		one.Prefill != "p0" || one.Decode != "d0" || one.Prompt != 13 || one.Completion != 11 || one.Stream || one.Tries != 1 || one.Total <= 0 || one.First <= 0 || one.First > one.Total || one.Attempt == "" {
		t.Errorf("%+v", one)
	}
	if !two.Stream || two.Completion != 11 || two.Status != 200 {
		t.Errorf("%+v", two)
	}
	for i, want := range []struct {
		status  int
		verdict string
		tenant  string
	}{{404, "model_not_found", "alice"}, {0, "", "alice"}, {401, "invalid_api_key", ""}, {400, "context_length_exceeded", "alice"}} {
		l := lines[2+i]
		if want.status != 0 && (l.Status != want.status || l.Verdict != want.verdict || l.Completion != 0) || l.Tenant != want.tenant {
			t.Errorf("%+v, want %+v", l, want)
		}
	}
}

// stuck is a disk that takes nothing until it is let go.
type stuck struct {
	let  chan bool
	fail bool
	n    int
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.let
	if s.fail {
		return 0, errors.New("full")
	}
	s.n += bytes.Count(b, []byte{'\n'})
	return len(b), nil
}

// A disk that does not take lines holds up nobody; what is lost is counted, and memory is bounded.
func TestAccessLogNeverWaits(t *testing.T) {
	for _, fail := range []bool{false, true} {
		s := &stuck{let: make(chan bool), fail: fail}
		a := newAccessLog(s)
		line := append(bytes.Repeat([]byte{'x'}, 1023), '\n')
		const lines = 3 * mostWaiting / 1024
		done := make(chan bool)
		go func() {
			for range lines {
				a.Write(line)
			}
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("a request waits for the disk")
		}
		if a.mu.Lock(); len(a.buf) > mostWaiting {
			t.Errorf("%d bytes wait", len(a.buf))
		}
		a.mu.Unlock()
		close(s.let)
		a.close()
		if lost := int(a.lost()); lost == 0 || lost+s.n != lines || fail && s.n != 0 {
			t.Errorf("fail=%v: %d lost and %d written of %d", fail, lost, s.n, lines)
		}
		a.Write(line) // after the end: counted, and no panic
	}
}

// A file that was moved away is begun anew.
func TestAccessLogIsReopened(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access")
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.AccessLog = file })
	d.post("/v1/completions", complete("x", ""))
	fleettest.Until(t, "the line", func() bool { b, _ := os.ReadFile(file); return bytes.Count(b, []byte{'\n'}) == 1 })
	os.Rename(file, file+".1")
	if err := d.g.Renew(); err != nil {
		t.Fatal(err)
	}
	d.post("/v1/completions", complete("x", ""))
	fleettest.Until(t, "the line in the new file", func() bool { b, _ := os.ReadFile(file); return bytes.Count(b, []byte{'\n'}) == 1 })
}

func BenchmarkAccessLine(b *testing.B) {
	s := &stuck{let: make(chan bool)}
	close(s.let)
	a := newAccessLog(s)
	defer a.close()
	x := &walk{g: &Gateway{access: a}, request: "req-0123456789abcdef", start: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		x.log()
	}
}
