package vllm

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

const attemptID = "slc-00112233445566778899aabbccddeeff"

// handle as vLLM 0.32 gives it out.
const handle = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[4,5,6]],"remote_engine_id":"8a911c63-5675-42bc-af3c-bcac35e210f7",` +
	`"remote_request_id":"chatcmpl-` + attemptID + `-b7b5b9cd","remote_host":"127.0.0.1","remote_port":15600,"tp_size":1,"dcp_size":1,"pp_size":1,` +
	`"remote_num_tokens":91,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}`

func asked(t testing.TB, w foreign.Worker) web.Asked {
	t.Helper()
	w.URL = &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	w.Role, w.PoolTokens, w.Context = capacity.Prefill, 4096, 4096
	d := foreign.Worker{Role: capacity.Decode, URL: &url.URL{Scheme: "http", Host: "127.0.0.1:2"}, PoolTokens: 4096, Context: 4096, PageSize: w.PageSize}
	f, err := foreign.New(foreign.Config{Engine: foreign.VLLMNixl, Workers: []foreign.Worker{w, d}, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	pair, v := f.Pick(foreign.Need{Tokens: 1})
	if !v.IsZero() {
		t.Fatal(v)
	}
	return web.Asked{ID: attemptID, Pair: pair, Lease: 20 * time.Second}
}

// Each clause that a handle must meet, broken alone.
func TestHandleIsOursOnlyWhole(t *testing.T) {
	for name, c := range map[string]struct {
		old, new string
		worker   foreign.Worker
		age      time.Duration
		state    legs.HandleState
		why      string
	}{
		"as it was given":                    {state: legs.Ours},
		"no longer young":                    {age: 21 * time.Second, state: legs.Stale, why: "too long"},
		"still young":                        {age: 19 * time.Second, state: legs.Ours},
		"expired by its own word":            {old: `"remote_blocks_expiry_time":null`, new: `"remote_blocks_expiry_time":1700000000.5`, state: legs.Stale, why: "expiry"},
		"another attempt's":                  {old: "ccddeeff-", new: "ccddee00-", state: legs.Stale, why: "another attempt"},
		"no object":                          {old: handle, new: `[]`, state: legs.Missing},
		"null":                               {old: handle, new: `null`, state: legs.Missing},
		"empty":                              {old: handle, new: `{}`, state: legs.Foreign, why: "remote_engine_id"},
		"not to be read":                     {old: `"do_remote_prefill":true`, new: `"do_remote_prefill":false`, state: legs.Foreign, why: "do_remote_prefill"},
		"a text for true":                    {old: `"do_remote_prefill":true`, new: `"do_remote_prefill":"true"`, state: legs.Foreign, why: "do_remote_prefill"},
		"to be decoded remotely":             {old: `"do_remote_decode":false`, new: `"do_remote_decode":true`, state: legs.Foreign, why: "do_remote_decode"},
		"no engine":                          {old: `"remote_engine_id":"8a911c63-5675-42bc-af3c-bcac35e210f7"`, new: `"remote_engine_id":null`, state: legs.Foreign, why: "engine"},
		"no blocks":                          {old: `[[4,5,6]]`, new: `[[]]`, state: legs.Foreign, why: "blocks"},
		"blocks that are none":               {old: `[[4,5,6]]`, new: `[[4,-5,6]]`, state: legs.Foreign, why: "blocks"},
		"blocks in two shapes":               {old: `[[4,5,6]]`, new: `[4,[5,6]]`, state: legs.Foreign, why: "blocks"},
		"another count":                      {old: `"remote_num_tokens":91`, new: `"remote_num_tokens":90`, state: legs.Foreign, why: "remote_num_tokens"},
		"a count that is no number":          {old: `"remote_num_tokens":91`, new: `"remote_num_tokens":"91"`, state: legs.Foreign, why: "remote_num_tokens"},
		"another host":                       {old: "127.0.0.1", new: "192.0.2.9", state: legs.Foreign, why: "remote_host"},
		"no host":                            {old: `"remote_host":"127.0.0.1",`, new: ``, state: legs.Foreign, why: "remote_host"},
		"a host beside the known one":        {old: `"tp_size":1`, new: `"remote_host_ip":"192.0.2.9"`, state: legs.Foreign, why: "remote_host_ip"},
		"a host in a member of a member":     {old: `"tp_size":1`, new: `"more":{"remote_host":"192.0.2.9"}`, state: legs.Foreign, why: "remote_host"},
		"a host in a list":                   {old: `"tp_size":1`, new: `"peer_hosts":["kv.example"]`, state: legs.Foreign, why: "not the worker's"},
		"an address by another name":         {old: `"tp_size":1`, new: `"peer":"192.0.2.9:5600"`, state: legs.Foreign, why: "not the worker's"},
		"a URL by another name":              {old: `"tp_size":1`, new: `"peer":"tcp://kv.example:5600"`, state: legs.Foreign, why: "not the worker's"},
		"a name that is no address":          {old: `"tp_size":1`, new: `"peer":"rank:0"`, state: legs.Ours},
		"a port in digits":                   {old: "15600", new: `"15600"`, state: legs.Ours},
		"no word of being read":              {old: `"do_remote_prefill":true,`, new: ``, state: legs.Ours},
		"larger than its prompt":             {old: `"tp_size":1`, new: `"x":"` + strings.Repeat("a", 80<<10) + `"`, state: legs.Foreign, why: "larger"},
		"one list, of a version that groups": {old: `[[4,5,6]]`, new: `[4,5,6]`, worker: foreign.Worker{Version: "0.32.0"}, state: legs.Foreign, why: "one list"},
		"one list, of who knows what":        {old: `[[4,5,6]]`, new: `[4,5,6]`, state: legs.Ours},
		"another port than the pinned":       {worker: foreign.Worker{KVPort: 15601}, state: legs.Foreign, why: "remote_port"},
		"the pinned port":                    {worker: foreign.Worker{KVPort: 15600}, state: legs.Ours},
		"another port in capitals":           {old: `"remote_port"`, new: `"REMOTE_PORT"`, worker: foreign.Worker{KVPort: 15601}, state: legs.Foreign, why: "remote_port"},
		"a port that is a word":              {old: "15600", new: `"x15600"`, state: legs.Foreign, why: "remote_port"},
		"a port over all":                    {old: "15600", new: "65536", state: legs.Foreign, why: "remote_port"},
		"the last port":                      {old: "15600", new: "65535", state: legs.Ours},
		"the first port":                     {old: "15600", new: "1", state: legs.Ours},
		"a bare address by another name":     {old: `"tp_size":1`, new: `"peer":"192.0.2.9"`, state: legs.Foreign, why: "not the worker's"},
		"a bare address in brackets":         {old: `"tp_size":1`, new: `"peer":"[2001:db8::9]"`, state: legs.Foreign, why: "not the worker's"},
		"this machine's name and a port":     {old: `"tp_size":1`, new: `"peer":"LOCALHOST:5600"`, state: legs.Ours},
		"a place that is not said":           {old: `"tp_size":1`, new: `"remote_addr":null`, state: legs.Ours},
		"the worker's own URL":               {old: `"tp_size":1`, new: `"remote_url":"http://127.0.0.1/kv"`, state: legs.Ours},
		"the worker's own address and port":  {old: `"tp_size":1`, new: `"peer":"127.0.0.1:5600"`, state: legs.Ours},
		"a place that is a number":           {old: `"tp_size":1`, new: `"remote_host_ip":2130706433`, state: legs.Foreign, why: "remote_host_ip"},
		"a name that a log should not have":  {old: `"tp_size":1`, new: `"remote_host9":"192.0.2.9"`, state: legs.Foreign, why: "a member is not"},
		"a long name":                        {old: `"tp_size":1`, new: `"remote_host_` + strings.Repeat("a", 40) + `":"192.0.2.9"`, state: legs.Foreign, why: "a member is not"},
		"a port that is none":                {old: "15600", new: "0", state: legs.Foreign, why: "remote_port"},
		"a pinned host":                      {old: "127.0.0.1", new: "kv-7.internal", worker: foreign.Worker{KVHosts: []string{"KV-7.internal"}}, state: legs.Ours},
		"another than the pinned hosts":      {worker: foreign.Worker{KVHosts: []string{"kv-7.internal"}}, state: legs.Foreign, why: "remote_host"},
		"too few blocks for the count":       {worker: foreign.Worker{PageSize: 16}, state: legs.Foreign, why: "too few"},
	} {
		a := asked(t, c.worker)
		h := handle
		if c.old != "" {
			h = strings.Replace(handle, c.old, c.new, 1)
			if h == handle {
				t.Fatalf("%s: nothing was replaced", name)
			}
		}
		doc, no := jsonedit.Read(fmt.Appendf(nil, `{"usage":{"prompt_tokens":91},"kv_transfer_params":%s}`, h), nil)
		if no != nil {
			t.Fatal(no)
		}
		got := new(Engine).judge(a, a.Pair.Prefill.Era(), doc, doc.Get("kv_transfer_params"), c.age)
		if got.State != c.state || !strings.Contains(got.Why, c.why) || strings.Contains(got.Why, "192.0.2.9") {
			t.Errorf("%s: %v %q", name, got.State, got.Why)
		}
	}
}

// Prefill makes one token, by whatever name the client bounds its own, and nothing of the client's can end it before.
func TestPrefillIsAskedForOneToken(t *testing.T) {
	a := asked(t, foreign.Worker{})
	for more, want := range map[string]string{
		``: `"max_tokens":1`,
		`,"max_tokens":50,"min_tokens":5,"stop":["a"],"stop_token_ids":[1],"echo":true,"stream":true,"logprobs":3`: `"max_tokens":1`,
		`,"max_completion_tokens":50`: `"max_completion_tokens":1`,
	} {
		doc, no := jsonedit.Read([]byte(`{"model":"m","prompt":"p"`+more+`}`), nil)
		if no != nil {
			t.Fatal(no)
		}
		a.Doc = doc
		for name, p := range map[string]web.Plan{"nixl": new(Engine).Nixl(a), "mooncake": new(Engine).Mooncake(a)} {
			body := string(p.Prefill.Body.AppendTo(nil))
			if !strings.Contains(body, want) || strings.Contains(body, ":50") || strings.Contains(body, `"stream":true`) {
				t.Errorf("%s, %s: %s", name, more, body)
			}
			for _, gone := range []string{"min_tokens", `"stop"`, "stop_token_ids", "echo", "logprobs"} {
				if strings.Contains(body, gone) {
					t.Errorf("%s, %s: %s has %s", name, more, body, gone)
				}
			}
		}
	}
}

// Mooncake's transfer is minted here: what prefill says of it must be that one, and point to nobody else.
func TestWhatPrefillSaysOfAMooncakeTransfer(t *testing.T) {
	a := asked(t, foreign.Worker{})
	a.Doc, _ = jsonedit.Read([]byte(`{"model":"m","prompt":"p"}`), nil)
	p := new(Engine).Mooncake(a)
	body := string(p.Decode.Body.AppendTo(nil))
	at := strings.Index(body, "xfer-")
	if at < 0 || !strings.Contains(body, `"remote_bootstrap_addr":"http://127.0.0.1:8998"`) {
		t.Fatal(body)
	}
	id := body[at : at+len("xfer-")+32]
	for answer, want := range map[string]legs.Handle{
		`{}`:                          {State: legs.Ours},
		`{"kv_transfer_params":null}`: {State: legs.Ours},
		`{"kv_transfer_params":{"transfer_id":null}}`:                                              {State: legs.Ours},
		`{"kv_transfer_params":{"transfer_id":"` + id + `"}}`:                                      {State: legs.Ours},
		`{"kv_transfer_params":{"transfer_id":"` + id + `0"}}`:                                     {State: legs.Foreign, Why: "its transfer_id"},
		`{"kv_transfer_params":{"transfer_id":7}}`:                                                 {State: legs.Foreign, Why: "its transfer_id"},
		`{"kv_transfer_params":{"remote_bootstrap_addr":"http://192.0.2.9:8998"}}`:                 {State: legs.Foreign, Why: "remote_bootstrap_addr is not the worker's"},
		`{"kv_transfer_params":{"transfer_id":"` + id + `","remote_host":"192.0.2.9"}}`:            {State: legs.Foreign, Why: "remote_host is not the worker's"},
		`{"kv_transfer_params":{"transfer_id":"` + id + `","remote_host":"127.0.0.1","x":[1,{}]}}`: {State: legs.Ours},
	} {
		doc, no := jsonedit.Read([]byte(answer), nil)
		if no != nil {
			t.Fatal(no)
		}
		if h, call := p.Hand(doc, 0); h.State != want.State || h.Why != want.Why || call != nil {
			t.Errorf("%s: %+v", answer, h)
		}
	}
}

// A name in a handle that no id was minted for tells nothing by itself; beside an answer whose id was made from ours it does.
func TestAHandleOfARequestThatIsNotTheAnswers(t *testing.T) {
	for _, c := range []struct {
		id, names string
		state     legs.HandleState
	}{
		{"chatcmpl-" + attemptID, "chatcmpl-" + attemptID + "-b7b5b9cd", legs.Ours},
		{"chatcmpl-" + attemptID, "chatcmpl-0f1e2d3c-b7b5b9cd", legs.Stale},
		{"chatcmpl-0f1e2d3c", "chatcmpl-0f1e2d3c-b7b5b9cd", legs.Ours},
		{"chatcmpl-0f1e2d3c", "b7b5b9cd", legs.Ours},
		{"", "chatcmpl-0f1e2d3c-b7b5b9cd", legs.Ours},
	} {
		a := asked(t, foreign.Worker{})
		h := strings.Replace(handle, "chatcmpl-"+attemptID+"-b7b5b9cd", c.names, 1)
		doc, no := jsonedit.Read(fmt.Appendf(nil, `{"id":%q,"usage":{"prompt_tokens":91},"kv_transfer_params":%s}`, c.id, h), nil)
		if no != nil {
			t.Fatal(no)
		}
		if got := new(Engine).judge(a, a.Pair.Prefill.Era(), doc, doc.Get("kv_transfer_params"), 0); got.State != c.state {
			t.Errorf("answer %q, handle of %q: %v %q", c.id, c.names, got.State, got.Why)
		}
	}
}

// A handle is good once, whatever attempt shows it again.
func TestHandleIsGoodOnce(t *testing.T) {
	a := asked(t, foreign.Worker{})
	h := strings.Replace(handle, attemptID, "a-name-of-the-engines-own", 1)
	doc, _ := jsonedit.Read(fmt.Appendf(nil, `{"usage":{"prompt_tokens":91},"kv_transfer_params":%s}`, h), nil)
	g := new(Engine)
	if got := g.judge(a, a.Pair.Prefill.Era(), doc, doc.Get("kv_transfer_params"), 0); got.State != legs.Ours {
		t.Fatal(got)
	}
	if got := g.judge(a, a.Pair.Prefill.Era(), doc, doc.Get("kv_transfer_params"), 0); got.State != legs.Stale || got.Why != "it was used before" {
		t.Error(got)
	}
}

// Decode is told what an engine leaves out of its handle, and nothing else is changed.
func TestHandleForDecode(t *testing.T) {
	for h, want := range map[string]string{
		handle:                        handle,
		`{ "remote_engine_id": "x" }`: `{"do_remote_prefill":true, "remote_engine_id": "x" }`,
	} {
		doc, no := jsonedit.Read(fmt.Appendf(nil, `{"kv_transfer_params":%s}`, h), nil)
		if no != nil {
			t.Fatal(no)
		}
		if got := string(whole(doc.Get("kv_transfer_params"))); got != want {
			t.Errorf("%s", got)
		}
	}
}

// prefill is a worker of which it takes a reading to know that it restarted.
type prefill struct{ era, next int64 }

func (p *prefill) Era() int64 { return p.era }
func (p *prefill) Reread()    { p.era = p.next }

// An engine's id is its own until it may have restarted: the first answer of a new process can come before anything else says so.
func TestTheIDOfAnEngine(t *testing.T) {
	var e engines
	p := &prefill{1, 1}
	say := func(asked int64, id string, want bool) {
		t.Helper()
		if got := e.sameOf("p", p, asked, []byte(id)); got != want {
			t.Errorf("asked in era %d, named %s in era %d: %v", asked, id, p.era, got)
		}
	}
	say(1, "a", true)
	say(1, "a_dp1", true)
	say(1, "b", false) // it is the same process: the id is somebody else's
	p.next = 2
	say(1, "b", true) // it was not: asking it shows that
	say(1, "a", true) // the process before had still answered
	say(2, "b", true)
	say(2, "a", false)
	say(1, "a", true) // and that is not taken for the new one's
	say(2, "b", true)
}
