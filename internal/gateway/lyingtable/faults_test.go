package lyingtable

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gateway"
)

// raw has a leg answer with bytes of its own making; decode's text is another tenant's.
func raw(t *testing.T, p *pair, leg string, answer func(w *bufio.Writer, path string)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				io.Copy(io.Discard, r.Body)
				if !strings.HasPrefix(r.URL.Path, "/v1/c") {
					io.WriteString(c, "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
					return
				}
				w := bufio.NewWriter(c)
				answer(w, r.URL.Path)
				w.Flush()
			}()
		}
	}()
	s := p.prefill
	if leg == "decode" {
		s = p.decode
	}
	s.URL = "http://" + l.Addr().String()
}

func head(status int, more string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\nConnection: close\r\n%s\r\n", status, more)
}

func body(path string) string {
	b, _ := json.Marshal(answer(strings.Contains(path, "chat"), "x", secret, "length", 70, 1))
	return string(b)
}

// What no HTTP server should send: none of it is read as an answer, none of the text leaves, and the incident is named.
var garbled = map[string]func(w *bufio.Writer, path string){
	"no HTTP":     func(w *bufio.Writer, path string) { fmt.Fprint(w, "\x00\xff\x17"+body(path)) },
	"nothing":     func(*bufio.Writer, string) {},
	"half a head": func(w *bufio.Writer, _ string) { fmt.Fprint(w, "HTTP/1.1 200 OK\r\nContent-Le") },
	"two lengths": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, head(200, "Content-Length: 10\r\nContent-Length: 900\r\n")+body(path))
	},
	"less than its length": func(w *bufio.Writer, path string) { fmt.Fprint(w, head(200, "Content-Length: 9000\r\n")+body(path)) },
	"a chunk's size is none": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, head(200, "Transfer-Encoding: chunked\r\n")+"zz\r\n"+body(path)+"\r\n0\r\n\r\n")
	},
	"a chunk of all memory": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, head(200, "Transfer-Encoding: chunked\r\n")+"FFFFFFFFFFFFFFFF\r\n"+body(path))
	},
	"chunks that just end": func(w *bufio.Writer, path string) {
		b := body(path)
		fmt.Fprintf(w, "%s%x\r\n%s\r\n", head(200, "Transfer-Encoding: chunked\r\n"), len(b), b)
	},
	"headers of megabytes": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, head(200, "X: "+strings.Repeat("a", 4<<20)+"\r\n")+body(path))
	},
	"a million headers": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, head(200, strings.Repeat("X: a\r\n", 1<<20))+body(path))
	},
	"compressed": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, head(200, "Content-Encoding: gzip\r\n"))
		z := gzip.NewWriter(w)
		io.WriteString(z, body(path))
		z.Close()
	},
	"a compressed bomb": func(w *bufio.Writer, _ string) {
		fmt.Fprint(w, head(200, "Content-Encoding: gzip\r\n"))
		z := gzip.NewWriter(w)
		z.Write(make([]byte, 8<<20))
		z.Close()
	},
	"a switch of protocols": func(w *bufio.Writer, path string) {
		fmt.Fprint(w, "HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"+body(path))
	},
	"more behind its end":     func(w *bufio.Writer, path string) { fmt.Fprint(w, head(200, "")+body(path)+body(path)) },
	"an answer to HTTP/0.9":   func(w *bufio.Writer, path string) { fmt.Fprint(w, body(path)) },
	"informed without an end": func(w *bufio.Writer, _ string) { fmt.Fprint(w, strings.Repeat("HTTP/1.1 103 X\r\n\r\n", 100000)) },
}

func TestGarbledAnswers(t *testing.T) {
	for _, engine := range engines {
		for _, leg := range []string{"prefill", "decode"} {
			t.Run(engine+"/"+leg, func(t *testing.T) {
				t.Parallel()
				for name, answer := range garbled {
					p := workers(t, engine)
					if p.lie.text = secret; leg == "decode" {
						p.lie.text = own
					}
					raw(t, p, leg, answer)
					g := door(t, p, gateway.Enforce, nil)
					for _, stream := range []bool{false, true} {
						a := ask(t, g, stream, stream, "")
						if a.status != 502 || strings.Contains(a.body, secret) || strings.Contains(a.body, "[DONE]") || strings.Contains(fmt.Sprint(a.header), secret) {
							t.Errorf("%s: %d %.300s", name, a.status, a.body)
						}
					}
					if s := admin(t, g, "/admin/incidents"); !strings.Contains(s, `"guard"`) {
						t.Errorf("%s: no incident", name)
					}
				}
			})
		}
	}
}

