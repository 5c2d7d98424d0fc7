package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/page"
)

// Config of a worker. Role, Name, Listen, Model, Identity and Fleet must be given, and Data for decode.
type Config struct {
	Role    capacity.Role // Prefill or Decode
	Name    string        // as the fleet's keys name it
	Version string        // of the build, for the facts

	Listen    string // host:port of the control socket
	Data      string // host:port of the data socket (decode)
	Advertise string // host:port at which prefill workers reach Data; empty: the address that Data got

	Model        *llm.Model
	PageTokens   int // slots a page; 0: 64
	PoolPages    int // pages of the pool, or
	KVTokens     int // its slots, rounded down to whole pages
	Context      int // longest sequence in tokens; 0: the model's own
	ServeSmaller bool
	Chunk        int // prompt tokens a prefill step; 0: the engine's default
	Threads      int // 0: the engine's default
	Identity     keyring.Identity
	Fleet        *keyring.Fleet
	EncryptData  bool
	Boot         page.Boot // 0: a fresh one
	Limits       Limits
	Log          *slog.Logger   // nil: silent
	Trace        trace.Recorder // nil: off
	Frames       FrameFilter    // nil: none; drills lose and double frames with it
	KernelPath   string         // named in the hello; empty: the path that this process runs
}

// Limits bound what peers can make a worker hold. A zero field takes its default.
type Limits struct {
	Attempts   int           // live at a time, past which a plan is refused as overloaded (1024)
	Finished   int           // remembered, to tell a late frame from a foreign one (4096)
	Waiting    int           // for pages (512)
	PageWait   time.Duration // for pages at most, and never more than 9/10 of the plan's budget (30 s)
	Ahead      int           // pages for generated tokens that are reserved with the prompt's, in tokens (256)
	Controls   int           // gateway links (64)
	DataLinks  int           // prefill links (1024)
	Strays     int           // frames of attempts that a link has no part in, before the link is closed (64)
	Outbox     int           // frames queued on a link, before it is closed (65536)
	CloseGrace time.Duration // how long Close waits for the last frames to leave (1 s)
}

func (l Limits) filled() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Attempts, 1024)
	def(&l.Finished, 4096)
	def(&l.Waiting, 512)
	def(&l.Ahead, 256)
	def(&l.Controls, 64)
	def(&l.DataLinks, 1024)
	def(&l.Strays, 64)
	def(&l.Outbox, 65536)
	if l.PageWait <= 0 {
		l.PageWait = 30 * time.Second
	}
	if l.CloseGrace <= 0 {
		l.CloseGrace = time.Second
	}
	return l
}

func (c Config) validate() error {
	switch {
	case c.Role != capacity.Prefill && c.Role != capacity.Decode:
		return fmt.Errorf("worker: role %q: must be %s or %s", c.Role, capacity.Prefill, capacity.Decode)
	case c.Name == "":
		return errors.New("worker: no name")
	case c.Listen == "":
		return errors.New("worker: no address to listen on")
	case c.Role == capacity.Decode && c.Data == "":
		return errors.New("worker: decode has no address for its data socket")
	case c.Model == nil:
		return errors.New("worker: no model")
	case c.Identity.IsZero() || c.Fleet == nil:
		return errors.New("worker: no keys")
	case c.PoolPages <= 0 && c.KVTokens <= 0:
		return errors.New("worker: no size of the KV pool")
	}
	return nil
}
