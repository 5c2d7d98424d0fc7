package fake

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

const canary = "The vault code of Ada is 3QY9DPNCRFU8. "

var paths = []string{"/v1/chat/completions", "/v1/completions"}

// told says whether an answer shows its lie. honest is the same leg's answer to the same request before.
var told = map[actor.Kind]func(r, honest reply) bool{
	actor.Placeholder:  func(r, _ reply) bool { return has(r, `"prompt_tokens":1,`) && r.status == 200 },
	actor.Refused:      func(r, _ reply) bool { return r.status == 400 && has(r, "exceeds") },
	actor.Failed:       func(r, _ reply) bool { return failed(r, 500) },
	actor.Unavailable:  func(r, _ reply) bool { return r.status == 503 },
	actor.AbortFinish:  func(r, _ reply) bool { return r.status == 200 && has(r, `"finish_reason":"abort"`) },
	actor.RefusedAside: func(r, _ reply) bool { return r.status == 200 && has(r, `"choices"`) && has(r, `"error":{`) },
	actor.ErrorIn200: func(r, _ reply) bool {
		return r.status == 200 && has(r, `"code":500`, `"code": 500`) && !has(r, `"choices"`)
	},
	actor.ErrorMidway:   func(r, _ reply) bool { return has(r, `"error": {`) && done(r) && has(r, `"choices"`) },
	actor.ErrorNoDone:   func(r, _ reply) bool { return has(r, `"error": {`) && !done(r) },
	actor.CountOne:      func(r, _ reply) bool { return has(r, `"prompt_tokens":1,`) },
	actor.CountShort:    func(r, h reply) bool { return count(r) == count(h)-1 },
	actor.CountLong:     func(r, h reply) bool { return count(r) == count(h)+1 },
	actor.CountZero:     func(r, _ reply) bool { return has(r, `"prompt_tokens":0,`) },
	actor.CountMissing:  func(r, h reply) bool { return !has(r, `"prompt_tokens"`) && has(h, `"prompt_tokens"`) },
	actor.CountText:     func(r, _ reply) bool { return has(r, `"prompt_tokens":"`) },
	actor.CountTwice:    func(r, _ reply) bool { return bytes.Count(r.body, []byte(`"usage"`)) == 2 },
	actor.CountLate:     func(r, h reply) bool { return last(r) == last(h)+1 && count(r) == count(h) },
	actor.NoneComputed:  func(r, _ reply) bool { return has(r, `"completion_tokens":0,`) },
	actor.TwoComputed:   func(r, _ reply) bool { return has(r, `"completion_tokens":2,`) },
	actor.FinishMissing: func(r, _ reply) bool { return r.status == 200 && !has(r, `"finish_reason":"`) },
	actor.Empty: func(r, _ reply) bool {
		return r.status == 200 && !has(r, `"finish_reason":"`) && len(textOf(r)) == 0 || has(r, `"choices":[]`)
	},
	actor.Silent:     func(r, _ reply) bool { return r.status == 200 && string(r.body) == "data: [DONE]\n\n" },
	actor.OtherID:    func(r, _ reply) bool { return r.status == 200 },
	actor.IDChanges:  func(r, _ reply) bool { return len(ids(r)) == 2 },
	actor.OtherIndex: func(r, _ reply) bool { return has(r, `"index":1`) && !has(r, `"index":0`) },
	actor.OtherModel: func(r, _ reply) bool { return has(r, `"model":"recall-other"`) },
	actor.Early:      func(r, _ reply) bool { return r.status == 200 },
	actor.StalePages: func(r, h reply) bool { return r.status == 200 && count(r) == count(h) },

	actor.HandleMissing: func(r, _ reply) bool { return has(r, `"kv_transfer_params":null`) },
	actor.HandleEmpty:   func(r, _ reply) bool { return has(r, `"kv_transfer_params":{}`) },
	actor.HandleFlat:    func(r, _ reply) bool { return has(r, `"remote_block_ids":[`) && !has(r, `"remote_block_ids":[[`) },
	actor.HandlePartial: func(r, _ reply) bool { return has(r, `"remote_host"`) && !has(r, `"remote_request_id"`) },
	actor.HandleForeign: func(r, h reply) bool {
		return handle(r, "remote_request_id") != "" && !strings.Contains(handle(r, "remote_request_id"), own(r))
	},
	actor.HandleBlocks:   func(r, h reply) bool { return strings.Contains(handle(r, "remote_request_id"), own(r)) },
	actor.HandleReplayed: func(r, h reply) bool { return handle(r, "remote_request_id") == handle(h, "remote_request_id") },
	actor.HandleEngine:   func(r, h reply) bool { return handle(r, "remote_engine_id") != handle(h, "remote_engine_id") },
	actor.HandleHost:     func(r, _ reply) bool { return has(r, `"remote_host":"192.0.2.1"`) },
	actor.HandlePort:     func(r, h reply) bool { return handle(r, "remote_port") != handle(h, "remote_port") },
	actor.HandleShort: func(r, h reply) bool {
		return commas(handle(r, "remote_block_ids")) == commas(handle(h, "remote_block_ids"))-1
	},
	actor.HandleCount:   func(r, h reply) bool { return handle(r, "remote_num_tokens") != handle(h, "remote_num_tokens") },
	actor.HandleUnasked: func(r, _ reply) bool { return has(r, `"do_remote_prefill":false,"do_remote_decode":false`) },
	actor.HandleHuge:    func(r, _ reply) bool { return len(r.body) > 1<<20 },

	actor.NoDone:     func(r, _ reply) bool { return !done(r) && has(r, `"finish_reason":"`) && r.err == nil },
	actor.CutMidway:  func(r, _ reply) bool { return !done(r) && !has(r, `"finish_reason":"`) && has(r, `"choices"`) },
	actor.CutAtEnd:   func(r, _ reply) bool { return done(r) && !has(r, `"finish_reason":"`) },
	actor.Reset:      func(r, _ reply) bool { return r.err != nil },
	actor.AfterDone:  func(r, _ reply) bool { return has(r, "[DONE]\n\ndata: {") },
	actor.Trailing:   func(r, _ reply) bool { return bytes.HasSuffix(r.body, []byte(`}{"more":1}`)) },
	actor.Truncated:  func(r, _ reply) bool { return r.err != nil || !done(r) },
	actor.Garbage:    func(r, _ reply) bool { return !utf8.Valid(r.body) },
	actor.HTML:       func(r, _ reply) bool { return r.status == 200 && r.header.Get("Content-Type") == "text/html" },
	actor.NotUTF8:    func(r, _ reply) bool { return bytes.Contains(r.body, []byte{0xff}) },
	actor.NoContent:  func(r, _ reply) bool { return r.status == 204 },
	actor.WrongShape: func(r, h reply) bool { return r.header.Get("Content-Type") != h.header.Get("Content-Type") },
	actor.GzipBomb:   func(r, _ reply) bool { return r.header.Get("Content-Encoding") == "gzip" && len(r.body) < 2<<20 },
	actor.Endless:    func(r, _ reply) bool { return r.err != nil || len(r.body) == most },
	actor.LongLine:   func(r, _ reply) bool { return len(r.body) == most },
	actor.Redirect: func(r, _ reply) bool {
		return r.status == 307 && strings.HasPrefix(r.header.Get("Location"), "http://192.0.2.1/")
	},
	actor.SlowHeaders: func(r, _ reply) bool { return r.err != nil },
	actor.HangHeaders: func(r, _ reply) bool { return r.err != nil },
	actor.HangBody:    func(r, _ reply) bool { return r.err != nil },
	actor.HalfOpen:    func(r, _ reply) bool { return r.err != nil },
}