// A redirect is an answer that is none: it is not followed, and the prompt goes nowhere else.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var hits atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		fmt.Fprint(w, body(r.URL.Path))
	}))
	defer elsewhere.Close()
	for _, engine := range engines {
		for _, leg := range []string{"prefill", "decode"} {
			for _, status := range []int{301, 302, 303, 307, 308} {
				p := workers(t, engine)
				raw(t, p, leg, func(w *bufio.Writer, path string) {
					fmt.Fprint(w, head(status, "Location: "+elsewhere.URL+path+"\r\nContent-Length: 0\r\n"))
				})
				if a := ask(t, door(t, p, gateway.Enforce, nil), true, false, ""); a.status != 502 {
					t.Errorf("%s %s %d: %d %s", engine, leg, status, a.status, a.body)
				}
			}
		}
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

const (
	sglangLong = "Input length (1500 tokens) exceeds the maximum allowed length (1018 tokens). Use a shorter input or enable --allow-auto-truncate."
	vllmLong   = "This model's maximum context length is 1024 tokens. However, you requested 8 output tokens and your prompt contains at least 1500 input tokens"
)

// Every shape of error that SGLang and vLLM are known to answer with, from prefill, while decode answers with another tenant's text: the
// client gets the refusal, in OpenAI's shape, in nobody's words but ours.
func TestErrorShapes(t *testing.T) {
	type shape struct {
		name, body string
		status     int
		want       int
		code       string
	}
	shapes := []shape{
		{"SGLang, OpenAI paths, flat", `{"object":"error","message":"` + sglangLong + `","type":"BadRequestError","param":null,"code":400}`, 400, 400, "context_length_exceeded"},
		{"SGLang, generate", `{"error":{"message":"` + sglangLong + `"}}`, 400, 400, "context_length_exceeded"},
		{"SGLang, in band of a stream", `{"error":{"object":"error","message":"` + sglangLong + `","type":"BAD_REQUEST","param":null,"code":400}}`, 200, 400, "context_length_exceeded"},
		{"SGLang, in band, flat", `{"object":"error","message":"` + sglangLong + `","type":"BadRequestError","param":null,"code":400}`, 200, 400, "context_length_exceeded"},
		{"SGLang, unexpected", `{"object":"error","message":"Internal server error: /opt/secret/path","type":"InternalServerError","param":null,"code":500}`, 500, 502, "engine_failed"},
		{"SGLang, detail", `{"detail":"aborted"}`, 500, 502, "engine_failed"},
		{"SGLang, busy", `{"detail":"queue is full"}`, 503, 503, "overloaded"},
		{"SGLang, validation with paths", `{"object":"error","message":"1 validation error:\n  /opt/secret/path","type":"Bad Request","code":400}`, 400, 400, "invalid_request_error"},
		{"vLLM", `{"error":{"message":"` + vllmLong + `","type":"BadRequestError","param":"input_tokens","code":400}}`, 400, 400, "context_length_exceeded"},
		{"vLLM, by max model len", `{"error":{"message":"Input length (1500) exceeds model's maximum context length (1024).","type":"BadRequestError","param":null,"code":400}}`, 400, 400, "context_length_exceeded"},
		{"vLLM before 2025-08, flat", `{"object":"error","message":"` + vllmLong + `","type":"BadRequestError","code":400}`, 400, 400, "context_length_exceeded"},
		{"vLLM, path or method", `{"detail":"Not Found"}`, 404, 502, "engine_failed"},
		{"vLLM, load failed in a stream", `{"error":{"message":"boom","type":"InternalServerError","code":500}}`, 200, 502, "engine_failed"},
		{"vLLM, engine dead", `{"object":"error","message":"EngineCore encountered an issue","type":"InternalServerError","code":500}`, 500, 502, "engine_failed"},
		{"a proxy's page", `<html>502</html>`, 502, 502, "engine_failed"},
		{"nothing", ``, 400, 400, "invalid_request_error"},
		{"abort with an odd status", `{"error":{"message":"aborted","code":499}}`, 200, 502, "engine_failed"},
	}
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			p := workers(t, engine)
			g := door(t, p, gateway.Enforce, nil)
			for _, s := range shapes {
				for _, stream := range []bool{false, true} {
					p.tell(lie{text: secret, prefill: sends(s.status, s.body)})
					a := ask(t, g, stream, stream, "")
					if a.status != s.want || !strings.Contains(a.body, s.code) || strings.Contains(a.body, secret) || strings.Contains(a.body, "/opt/") || strings.Contains(a.body, "1500") {
						t.Errorf("%s: %d %s", s.name, a.status, a.body)
					}
				}
			}
		})
	}
}

