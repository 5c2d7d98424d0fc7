package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/handoff/model/check"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Beside makes the real pair that goes beside the model's world of the gated receiver: as many pages, prompts of as many pages.
func Beside(m model.Transfer) (*World, error) {
	o := Options{Pages: m.Pages, LowestFirst: true, Liars: m.Faults != 0}
	for _, n := range m.Need {
		if n > 0 {
			o.Need = append(o.Need, int(n))
		}
	}
	o.Lanes = len(o.Need)
	return Make(o)
}

// frees is the one act of the model that the real pool does for every lane at once: its scrubber zeroes whatever is dirty.
const frees = "decode's pool zeroes and frees"

// Step is an act of the model with where it leads.
type Step[S any] struct {
	Acts []check.Act
	To   S
}

// Steps are the model's steps from a state, in its order. Where it frees the pages of one lane the same step frees those of the others that
// are waiting, as the real scrubber does.
func Steps[S comparable](sys check.System[S], s S) (all []Step[S], broken error) {
	sys.Next(s, func(a check.Act, t S, err error) {
		broken = errors.Join(broken, err)
		step := Step[S]{[]check.Act{a}, t}
		if a.What == frees {
			sys.Next(t, func(b check.Act, u S, err error) {
				if b.What == frees && b.R != a.R {
					step.Acts, step.To = append(step.Acts, b), u
				}
			})
		}
		all = append(all, step)
	})
	return all, broken
}

// Along performs the model's acts on the real side.
func (w *World) Along(acts []check.Act) error {
	for _, a := range acts {
		if int(a.R) >= len(w.lanes) || a.R < 0 {
			return fmt.Errorf("sim: %s: there is no such lane", a)
		}
		l := w.lanes[a.R]
		what, ok := lookup(a.What)
		if !ok {
			return fmt.Errorf("sim: the model does what nothing here can: %q", a.What)
		}
		what(l)
		l.quiesce()
		if w.wrong != nil {
			return fmt.Errorf("%s: %w", a, w.wrong)
		}
	}
	return nil
}

// lookup finds what an act of the model is here. Those of decode's reader name the frame, which the real link knows itself.
func lookup(what string) (func(*lane), bool) {
	if strings.HasPrefix(what, "decode's reader takes: ") {
		return must("decode-takes"), true
	}
	f, ok := modelActs[what]
	return f, ok
}

// must performs one of the acts, which has to be possible: the model says so.
func must(what string) func(*lane) {
	return func(l *lane) {
		if !acts[what].may(l) {
			l.fail("%s is not possible, and the model says that it is", what)
			return
		}
		acts[what].do(l)
	}
}

// quiesce does what the model does in the same act, and the real side later: a closing statement is on the link at once, and prefill's
// pages are its own affair.
func (l *lane) quiesce() {
	if l.closing != verdict.None {
		l.close()
	}
	if l.p.Over() && l.p.Running {
		l.prefillTakes(handoff.EngineDone{Code: l.p.Verdict})
	}
	if acts["prefill-frees"].may(l) {
		l.prefillFrees()
	}
}

