package vllm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// keptTime is how long prefill may take to say whether it still had what it handed over.
const keptTime = 10 * time.Second

// kept asks prefill whether a lease of its ran out while decode was late: prefill keeps blocks for a lease that decode renews while it
// lives, and counts those that it gave back before they were asked for. The counter is of the worker, not of the request: somebody
// else's in the same time is taken for this attempt's.
func kept(a web.Asked) func(context.Context, time.Time) string {
	own := web.Asked{Path: "/v1/completions", Pair: a.Pair, Model: a.Model, Salt: a.Salt} // not the body: it may be long gone by then
	if own.Model == "" {
		name, _ := a.Doc.Get("model").Text()
		own.Model = string(name)
	}
	return func(ctx context.Context, handed time.Time) string {
		ctx, cancel := context.WithTimeout(ctx, keptTime)
		defer cancel()
		stir(ctx, own)
		n, err := own.Pair.Prefill.LateSince(ctx, handed)
		switch late := time.Since(handed).Round(time.Second); {
		case err != nil:
			return "" // an engine that does not count them: among what stays unseen
		case n > 0:
			return fmt.Sprintf("decode spoke %s after prefill, and %d reads came too late meanwhile", late, n)
		}
		return ""
	}
}

var least, _ = jsonedit.Read([]byte(`{"prompt":[1]}`), nil)

// stir gives prefill something to do: an engine that is idle does not look at what decodes told it. What the answer hands over is
// thrown away, and prefill has it back when its lease is over.
func stir(ctx context.Context, a web.Asked) {
	a.Doc, a.ID = least, fresh()
	resp, err := a.Call(a.Pair.Prefill, one(a, askNixl).Body()).Do(ctx)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
}

// fresh is an id for a request of the gateway's own.
func fresh() string {
	var b [16]byte
	rand.Read(b[:])
	return web.NewID(hex.EncodeToString(b[:]))
}