func has(r reply, any ...string) bool {
	for _, s := range any {
		if bytes.Contains(r.body, []byte(s)) {
			return true
		}
	}
	return false
}

func failed(r reply, status int) bool {
	return r.status == status || r.status == 200 && has(r, fmt.Sprintf(`"code": %d`, status), fmt.Sprintf(`"code":%d`, status))
}

func done(r reply) bool { return has(r, "data: [DONE]") }

// count is the first prompt_tokens of an answer, last the last; -1 is none.
func count(r reply) int { return counted(r.body, bytes.Index(r.body, []byte(`"prompt_tokens":`))) }
func last(r reply) int  { return counted(r.body, bytes.LastIndex(r.body, []byte(`"prompt_tokens":`))) }

func counted(b []byte, at int) int {
	n := -1
	if at >= 0 {
		fmt.Sscanf(string(b[at:min(at+40, len(b))]), `"prompt_tokens":%d`, &n)
	}
	return n
}

// handle is a member of kv_transfer_params, as it is spelled.
func handle(r reply, name string) string {
	_, rest, ok := bytes.Cut(r.body, []byte(`"`+name+`":`))
	if !ok {
		return ""
	}
	end := bytes.IndexByte(rest, ',')
	if rest[0] == '[' {
		end = bytes.Index(rest, []byte("]]")) + 2
	}
	return string(rest[:end])
}

