package vllm

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// judge says what a handle is: ours only if it is whole, of this attempt, from the worker that was asked, for as many tokens as
// that worker says it computed, and never seen before. era is the worker's at the time at which it was asked.
func (g *Engine) judge(a web.Asked, era int64, answer *jsonedit.Doc, h jsonedit.Value, age time.Duration) legs.Handle {
	foreign := func(why string) legs.Handle { return legs.Handle{State: legs.Foreign, Why: why} }
	if h.Kind() != jsonedit.Object {
		return legs.Handle{}
	}
	if on, _ := h.Get("do_remote_prefill").Bool(); !on && h.Get("do_remote_prefill").Kind() != jsonedit.Absent {
		return foreign("do_remote_prefill is not true")
	}
	if on, _ := h.Get("do_remote_decode").Bool(); on {
		return foreign("do_remote_decode is true")
	}
	if a.Lease > 0 && age > a.Lease {
		return legs.Handle{State: legs.Stale, Why: "prefill's answer took too long to arrive"}
	}
	engine, ok := h.Get("remote_engine_id").Text()
	if !ok || len(engine) == 0 {
		return foreign("remote_engine_id is missing")
	}
	known := a.Pair.Prefill.Facts()
	blocks, flat, ok := blocksOf(h.Get("remote_block_ids"))
	switch {
	case !ok:
		return foreign("remote_block_ids is not a list of blocks")
	case flat && grouped(known.Version):
		return foreign("remote_block_ids is one list, which this version does not send")
	}
	if why := names(h, a.Pair.Prefill); why != "" {
		return foreign(why)
	}
	if !h.Get("remote_host").Said() {
		return foreign("remote_host is missing")
	}
	computed, _ := answer.Get("usage").Get("prompt_tokens").Int()
	if t := h.Get("remote_num_tokens"); t.Said() {
		if n, ok := t.Int(); !ok || n != computed {
			return foreign("remote_num_tokens is not what prefill says it computed")
		}
	}
	if len(h.Raw()) > roomy+perToken*int(min(computed, 1<<24)) {
		return foreign("it is larger than the prompt accounts for")
	}
	if grouped(known.Version) && !g.engines.same(a.Pair.Prefill, era, engine) {
		return foreign("remote_engine_id is not the one that this worker named before")
	}
	if page := known.PageSize; page > 0 && int64(blocks)*int64(page) < computed {
		return foreign("remote_block_ids has too few blocks")
	}
	if id := h.Get("remote_request_id"); id.Said() {
		text, ok := id.Text()
		if !ok || len(text) == 0 {
			return foreign("remote_request_id is not a name")
		}
		// Engines make their own id from the one that they were given. One that was made here, and is not this attempt's, is another's.
		if web.OfAnother(string(text), a.ID) {
			return legs.Handle{State: legs.Stale, Why: "remote_request_id is another attempt's"}
		}
		// And an engine that made its answer's id from ours makes this one from it, too: another name is another request's, whoever made it.
		if name, _ := answer.Get("id").Text(); web.OfThis(string(name), a.ID) && !web.OfThis(string(text), a.ID) {
			return legs.Handle{State: legs.Stale, Why: "remote_request_id is another attempt's, the answer's id is not"}
		}
		if !g.used.first(engine, text) {
			return legs.Handle{State: legs.Stale, Why: "it was used before"}
		}
	} else if grouped(known.Version) {
		return foreign("remote_request_id is missing")
	}
	if t := h.Get("remote_blocks_expiry_time"); t.Said() {
		// Only a wall clock can be compared with ours.
		if at, ok := t.Float(); ok && at > 1e9 && time.Now().After(time.Unix(int64(at), 0)) {
			return legs.Handle{State: legs.Stale, Why: "remote_blocks_expiry_time has passed"}
		}
	}
	return legs.Handle{State: legs.Ours}
}

// A handle lists a number for each block, of each group of layers.
const (
	roomy    = 64 << 10
	perToken = 32
)

// engines remembers what each prefill calls itself, until it may have restarted. Ranks of one engine differ in an ending.
type engines struct {
	mu   sync.Mutex
	name map[string]engineOf // by worker
}

type engineOf struct {
	era int64
	id  string
}

// maxEngines bounds the memory of workers that come and go.
const maxEngines = 4096

// worker is what engines need of a foreign.Node.
type worker interface {
	Era() int64
	Reread()
}

// same reports whether a worker, asked in an era, may call itself by an id. One that restarted has another, and its first answer can be
// here before anything else says that it did: so before a new id is held against it, it is asked what it is.
func (e *engines) same(n *foreign.Node, asked int64, id []byte) bool {
	return e.sameOf(n.Name, n, asked, id)
}

func (e *engines) sameOf(name string, n worker, asked int64, id []byte) bool {
	base, _, _ := strings.Cut(string(id), "_dp")
	now := n.Era()
	if e.known(name, asked, now, base) {
		return true
	}
	n.Reread()
	return n.Era() != now
}

// known reports whether an id is not another than the one of this era. It is remembered where the answer is certainly of this era.
func (e *engines) known(name string, asked, now int64, id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if asked != now {
		return true // of the process before or of the one that is there now: nobody can tell
	}
	if was, ok := e.name[name]; ok && was.era == now {
		return was.id == id
	}
	if e.name == nil || len(e.name) >= maxEngines {
		e.name = map[string]engineOf{}
	}
	e.name[name] = engineOf{now, id}
	return true
}

// grouped reports whether a version is known to name its request in a handle and to list blocks by group, as vLLM does since the end of
// 2025. Of a worker whose version is not known either is taken.
func grouped(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major > 0 || minor >= 20
}

