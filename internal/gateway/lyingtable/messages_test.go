package lyingtable

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
)

// speaker is a plain worker of somebody else's that answers /v1/messages, and nothing else, with what it was told to say.
type speaker struct {
	events []string
	whole  string
	status int
	cut    bool          // the connection, before the last event
	heard  chan struct{} // closed once the client has read of the stream: what is honest has left before the lie
}

func (s *speaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.URL.Path != "/v1/messages" {
		http.NotFound(w, r)
		return
	}
	if !strings.Contains(string(body), `"stream":true`) || s.status != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(max(s.status, 200))
		io.WriteString(w, s.whole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for i, e := range s.events {
		if s.cut && i == len(s.events)-1 {
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, kind, _ := strings.Cut(e, `"type":"`)
		kind, _, _ = strings.Cut(kind, `"`)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, e)
		http.NewResponseController(w).Flush()
		if s.heard != nil && strings.Contains(e, own) {
			select {
			case <-s.heard:
			case <-r.Context().Done():
			case <-time.After(10 * time.Second): // it is held: the test says so
			}
		}
	}
}

const (
	mStart = `{"type":"message_start","message":{"id":"msg_a","type":"message","role":"assistant","content":[],"model":"recall","usage":{"input_tokens":70,"output_tokens":0}}}`
	mBlock = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	mStop  = `{"type":"content_block_stop","index":0}`
	mDelta = `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":70,"output_tokens":3}}`
	mEnd   = `{"type":"message_stop"}`
	mFails = `{"type":"error","error":{"type":"internal_error","message":"` + secret + `"}}`
)

func mText(text string) string {
	return `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + text + `"}}`
}

func mWhole(text string) string {
	return `{"id":"msg_a","type":"message","role":"assistant","content":[{"type":"text","text":"` + text + `"}],"model":"recall","stop_reason":"end_turn","usage":{"input_tokens":70,"output_tokens":3}}`
}

// spoken are a message's lies, streamed (events) or whole. An honest text leaves before those that show at a stream's end alone.
var spoken = []struct {
	name   string
	says   speaker
	status int // of a reply of which nothing had left; 200: the stream had begun honestly
	guard  string
}{
	{"a second start", speaker{events: []string{mStart, mBlock, mStart, mText(secret), mStop, mDelta, mEnd}}, 502, "wire"},
	{"another attempt's", speaker{events: []string{strings.Replace(mStart, "msg_a", "msg_slc-0000", 1), mBlock, mText(secret), mStop, mDelta, mEnd}}, 502, "wire"},
	{"no start", speaker{events: []string{mBlock, mText(secret), mStop, mDelta, mEnd}}, 502, "wire"},
	{"a block that was not begun", speaker{events: []string{mStart, mText(secret), mStop, mDelta, mEnd}}, 502, "wire"},
	{"a block out of order", speaker{events: []string{mStart, strings.Replace(mBlock, "0", "1", 1), strings.Replace(mText(secret), "0", "1", 1), mStop, mDelta, mEnd}}, 502, "wire"},
	{"the counts differ", speaker{events: []string{mStart, mBlock, mText(own), mStop, strings.Replace(mDelta, "70", "71", 1), mEnd}}, 200, "prompt-agree"},
	{"no counts", speaker{events: []string{strings.Replace(mStart, "70", "0", 1), mBlock, mText(own), mStop, strings.Replace(mDelta, `"input_tokens":70,`, "", 1), mEnd}}, 200, "wire"},
	{"more tokens than were asked for", speaker{events: []string{mStart, mBlock, mText(own), mStop, strings.Replace(mDelta, `:3`, ":9", 1), mEnd}}, 200, "wire"},
	{"an empty success", speaker{events: []string{mStart, strings.Replace(mDelta, `:3`, ":0", 1), mEnd}}, 502, "wire"},
	{"no stop reason", speaker{events: []string{mStart, mBlock, mText(own), mStop, strings.Replace(mDelta, `"stop_reason":"end_turn"`, "", 1), mEnd}}, 200, "finish"},
	{"no delta", speaker{events: []string{mStart, mBlock, mText(own), mStop, mEnd}}, 200, "wire"},
	{"text behind the stop reason", speaker{events: []string{mStart, mBlock, mText(own), mDelta, mText(secret), mStop, mEnd}}, 200, "wire"},
	{"no end", speaker{events: []string{mStart, mBlock, mText(own), mStop, mDelta}}, 200, "wire"},
	{"a cut", speaker{events: []string{mStart, mBlock, mText(own), mStop, mDelta, mEnd}, cut: true}, 200, "answered"},
	{"an error amid", speaker{events: []string{mStart, mBlock, mText(own), mStop, mFails, mEnd}}, 200, "answered"},
	{"an error at once", speaker{events: []string{mFails}}, 502, "answered"},
	{"a whole body for a stream", speaker{status: 200, whole: mWhole(secret), events: []string{}}, 502, "wire"},

	{"whole: another attempt's", speaker{whole: strings.Replace(mWhole(secret), "msg_a", "msg_slc-0000", 1)}, 502, "wire"},
	{"whole: no counts", speaker{whole: strings.Replace(mWhole(secret), `"input_tokens":70,`, "", 1)}, 502, "wire"},
	{"whole: an empty success", speaker{whole: strings.Replace(mWhole(secret), `:3`, ":0", 1)}, 502, "wire"},
	{"whole: more tokens than were asked for", speaker{whole: strings.Replace(mWhole(secret), `:3`, ":9", 1)}, 502, "wire"},
	{"whole: no stop reason", speaker{whole: strings.Replace(mWhole(secret), `"stop_reason":"end_turn",`, "", 1)}, 502, "finish"},
	{"whole: no block", speaker{whole: strings.Replace(mWhole(secret), `{"type":"text",`, "{", 1)}, 502, "wire"},
	{"whole: an error", speaker{whole: mFails}, 502, "wire"},
	{"whole: more behind", speaker{whole: mWhole(secret) + mWhole(secret)}, 502, "wire"},
	{"whole: a status", speaker{status: 500, whole: mFails}, 502, "answered"},
}

func tellMessage(t *testing.T, says *speaker, mode gateway.Mode, stream bool) (got, *gateway.Gateway) {
	t.Helper()
	srv := httptest.NewServer(says)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	g := door(t, &pair{engine: foreign.Plain, prefill: srv, decode: srv}, mode, func(c *gateway.Config) { c.Models[0].Guarded.Messages = true })
	body := fmt.Sprintf(`{"model":"recall","max_tokens":8,"messages":[{"role":"user","content":"hello"}],"stream":%v}`, stream)
	resp, err := http.Post("http://"+g.Addr()+"/v1/messages", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 1)
	n, _ := io.ReadFull(resp.Body, first)
	if says.heard != nil {
		close(says.heard)
	}
	b, _ := io.ReadAll(resp.Body)
	return got{resp.StatusCode, string(first[:n]) + string(b), resp.Header}, g
}

// A message of somebody else's worker that lies: no byte of what is foreign, an error that clients of this API read as one, the
// incident named; and while guards observe, the same incidents.
func TestLyingMessages(t *testing.T) {
	for _, r := range spoken {
		stream := r.says.events != nil || r.says.status == 200
		for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
			t.Run(fmt.Sprintf("%s/%s", r.name, mode), func(t *testing.T) {
				t.Parallel()
				says := r.says
				if r.status == 200 {
					says.heard = make(chan struct{})
				}
				a, g := tellMessage(t, &says, mode, stream)
				if mode == gateway.Enforce {
					wrong := a.status != r.status || r.status == 200 && !strings.Contains(a.body, own) || strings.Contains(a.body, secret) || strings.Contains(a.body, "message_stop")
					want := `{"type":"error","error":{"type":"api_error","message":"`
					if a.status == 200 {
						want = "event: error\ndata: " + want
					}
					if wrong || !strings.Contains(a.body, want) || a.status != 200 && !strings.HasPrefix(a.body, want) {
						t.Errorf("%d %s", a.status, a.body)
					}
				} else if says.status < 400 && !says.cut && a.status != 200 {
					t.Errorf("the bytes did not pass: %d %s", a.status, a.body)
				}
				if !incidents(t, g, r.guard, mode.String()) {
					t.Errorf("no incident of %s:\n%s", r.guard, admin(t, g, "/admin/incidents"))
				}
			})
		}
	}
}