func commas(s string) int { return strings.Count(s, ",") }

// own is the request id in an answer's id.
func own(r reply) string {
	_, rest, _ := bytes.Cut(r.body, []byte("attempt-"))
	return string(rest[:min(8, len(rest))])
}

func ids(r reply) map[string]bool {
	out := map[string]bool{}
	for _, e := range strings.Split(string(r.body), "\n") {
		if _, rest, ok := strings.Cut(e, `"id":"`); ok {
			id, _, _ := strings.Cut(rest, `"`)
			out[id] = true
		}
	}
	return out
}

// Every lie of the catalogue is told, by every engine and leg that can tell it, in every kind of reply; and where a router that
// believes everything would pass decode's answer on, another tenant's text is in it.
func TestEveryLieIsTold(t *testing.T) {
	var wg sync.WaitGroup
	turn := make(chan struct{}, 64) // most cases wait for something
	for _, engine := range Engines() {
		as := engine
		if as == PlainSGLang {
			as = Plain
		}
		for _, about := range actor.Catalogue() {
			if told[about.Kind] == nil {
				t.Fatalf("nobody looks for %s", about.Kind)
			}
			for _, leg := range about.Legs {
				if (leg == actor.Both) != (as == Plain) {
					continue
				}
				for _, stream := range []bool{false, true} {
					if !about.Applies(as, leg, stream) || leg == actor.Prefill && stream {
						continue
					}
					for _, path := range paths {
						name := fmt.Sprintf("%s, %s tells %s, stream %v, %s", engine, leg, about.Kind, stream, path)
						turn <- struct{}{}
						wg.Go(func() {
							c := &inCase{T: t, name: name}
							defer func() { <-turn }()
							defer c.clean()
							tell(c, engine, leg, about, stream, path)
						})
					}
				}
			}
		}
	}
	wg.Wait()
}

// inCase is a test's case that runs beside others.
type inCase struct {
	*testing.T
	name  string
	after []func()
}

func (c *inCase) Errorf(format string, args ...any) {
	c.T.Helper()
	c.T.Errorf(c.name+": "+format, args...)
}
func (c *inCase) Fatal(args ...any) { c.Errorf("%v", args); runtime.Goexit() }
func (c *inCase) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	runtime.Goexit()
}
func (c *inCase) Cleanup(f func()) { c.after = append(c.after, f) }
func (c *inCase) clean() {
	for _, f := range c.after {
		f()
	}
}

func tell(t *inCase, engine string, leg actor.Leg, about actor.About, stream bool, path string) {
	p := NewPair(t, Options{Engine: engine, Patience: 3 * time.Second, Decode: Leg{Pool: 2048}, Prefill: Leg{Pool: 2048}})
	n := newNaive(p)
	filler := strings.Repeat("harbour ", 30)
	_, honest := n.ask(path, bodyOf(path, filler), stream, 60)
	hp, hd := n.ask(path, bodyOf(path, filler), stream, 60)
	if hd.status != 200 || honest.status != 200 || strings.Contains(textOf(hd), "vault") {
		t.Fatalf("honest: %d %s", hd.status, hd.body)
	}
	n.ask(path, bodyOf(path, strings.Repeat(canary, 20)), false, 4)
	if len(p.Violations()) > 0 {
		t.Fatal(p.Violations())
	}
	if engine == VLLMNixl && about.Kind == actor.HandleReplayed {
		hp, _ = n.ask(path, bodyOf(path, strings.Repeat(canary, 20)), false, 4)
	}
	p.Quiet() // the naive router breaks rules of its own from here on
	p.Tell(Lie{Kind: about.Kind, Leg: leg, Stale: true, Wait: 100 * time.Millisecond})
	if about.Slow {
		n.patience = 60 * time.Millisecond
	}
	if about.Kind == actor.Endless {
		n.patience = 300 * time.Millisecond
	}
	pr, dr := n.ask(path, bodyOf(path, filler), stream, 60)
	liar, before := pr, hp
	if leg != actor.Prefill {
		liar, before = dr, hd
	}
	if about.Kind == actor.OtherID {
		if liar.body = bytes.Replace(liar.body, []byte(n.id), nil, 1); has(liar, `"id":"cmpl-"`, `"id":"chatcmpl-"`) {
			t.Errorf("the id is its own: %.300s", liar.body)
		}
	}
	if !told[about.Kind](liar, before) {
		t.Errorf("the lie is not to be seen: %d %v %.600s", liar.status, liar.err, liar.body)
	}
	// A router passes on what decode says with 200.
	if leg == actor.Prefill && about.Seen != actor.Never && !about.Slow && dr.status == 200 && dr.err == nil {
		if leaked := strings.Contains(textOf(dr), "vault"); !leaked && !strings.HasPrefix(string(about.Kind), "handle-") && pr.status != 0 && engine != VLLMNixl {
			t.Errorf("believed, and nothing leaked: prefill %d %.200s, decode %.300s", pr.status, pr.body, dr.body)
		}
	}
	if about.Kind == actor.StalePages || about.Kind == actor.Early || about.Kind == actor.HandleBlocks || about.Kind == actor.HandleForeign {
		if !strings.Contains(textOf(dr), "vault") || len(p.Leaks()) == 0 {
			t.Errorf("nothing leaked: %.300s", dr.body)
		}
	}
}