// modelActs are the acts of model.Transfer.
var modelActs = map[string]func(*lane){
	"begins": func(l *lane) { l.begin(); l.open() },

	"decode reserves": must("decode-reserves"),
	"decode is handed pages too late": func(l *lane) { // the pool said yes just before the verdict
		before, _ := admission.Admit(l.plan, capacity.Limit{Tokens: 1 << 10})
		lease, err := l.w.decode.Reserve(before, int(l.d.Needed))
		if err != nil {
			l.fail("decode's pool: %v", err)
			return
		}
		l.dl = lease
		l.decodeTakes(handoff.PagesReserved{Count: l.d.Needed})
	},
	"decode stops waiting for pages":                              must("decode-stops-waiting"),
	"decode hears an abort":                                       must("decode-is-aborted"),
	"prefill attaches, decode grants":                             must("prefill-attaches"),
	"decode's pool is asked to land the page in staging":          must("decode-lands"),
	"decode ends the copy into page":                              must("decode-copied"),
	"decode seals":                                                must("decode-seals"),
	"decode views its pages":                                      must("decode-looks"),
	"decode computes from its pages":                              must("decode-reads"),
	frees:                                                         (*lane).decodeFrees,
	"the link breaks":                                             must("link-breaks"),
	"prefill hears the grant":                                     (*lane).hearsGrant,
	"prefill hears decode's abort":                                (*lane).hearsAbort,
	"prefill begins to compute":                                   (*lane).prompt,
	"the gateway never asks prefill":                              must("prefill-is-aborted"),
	"prefill hears an abort":                                      must("prefill-is-aborted"),
	"prefill computes page":                                       must("prefill-computes"),
	"prefill sends page":                                          must("prefill-sends"),
	"prefill refuses":                                             must("prefill-refuses"),
	"prefill dies":                                                must("prefill-dies"),
	"prefill sends a torn page":                                   must("prefill-sends-torn"),
	"prefill sends another page as page":                          must("prefill-sends-misplaced"),
	"prefill sends, to the other attempt's tag, page":             must("prefill-sends-to-another"),
	"prefill sends again page":                                    must("prefill-sends-again"),
	"prefill says too soon that it is done, pages sent:":          must("prefill-says-done-and-dies"),
	"prefill says that all pages were sent, of which it sent":     must("prefill-claims-all-and-dies"),
	"prefill says that it is done, and goes on sending from page": must("prefill-claims-all-and-goes-on"),
	"somebody forges prefill's closing statement, pages sent:":    must("closing-is-forged"),
	"prefill refuses, ships a one-page placeholder, and says that all is well: page": must("prefill-ships-placeholder-as-done"),
	"prefill refuses, and ships a placeholder as page":                               must("prefill-ships-placeholder-and-refuses"),
}

// Compare says what of the real side is not as the model's state.
func (w *World) Compare(m model.Look) error {
	var wrong []string
	differ := func(what string, here, there any) {
		if here != there {
			wrong = append(wrong, fmt.Sprintf("%s is %v, the model's %v", what, here, there))
		}
	}
	pins := 0
	for i := range w.o.Pages {
		p, at := m.Pages[i], w.pages[uint32(i)]
		pins += int(p.Pins)
		owner := -1
		for _, l := range w.lanes {
			if l.began && l.id == at.id {
				owner = int(l.name)
			}
		}
		differ(fmt.Sprintf("page %d's owner", i), owner, p.Owner)
		differ(fmt.Sprintf("page %d's generation", i), at.gen, uint64(p.Gen))
	}
	differ("the number of pins", w.decode.Stats().Pins, pins)
	for i, l := range w.lanes {
		a := m.Attempts[i]
		name := func(s string) string { return fmt.Sprintf("r%d's %s", i, s) }
		differ(name("beginning"), l.began, a.Began)
		if !a.Began {
			continue
		}
		differ(name("decode"), l.d.State.String(), a.D.State.String())
		differ(name("verdict at decode"), class(l.d.Verdict), class(verdict.Code(a.D.Verdict)))
		differ(name("pages reserved"), l.d.Reserved, uint32(a.D.Reserved))
		differ(name("pages written"), l.d.Written, uint32(a.D.Written))
		differ(name("pages landing"), l.d.Landing, uint32(a.D.Landing))
		differ(name("flags at decode"), fmt.Sprint(l.d.Fenced, l.d.Sealing, l.d.Running, l.d.Drained), fmt.Sprint(a.D.Fenced, a.D.SealAsked, a.D.Running, a.D.Drained))
		differ(name("frames on the link"), len(l.link), a.Link)
		differ(name("staging"), l.staged != nil, a.Staged)
		differ(name("copy"), l.copy != nil, a.Copying)
		differ(name("reading"), l.reading, a.Reading)
		if a.Dead {
			continue // what its process did last is nobody's business
		}
		differ(name("prefill"), l.p.State.String(), a.P.State.String())
		differ(name("verdict at prefill"), class(l.p.Verdict), class(verdict.Code(a.P.Verdict)))
		if a.P.State != model.Done {
			differ(name("pages of prefill"), fmt.Sprint(l.p.Reserved, l.p.Sealed, l.p.Queued, l.p.Sent, l.p.Granted, l.p.Closed, l.p.Running),
				fmt.Sprint(a.P.Reserved, a.P.Sealed, a.P.Queued, a.P.Sent, a.P.Granted, a.P.Closed, a.P.Running))
		}
	}
	if wrong != nil {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// class is what the model keeps of a verdict that is not OK: that there is one.
func class(c verdict.Code) string {
	switch c {
	case verdict.None, verdict.OK:
		return c.String()
	}
	return "a refusal"
}