// An honest one passes byte for byte, though the worker counts for nobody; more behind its end does not.
func TestHonestMessagesPass(t *testing.T) {
	events := []string{mStart, mBlock, mText(own), mStop, mDelta, mEnd}
	for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
		for _, stream := range []bool{false, true} {
			a, g := tellMessage(t, &speaker{events: events, whole: mWhole(own)}, mode, stream)
			want := mWhole(own)
			if stream {
				want = ""
				for _, e := range events {
					kind, _, _ := strings.Cut(e[len(`{"type":"`):], `"`)
					want += "event: " + kind + "\ndata: " + e + "\n\n"
				}
			}
			if a.status != 200 || a.body != want {
				t.Errorf("%s: %d %s", mode, a.status, a.body)
			}
			time.Sleep(time.Millisecond)
			if m := admin(t, g, "/metrics"); strings.Contains(m, "sluice_incidents_total{") {
				t.Errorf("a false alarm: %s", admin(t, g, "/admin/incidents"))
			}
		}
	}
	a, g := tellMessage(t, &speaker{events: append(slices.Clone(events), mText(secret))}, gateway.Enforce, true)
	if strings.Contains(a.body, secret) || !incidents(t, g, "wire", "enforce") {
		t.Errorf("%d %s", a.status, a.body)
	}
}