func TestHonestPairsBreakNoRule(t *testing.T) {
	for _, engine := range Engines() {
		p := NewPair(t, Options{Engine: engine})
		n := newNaive(p)
		for i := range 40 {
			path := paths[i%2]
			_, d := n.ask(path, bodyOf(path, fmt.Sprintf("%s my key is K%02dé. my key is", strings.Repeat("x ", i), i)), i%4 < 2, 6)
			if got := textOf(d); d.status != 200 || got != fmt.Sprintf(" K%02dé", i) && got != fmt.Sprintf(" K%02d\ufffd", i) {
				t.Errorf("%s %d: %q: %s", engine, i, got, d.body)
			}
		}
		if len(p.Violations())+len(p.Leaks()) > 0 {
			t.Error(engine, p.Violations(), p.Leaks())
		}
	}
}

func TestLiesAreTimed(t *testing.T) {
	p := NewPair(t, Options{Engine: Plain})
	n := newNaive(p)
	p.Tell(Lie{Kind: actor.Unavailable, Leg: actor.Both, Every: 3, Times: 2})
	got := ""
	for range 12 {
		_, d := n.ask(paths[1], bodyOf(paths[1], "abcabc"), false, 2)
		got += fmt.Sprint(d.status / 100)
	}
	if got != "225225222222" {
		t.Error(got)
	}
	for _, s := range []string{"decode:stale-pages", "prefill:count-one,stale,every=3,times=2,wait=1s,host=10.0.0.1"} {
		l, err := actor.ParseLie(s)
		if err != nil || l.Kind == "" || strings.Contains(s, "every") && (l.Every != 3 || l.Times != 2 || l.Wait != time.Second || !l.Stale || l.Host != "10.0.0.1") {
			t.Errorf("%s: %+v, %v", s, l, err)
		}
	}
	for _, s := range []string{"", "decode", "decode:none", "prefill:no-done", "nobody:failed", "decode:failed,what", "decode:failed,every=x"} {
		if _, err := actor.ParseLie(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
	if err := actor.Explain(io.Discard); err != nil {
		t.Error(err)
	}
}

// An empty success is empty on every engine, in every kind of reply: no text, no finish reason, no tokens counted, and a good end.
func TestAnEmptySuccessIsEmpty(t *testing.T) {
	for _, engine := range []string{Plain, PlainSGLang} {
		p := NewPair(t, Options{Engine: engine})
		p.Tell(Lie{Kind: actor.Empty, Leg: actor.Both})
		for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			for path, prompt := range map[string]string{"/v1/completions": `"prompt":"ab ab"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"ab ab"}]`} {
				resp, err := http.Post(p.Decode.URL()+path, "application/json", strings.NewReader(`{"model":"recall","max_tokens":4,`+prompt+stream+`}`))
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				got := string(b)
				if resp.StatusCode != 200 || strings.Contains(got, `"text"`) || strings.Contains(got, `"content":"a`) || strings.Contains(got, `"finish_reason":"`) || !strings.Contains(got, `"completion_tokens":0`) {
					t.Errorf("%s %s%s: %d %s", engine, path, stream, resp.StatusCode, got)
				}
				if stream != "" && !strings.HasSuffix(got, "data: [DONE]\n\n") {
					t.Errorf("%s %s: no end: %s", engine, path, got)
				}
			}
		}
	}
}
