// Package sglang makes plans for pairs of SGLang workers: both legs get the request at once and meet in a room of prefill's
// bootstrap server.
//
// A room is a bearer secret: who names it gets the pages that are sent to it. It is 63 random bits, for one attempt, and never
// comes from a client.
package sglang

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net/http"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Room mints a room whose prefill rank is rank: engines that follow the room take room % ranks.
func Room(ranks, rank int) int64 {
	var b [8]byte
	for {
		rand.Read(b[:])
		room := int64(binary.LittleEndian.Uint64(b[:]) >> 1)
		if ranks > 1 {
			room = room - room%int64(ranks) + int64(rank)
		}
		if room > 0 { // 0 is what a health probe uses, and the sum may overflow
			return room
		}
	}
}

// anyRank of ranks, each as likely as another (of up to 256).
func anyRank(ranks int) int {
	var b [1]byte
	rand.Read(b[:])
	return int(b[0]) % ranks
}

// bootstrapPort is where prefill's bootstrap server listens: the engine's own default where nothing is said.
func bootstrapPort(said int) int {
	if said == 0 {
		return 8998
	}
	return said
}

// Plan of an attempt.
func Plan(a web.Asked) web.Plan {
	to := a.Pair.Prefill.Handover()
	port := bootstrapPort(to.Port)
	room := Room(to.DP, anyRank(to.DP))
	meet := func(e *jsonedit.Edit) *jsonedit.Edit {
		e.SetText("bootstrap_host", to.Host).SetInt("bootstrap_port", int64(port)).SetInt("bootstrap_room", room).SetText("rid", a.ID)
		if a.Salt != "" {
			e.SetText("extra_key", a.Salt)
		}
		return e
	}
	p := a.Plan()
	p.Prefill = a.Call(a.Pair.Prefill, web.Whole(meet(a.Edit())).Body())
	p.Decode = a.Call(a.Pair.Decode, a.AskUsage(meet(a.Edit())).Body())
	n, id := a.Pair.Decode, a.ID // and not the body
	p.Abandon = func(ctx context.Context) { abort(ctx, n, id) }
	return p
}

// abort tells decode to give up on a request whose pages will not come: by itself it waits for minutes. Only for prefill's refusal:
// while pages may be on their way, an abort gives them to the next request under the writer's hands.
func abort(ctx context.Context, n *foreign.Node, id string) {
	body := []byte(`{"rid":"` + id + `"}`)
	r := &http.Request{
		Method: http.MethodPost, URL: n.At("/abort_request"), Header: n.Header, Host: n.URL.Host,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	resp, err := n.Transport.RoundTrip(r.WithContext(ctx))
	if err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
		resp.Body.Close()
	}
}
