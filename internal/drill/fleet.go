// Package drill injects, on purpose, what went wrong in the field into a real fleet with real bytes, and says which guard met it.
//
// A drill makes its own fleet and keys; nothing here can be pointed at a fleet that serves. Every row asserts on content: what the
// reply said, what is in the pages afterwards. A status code proves nothing.
package drill

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/wire"
	"github.com/sluicekv/sluice/internal/worker"
)

// The sizes of a drill's fleet, in tokens. Prefill's pool is smaller than the context, as in the incident.
const (
	pageTokens  = 64
	contextLen  = 8192
	prefillPool = 4096
	decodePool  = 16384
)

// builtIn is the built-in model in its most talkative form: it continues any match (a quieter one can hide a leak).
var builtIn = sync.OnceValues(func() (*model, error) {
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: -1}))
	if err != nil {
		return nil, err
	}
	m, err := llm.Load(f)
	if err != nil {
		return nil, err
	}
	enc, err := prompt.New(f)
	return &model{m, enc}, err
})

type model struct {
	*llm.Model
	enc *prompt.Encoder
}

// fleet is an honest pair, a liar that shares its decode worker, and a gateway that knows the honest prefill as "honest" and the liar
// as "liar".
type fleet struct {
	prefill, decode *worker.Worker
	liar            *liar.Liar
	door            *gateway.Gateway
}

func newFleet(ctx context.Context, lie liar.Lie) (_ *fleet, err error) {
	m, err := builtIn()
	if err != nil {
		return nil, err
	}
	keys, ids := keyring.Ephemeral(keyring.Node{Name: "prefill", Role: wire.RolePrefill}, keyring.Node{Name: "liar", Role: wire.RolePrefill},
		keyring.Node{Name: "decode", Role: wire.RoleDecode}, keyring.Node{Name: "gateway", Role: wire.RoleGateway})
	f := &fleet{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	base := worker.Config{Version: "drill", Listen: "127.0.0.1:0", Model: m.Model, PageTokens: pageTokens, Context: contextLen, Fleet: keys, Threads: 1}
	pre, dec := base, base
	pre.Role, pre.Name, pre.KVTokens, pre.Identity = capacity.Prefill, "prefill", contextLen, ids["prefill"]
	dec.Role, dec.Name, dec.KVTokens, dec.Identity, dec.Data = capacity.Decode, "decode", decodePool, ids["decode"], "127.0.0.1:0"
	if f.prefill, err = startWorker(pre); err != nil {
		return f, err
	}
	if f.decode, err = startWorker(dec); err != nil {
		return f, err
	}
	if f.liar, err = liar.Start(liar.Config{Name: "liar", Model: m.Model, PageTokens: pageTokens, KVTokens: prefillPool, Context: contextLen,
		Claims: contextLen, Identity: ids["liar"], Fleet: keys}, lie); err != nil {
		return f, err
	}
	at := func(name string, role capacity.Role, addr string) gateway.WorkerAddr {
		return gateway.WorkerAddr{Name: name, Role: role, Addr: addr}
	}
	decode := at("decode", capacity.Decode, f.decode.Addr().String())
	fp := m.Fingerprint()
	f.door, err = gateway.New(gateway.Config{
		Listen: "127.0.0.1:0", Log: Log, Identity: ids["gateway"], Keys: keys, Version: "drill",
		Models: []gateway.ModelConfig{
			{Name: "honest", Encoder: m.enc, Fingerprint: fp, Workers: []gateway.WorkerAddr{at("prefill", capacity.Prefill, f.prefill.Addr().String()), decode}},
			{Name: "liar", Encoder: m.enc, Fingerprint: fp, Workers: []gateway.WorkerAddr{at("liar", capacity.Prefill, f.liar.Addr()), decode}},
		},
		Limits: gateway.Limits{Deadline: 20 * time.Second, Settle: 2 * time.Second},
	})
	if err != nil {
		return f, err
	}
	if err = f.door.Start(); err != nil {
		return f, err
	}
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return f, f.door.WaitReady(ready)
}

func (f *fleet) front() door { return door(f.door.Addr()) }

func startWorker(cfg worker.Config) (*worker.Worker, error) {
	w, err := worker.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := w.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// settled waits until no page of the two workers is leased, and counts what is left in free pages.
func (f *fleet) settled(ctx context.Context) (free, total int, nonzero uint64) {
	for {
		free, total = 0, 0
		changed := f.decode.Pool().Freed()
		for _, w := range []*worker.Worker{f.prefill, f.decode} {
			st := w.Pool().Stats()
			free += st.Free
			total += st.Total
		}
		if free == total {
			break
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond): // prefill's pages may have come back without decode's
		case <-ctx.Done():
			return free, total, f.nonzero()
		}
	}
	return free, total, f.nonzero()
}

func (f *fleet) nonzero() uint64 { return f.prefill.Pool().ScanFree() + f.decode.Pool().ScanFree() }

func (f *fleet) close() {
	if f.door != nil {
		f.door.Close()
	}
	if f.liar != nil {
		f.liar.Close()
	}
	for _, w := range []*worker.Worker{f.decode, f.prefill} {
		if w != nil {
			if err := w.Close(); err != nil {
				fmt.Println("drill:", err)
			}
		}
	}
}

// Log of the drill's gateway; nil is silent. For whoever looks into a drill.
var Log *slog.Logger