// The attacks that were run on a sidecar in front of PD pairs, and got through there (all but the fifth).
func TestSidecarAttacks(t *testing.T) {
	one := func(_ http.ResponseWriter, a map[string]any) bool {
		a["usage"] = map[string]any{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
		return false
	}
	long := sends(400, `{"error":{"message":"Input length exceeds the maximum allowed length"}}`)
	for _, c := range []struct {
		name, engine string
		lie          lie
		extra        string
		status       int
		guard        string // "": the client's fault
		rests        bool
	}{
		{"1: SGLang, prefill computed one token", sg, lie{text: secret, prefill: one}, "", 502, "prompt-agree", true},
		{"2: SGLang, prefill refuses and decode answers", sg, lie{text: secret, prefill: long}, "", 400, "prefill-verdict", true},
		{"3: NIXL, prefill computed one token, valid handle", nixl, lie{text: secret, prefill: one}, "", 502, "prefill-handle", true},
		{"4: NIXL, no handle", nixl, lie{text: secret, prefill: set("kv_transfer_params", nil)}, "", 502, "prefill-handle", true},
		{"5: NIXL, prefill refuses", nixl, lie{text: secret, prefill: long}, "", 400, "admission", false},
		{"6: a client's handle", nixl, lie{text: secret}, `,"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[41,42]]}`, 400, "", false},
	} {
		for _, stream := range []bool{false, true} {
			p := workers(t, c.engine)
			p.lie = c.lie
			g := door(t, p, gateway.Enforce, nil)
			a := ask(t, g, true, stream, c.extra)
			if a.status != c.status || strings.Contains(a.body, secret) {
				t.Errorf("%s: %d %s", c.name, a.status, a.body)
			}
			if c.guard != "" && !incidents(t, g, c.guard, "enforce") {
				t.Errorf("%s: no incident of %s: %s", c.name, c.guard, admin(t, g, "/admin/incidents"))
			}
			for _, r := range p.seen() {
				if r.leg == "decode" && (c.name[0] > '3' || strings.Contains(r.raw, "41,42")) {
					t.Errorf("%s: decode was asked: %s", c.name, r.raw)
				}
			}
			if rested := !strings.Contains(admin(t, g, "/admin/fleet"), `"rested": 0`); rested != c.rests {
				t.Errorf("%s: the pair rested: %v", c.name, rested)
			}
		}
	}
}

// A client that sends what engines refuse, in every way it can think of, takes no pair from others.
func TestOddClientsEjectNobody(t *testing.T) {
	for _, engine := range engines {
		p := workers(t, engine)
		refuses := sends(400, `{"object":"error","message":"bad parameter","code":400}`)
		p.lie = lie{prefill: func(w http.ResponseWriter, a map[string]any) bool { time.Sleep(time.Millisecond); return refuses(w, a) }, status: 400}
		g := door(t, p, gateway.Enforce, nil)
		for _, extra := range []string{`,"temperature":-1`, `,"top_p":7`, `,"logit_bias":{"x":1}`, `,"stop":[]`, `,"max_tokens":-3`, `,"stream":"yes"`, `,"user":7`, `,"response_format":{"type":"nonsense"}`,
			`,"tools":[{}]`, `,"stream_options":7`, `,"n":0`, `,"\ud800":1`, `,"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500)} {
			for _, stream := range []bool{false, true} {
				if a := ask(t, g, true, stream, extra); a.status != 400 {
					t.Errorf("%s %s: %d %s", engine, extra, a.status, a.body)
				}
			}
		}
		s := admin(t, g, "/admin/fleet")
		if !strings.Contains(s, `"rested": 0`) {
			t.Errorf("%s: a pair rests: %s", engine, s)
		}
		if m := admin(t, g, "/metrics"); strings.Contains(m, "sluice_incidents_total{") {
			t.Errorf("%s: incidents: %s", engine, admin(t, g, "/admin/incidents"))
		}
		p.tell(lie{})
		if a := ask(t, g, true, false, ""); a.status != 200 {
			t.Errorf("%s: an honest client got %d %s", engine, a.status, a.body)
		}
	}
}

// Compressed bodies are refused unread, headers have a bound, and a head that never ends is not waited for by anybody but its sender.
func TestBodiesAndHeadsOfClients(t *testing.T) {
	t.Parallel()
	p := workers(t, sg)
	g := door(t, p, gateway.Enforce, nil)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	z.Write(make([]byte, 8<<20))
	z.Close()
	for _, coding := range []string{"gzip", "br", "deflate", "zstd", "identity, gzip"} {
		req, _ := http.NewRequest(http.MethodPost, "http://"+g.Addr()+"/v1/completions", bytes.NewReader(bomb.Bytes()))
		req.Header.Set("Content-Encoding", coding)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue // the connection was closed on it
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 400 || resp.StatusCode >= 500 || !bytes.Contains(b, []byte(`"error"`)) {
			t.Errorf("%s: %d %s", coding, resp.StatusCode, b)
		}
	}
	req, _ := http.NewRequest(http.MethodPost, "http://"+g.Addr()+"/v1/completions", strings.NewReader(`{"model":"recall","prompt":"x"}`))
	req.Header.Set("X", strings.Repeat("a", 2<<20))
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("headers of 2 MiB: %d", resp.StatusCode)
		}
	}
	var slow []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		slow = append(slow, c)
	}
	if a := ask(t, g, true, false, ""); a.status != 200 {
		t.Errorf("beside slow heads: %d %s", a.status, a.body)
	}
	for _, c := range slow {
		c.Close()
	}
	if n := len(p.seen()); n != 2 {
		t.Errorf("%d legs were asked", n)
	}
}
