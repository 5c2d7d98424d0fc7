package worker

import (
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Stage of an attempt on a worker, for its timings.
type Stage uint8

const (
	StageReserve  Stage = iota // the wait for pages
	StageAttach                // decode: from reserved to prefill's attach
	StageTransfer              // decode: pages landing, up to the marked end
	StageSeal                  // decode: seal and echo
	StageGenerate              // decode: tokens
	StagePrompt                // prefill: the prompt coming in
	StageCompute               // prefill: the engine
	StageShip                  // prefill: from computed to the last frame written
	StageSettle                // from the verdict to the pages being free
	NumStages
)

var stageNames = [NumStages]string{"reserve", "attach", "transfer", "seal", "generate", "prompt", "compute", "ship", "settle"}

func (s Stage) String() string { return stageNames[s] }

// Timing sums the times that attempts spent in a stage.
type Timing struct {
	Count uint64
	Sum   time.Duration
	Max   time.Duration
}

// Snapshot is a worker's state at one moment, for metrics and for people. Counters are since boot.
type Snapshot struct {
	Facts    capacity.Facts
	Boot     page.Boot
	Draining bool
	Pool     pool.Stats

	Active, Queued int                     // attempts; Queued wait for pages
	Settled        uint64                  // attempts
	Verdicts       map[verdict.Code]uint64 // of settled attempts and refused plans
	PlansRefused   uint64                  // no attempt was made of them
	Stages         [NumStages]Timing       // of settled attempts
	PagesLanded    uint64                  // decode
	PagesRefused   uint64                  // decode: by the gate, the MAC, or for coming late
	PagesSent      uint64                  // prefill
	BytesLanded    uint64                  // payload
	BytesSent      uint64                  // payload
	LateFrames     uint64                  // of settled attempts
	StrayFrames    uint64                  // of attempts that the link has no part in
	LinksBroken    uint64                  // closed for breaking the wire's rules
	Controls       int                     // gateways connected
	DataLinks      int                     // connected, either way
}

type counters struct {
	verdicts                             [256]atomic.Uint64
	plansRefused                         atomic.Uint64
	pagesLanded, pagesRefused, pagesSent atomic.Uint64
	bytesLanded, bytesSent               atomic.Uint64
	lateFrames, strayFrames, linksBroken atomic.Uint64
	controls, dataLinks                  atomic.Int64
	stageCount, stageSum, stageMax       [NumStages]atomic.Uint64 // nanoseconds
}

func (c *counters) stage(s Stage, d time.Duration) {
	c.stageCount[s].Add(1)
	c.stageSum[s].Add(uint64(d))
	for {
		old := c.stageMax[s].Load()
		if uint64(d) <= old || c.stageMax[s].CompareAndSwap(old, uint64(d)) {
			return
		}
	}
}

// Snapshot returns the worker's state.
func (w *Worker) Snapshot() Snapshot {
	c := &w.counters
	s := Snapshot{
		Facts: w.facts, Boot: w.boot, Draining: w.draining.Load(), Pool: w.pool.Stats(), Queued: w.pages.queued(),
		Verdicts: map[verdict.Code]uint64{}, PlansRefused: c.plansRefused.Load(),
		PagesLanded: c.pagesLanded.Load(), PagesRefused: c.pagesRefused.Load(), PagesSent: c.pagesSent.Load(),
		BytesLanded: c.bytesLanded.Load(), BytesSent: c.bytesSent.Load(),
		LateFrames: c.lateFrames.Load(), StrayFrames: c.strayFrames.Load(), LinksBroken: c.linksBroken.Load(),
		Controls: int(c.controls.Load()), DataLinks: int(c.dataLinks.Load()),
	}
	s.Active, s.Settled = w.table.active()
	for i := range c.verdicts {
		if n := c.verdicts[i].Load(); n > 0 {
			s.Verdicts[verdict.Code(i)] = n
		}
	}
	for i := range s.Stages {
		s.Stages[i] = Timing{c.stageCount[i].Load(), time.Duration(c.stageSum[i].Load()), time.Duration(c.stageMax[i].Load())}
	}
	return s
}

// ended counts a settled attempt and writes its line to the log.
func (w *Worker) ended(id attempt.ID, v verdict.Verdict, s *stopwatch) {
	s.end()
	w.counters.verdicts[v.Code].Add(1)
	for i, d := range s.spent {
		if d > 0 {
			w.counters.stage(Stage(i), d)
		}
	}
	w.log.Debug("attempt settled", "attempt", id, "code", v.Code.String(), "layer", v.Layer.String(), "reason", v.Reason,
		"total", time.Since(s.begun))
}

// stopwatch measures the stages of one attempt. Its owner's lock guards it.
type stopwatch struct {
	begun   time.Time
	at      time.Time // begin of the stage under way
	stage   Stage
	running bool
	spent   [NumStages]time.Duration
	first   [NumStages]time.Duration // when each stage began, after begun
}

func (s *stopwatch) start(stage Stage) {
	s.begun = time.Now()
	s.at, s.stage, s.running = s.begun, stage, true
}

func (s *stopwatch) enter(stage Stage) {
	now := time.Now()
	if s.running {
		s.spent[s.stage] += max(now.Sub(s.at), 1)
	}
	s.at, s.stage, s.running = now, stage, true
	s.first[stage] = now.Sub(s.begun)
}

func (s *stopwatch) end() {
	if s.running {
		s.spent[s.stage] += max(time.Since(s.at), 1)
		s.running = false
	}
}

// since is when the stage under way began.
func (s *stopwatch) since() time.Time { return s.at }

// span is when a stage began and ended, in microseconds after the plan; zeroes for one that was not reached.
func (s *stopwatch) span(stage Stage) (begin, end uint64) {
	if s.spent[stage] == 0 && (s.stage != stage || !s.running) {
		return 0, 0
	}
	b := s.first[stage]
	e := b + s.spent[stage]
	if s.stage == stage && s.running {
		e = time.Since(s.begun)
	}
	return uint64(b.Microseconds()), uint64(e.Microseconds())
}

// decode follows decode's machine from state to state.
func (s *stopwatch) decode(from, to handoff.DecodeState) {
	if from == to {
		return
	}
	switch to {
	case handoff.DecodeReserved:
		s.enter(StageAttach)
	case handoff.DecodeGranted:
		s.enter(StageTransfer)
	case handoff.DecodeSealing:
		s.enter(StageSeal)
	case handoff.DecodeServing:
		s.enter(StageGenerate)
	case handoff.DecodeCancelled, handoff.DecodeFencing:
		if from != handoff.DecodeCancelled {
			s.enter(StageSettle)
		}
	}
}

// prefill follows prefill's machine.
func (s *stopwatch) prefill(from, to handoff.PrefillState) {
	if from == to {
		return
	}
	switch to {
	case handoff.PrefillReserving:
		s.enter(StageReserve)
	case handoff.PrefillComputing:
		s.enter(StageCompute)
	case handoff.PrefillShipping:
		s.enter(StageShip)
	case handoff.PrefillCancelled, handoff.PrefillFencing:
		if from != handoff.PrefillCancelled {
			s.enter(StageSettle)
		}
	}
}