// blocksOf counts the blocks of the longest group: lists of lists, or one list on older versions.
func blocksOf(v jsonedit.Value) (n int, one, ok bool) {
	if v.Kind() != jsonedit.Array {
		return 0, false, false
	}
	ok = true
	flat, groups := 0, 0
	v.Each(func(_ []byte, g jsonedit.Value) bool {
		switch g.Kind() {
		case jsonedit.Number, jsonedit.String:
			flat++
		case jsonedit.Array:
			groups++
			in := 0
			g.Each(func(_ []byte, b jsonedit.Value) bool {
				in++
				id, number := b.Int()
				ok = ok && (number && id >= 0 || b.Kind() == jsonedit.String)
				return ok
			})
			n = max(n, in)
		default:
			ok = false
		}
		return ok
	})
	n = max(n, flat)
	return n, flat > 0, ok && n > 0 && (flat == 0 || groups == 0)
}

// whole is a handle for decode: its bytes, and what it means where an engine leaves that out.
func whole(h jsonedit.Value) []byte {
	if h.Get("do_remote_prefill").Kind() != jsonedit.Absent {
		return h.Raw()
	}
	_, rest, _ := bytes.Cut(h.Raw(), []byte{'{'})
	return append([]byte(`{"do_remote_prefill":true,`), rest...)
}

// names says which part of a handle points to a place that is not the worker that was asked, "" if none does. Decode connects to
// where a handle points: what a member is called, and how deep it lies, matters less than what it looks like.
func names(h jsonedit.Value, asked *foreign.Node) (why string) {
	h.Each(func(name []byte, v jsonedit.Value) bool {
		n := strings.ToLower(string(name))
		switch {
		case !v.Said():
		case n == "remote_port":
			if p, ok := portOf(v); !ok || asked.KVPort > 0 && p != int64(asked.KVPort) {
				why = "remote_port is not the worker's"
			}
		case v.Kind() == jsonedit.Object || v.Kind() == jsonedit.Array:
			if why = names(v, asked); why == "" && isPlace(n) {
				why = clipped(n) + " is not the worker's"
			}
		case isPlace(n) || v.Kind() == jsonedit.String && looksLikePlace(v):
			host, ok := v.Text()
			if !ok || !knows(asked, hostOf(string(host))) {
				why = clipped(n) + " is not the worker's"
			}
		}
		return why == ""
	})
	return why
}

// portOf reads a port: a number, or its digits in a string.
func portOf(v jsonedit.Value) (int64, bool) {
	p, ok := v.Int()
	if text, is := v.Text(); is {
		n, err := strconv.ParseUint(string(text), 10, 16)
		p, ok = int64(n), err == nil
	}
	return p, ok && p >= 1 && p <= 65535
}

// isPlace reports whether a member of this name holds a place to connect to.
func isPlace(name string) bool {
	for _, w := range []string{"host", "addr", "url", "endpoint"} {
		if strings.Contains(name, w) {
			return true
		}
	}
	return strings.HasSuffix(name, "_ip")
}

// looksLikePlace reports whether a text, whatever it is called, is a URL, an address, or a host's name and its port.
func looksLikePlace(v jsonedit.Value) bool {
	text, _ := v.Text()
	s := string(text)
	if strings.Contains(s, "://") || net.ParseIP(strings.Trim(s, "[]")) != nil {
		return true
	}
	host, port, err := net.SplitHostPort(s)
	_, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && (strings.Contains(host, ".") || strings.EqualFold(host, "localhost"))
}

// clipped keeps a member's name fit for a log.
func clipped(n string) string {
	if strings.HasPrefix(n, "remote_") && len(n) < 40 && strings.Trim(n, "abcdefghijklmnopqrstuvwxyz_") == "" {
		return n
	}
	return "a member"
}

func hostOf(s string) string {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = rest
	}
	s, _, _ = strings.Cut(s, "/")
	if h, _, err := net.SplitHostPort(s); err == nil {
		return h
	}
	return strings.Trim(s, "[]")
}

// knows reports whether a host is the worker's: as the configuration names it, or an address of the host of its URL.
func knows(n *foreign.Node, host string) bool {
	if host == "" {
		return false
	}
	if len(n.KVHosts) > 0 {
		for _, h := range n.KVHosts {
			if strings.EqualFold(h, host) {
				return true
			}
		}
		return false
	}
	own := n.URL.Hostname()
	if strings.EqualFold(own, host) {
		return true
	}
	// The name in a handle is not looked up: it is somebody else's word.
	ip := net.ParseIP(host)
	if strings.EqualFold(host, "localhost") {
		ip = net.IPv4(127, 0, 0, 1)
	}
	for _, x := range n.Addresses(own) {
		if ip != nil && (x.Equal(ip) || x.IsLoopback() && ip.IsLoopback()) {
			return true
		}
	}
	return false
}

// used remembers which handles were given to a decode. A lease is half a minute, renewed while decode waits; ten times that is kept.
type used struct {
	mu        sync.Mutex
	now, then map[[16]byte]struct{}
	turned    time.Time
}

const remembered = 5 * time.Minute

// first reports whether a handle was not used before, and notes that it is now.
func (u *used) first(engine, request []byte) bool {
	sum := sha256.Sum256(bytes.Join([][]byte{engine, request}, []byte{0}))
	key := [16]byte(sum[:16])
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := time.Now(); u.now == nil || t.Sub(u.turned) > remembered {
		u.then, u.now, u.turned = u.now, map[[16]byte]struct{}{}, t
	}
	if _, twice := u.now[key]; twice {
		return false
	}
	if _, twice := u.then[key]; twice {
		return false
	}
	u.now[key] = struct{}{}
	return true
}
