package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// ThreeEnds is one attempt at all three of its ends: the gateway's machine, decode's and prefill's, with every word between them on its
// way for as long as it likes. It is about what the gateway holds, lets go, swallows and waits for; where bytes land is Transfer's
// matter, so the prompt has one page, and it lands at once.
//
// Each end may abort, or run out of time, whenever it likes; each link may end; each worker may refuse the plan, and prefill the prompt.
type ThreeEnds struct {
	On     Guard
	Faults Fault
	// Blind are guards that decode alone does without: a decode that is wrong, which the gateway should not be fooled by.
	Blind Guard
}

// word is what goes over a control or data link.
type word uint8

const (
	noWord word = iota
	wordPlan
	wordAbort
	wordReserved
	wordSealed
	wordOutput
	wordOutcomeOK
	wordOutcomeNo
	wordSettled
	wordAttach
	wordGrant
	wordPage
	wordManifest
	wordRefusal
	wordEnd
)

var wordNames = [...]string{"", "plan", "abort", "reserved", "sealed", "output", "outcome ok", "outcome no", "settled", "attach", "grant",
	"page", "manifest", "refusal", "end"}

func (w word) String() string { return wordNames[w] }

// words are on their way, in order.
type words [6]word

func (q *words) put(w word) {
	for i := range q {
		if q[i] == noWord {
			q[i] = w
			return
		}
	}
	panic("model: a full queue")
}

func (q *words) take() (w word) {
	w = q[0]
	copy(q[:], q[1:])
	q[len(q)-1] = noWord
	return w
}

// roads of the world: from whom to whom.
const (
	toDecode = iota
	toPrefill
	fromDecode
	fromPrefill
	pages // prefill to decode
	grants
	numRoads
)

type threeState struct {
	G            Gateway[uint8]
	D            Decode[uint8]
	P            Prefill[uint8]
	Road         [numRoads]words
	DOpen, POpen bool
	DCut, PCut   uint8 // the control link: 1 ended, and bits 1, 2: the gateway, the worker has heard
	DataCut      bool
	Left         bool // a byte went to the client
	Hasty        bool // an acknowledgement came that nobody had sent
}

// Init implements check.System.
func (w ThreeEnds) Init() (s threeState) {
	s.G = NewGateway[uint8](1)
	s.Road[toDecode].put(wordPlan)
	return s
}

// Rests implements check.System.
func (w ThreeEnds) Rests(s threeState) bool {
	return s.G.State == Quiet && (!s.DOpen || s.D.State == Settled) && (!s.POpen || s.P.State == Done)
}

// Holds implements check.System.
func (w ThreeEnds) Holds(s threeState) error {
	if s.G.State == Quiet && (s.DOpen && s.D.State != Settled && s.DCut == 0 || s.POpen && s.P.State != Done && s.PCut == 0) {
		return errors.New("the gateway calls the pair quiet, and a leg still holds pages")
	}
	return nil
}

// three is a step under way.
type three struct {
	w *ThreeEnds
	s threeState
	e error
}

func (t *three) fail(err error) {
	if t.e == nil {
		t.e = err
	}
}

// Next implements check.System.
func (w ThreeEnds) Next(s threeState, yield func(check.Act, threeState, error)) {
	do := func(what string, f func(t *three)) {
		t := three{w: &w, s: s}
		f(&t)
		t.fold()
		yield(check.Act{What: what, R: -1, X: -1}, t.s, t.e)
	}
	ev := func(step Step, a uint8, c Code) Event[uint8] { return Event[uint8]{Step: step, A: a, Code: c} }
	for road, hear := range [numRoads]func(*three, word){
		toDecode: (*three).decodeHears, toPrefill: (*three).prefillHears, fromDecode: (*three).gatewayHearsDecode,
		fromPrefill: (*three).gatewayHearsPrefill, pages: (*three).decodeTakes, grants: (*three).prefillTakes,
	} {
		if x := s.Road[road][0]; x != noWord {
			if x == wordPlan && w.Faults.Has(FaultReject) {
				do([2]string{"decode", "prefill"}[road]+" refuses the plan", func(t *three) { // no machine is made
					t.s.Road[road].take()
					t.send(fromDecode+road, wordOutcomeNo)
					t.send(fromDecode+road, wordSettled)
				})
			}
			do(roadNames[road]+x.String(), func(t *three) { hear(t, t.s.Road[road].take()) })
		}
	}
	if !s.G.Over() {
		do("the client hangs up, or its time is over", func(t *three) { t.gateway(ev(AbortAsked, ClientEnd, ClientGone)) })
	}
	if s.DOpen {
		w.decodeSteps(&s, do, ev)
	}
	if s.POpen {
		w.prefillSteps(&s, do, ev)
	}
	if w.Faults.Has(FaultLinkLost) {
		w.cuts(&s, do, ev)
	}
	if w.Faults.Has(FaultAckEarly) && !s.Hasty && s.G.State != Quiet {
		hasty := func(name string, leg uint8) {
			do("the gateway hears that "+name+"'s pages are back, which nobody said", func(t *three) {
				t.s.Hasty = true
				t.gateway(ev(LegSettled, leg, None))
			})
		}
		// Between a leg's last word and the end of its fencing nobody could tell: that is its pool's own affair, and its gate is shut.
		if s.DCut == 0 && !s.D.Over() {
			hasty("decode", DecodeLeg)
		}
		if s.PCut == 0 && !s.P.Over() {
			hasty("prefill", PrefillLeg)
		}
	}
}

var roadNames = [numRoads]string{"decode hears the gateway: ", "prefill hears the gateway: ", "the gateway hears decode: ",
	"the gateway hears prefill: ", "decode hears prefill: ", "prefill hears decode: "}

type threeDoer = func(what string, f func(t *three))
type eventOf = func(step Step, a uint8, c Code) Event[uint8]

func (w *ThreeEnds) decodeSteps(s *threeState, do threeDoer, ev eventOf) {
	d := &s.D
	switch {
	case d.State == Waiting:
		do("decode reserves", func(t *three) { t.decode(ev(PagesReserved, 1, None)) })
		do("decode finds no pages", func(t *three) { t.decode(ev(ReserveEnded, 0, Internal)) })
	case d.State == Cancelled:
		do("decode's wait for pages ends", func(t *three) { t.decode(ev(ReserveEnded, 0, None)) })
	case d.SealAsked:
		do("decode seals", func(t *three) { t.decode(ev(SealDone, 0, None)) })
	case d.Running && d.Over():
		do("decode's engine lets go", func(t *three) { t.decode(ev(EngineDone, 0, ClientGone)) })
	case d.State == Echoing:
		do("decode's echo agrees", func(t *three) { t.decode(ev(EchoCompared, 1, None)) })
	case d.State == Serving && d.Emitted == 0:
		do("decode makes a token", func(t *three) { t.decode(ev(TokenReady, 0, None)) })
	case d.State == Serving:
		do("decode is done", func(t *three) { t.decode(ev(EngineDone, 1, OK)) })
	case d.State == Fencing && !d.Drained:
		do("decode's pages come back", func(t *three) { t.decode(ev(LeaseDrained, 0, None)) })
	}
	if !d.Over() {
		do("decode runs out of time", func(t *three) { t.decode(ev(DeadlineOver, 0, None)) })
	}
}

func (w *ThreeEnds) prefillSteps(s *threeState, do threeDoer, ev eventOf) {
	p := &s.P
	switch {
	case p.State == Reserving:
		do("prefill reserves", func(t *three) { t.prefill(ev(PagesReserved, 1, None)) })
		do("prefill finds no pages", func(t *three) { t.prefill(ev(ReserveEnded, 0, Internal)) })
	case p.State == GivingUp:
		do("prefill's wait for pages ends", func(t *three) { t.prefill(ev(ReserveEnded, 0, None)) })
	case p.Running && p.Over():
		do("prefill's engine lets go", func(t *three) { t.prefill(ev(EngineDone, 0, ClientGone)) })
	case p.Running:
		do("prefill computes", func(t *three) {
			t.prefill(Event[uint8]{Step: PagesSealed, B: 1})
			t.prefill(ev(EngineDone, 1, OK))
		})
		if w.Faults.Has(FaultReject) {
			do("prefill refuses the prompt", func(t *three) { t.prefill(ev(EngineDone, 0, ContextLength)) })
			if p.Granted && !s.DataCut {
				do("prefill refuses the prompt, and ships a placeholder", func(t *three) {
					t.s.Road[pages].put(wordPage)
					t.prefill(ev(EngineDone, 0, ContextLength))
				})
			}
		}
	case p.Writing > 0:
		do("prefill has written its page", func(t *three) { t.prefill(ev(PageSent, 0, None)) })
	case p.Queued > p.Sent && !p.Over():
		do("prefill sends its page", func(t *three) {
			t.prefill(ev(PageTaken, 0, None))
			t.send(pages, wordPage)
		})
	case p.Closed && !p.Over():
		do("prefill's closing statement is sent", func(t *three) { t.prefill(ev(ClosingSent, 0, None)) })
	case p.State == Revoked && !p.Drained:
		do("prefill's pages come back", func(t *three) { t.prefill(ev(LeaseDrained, 0, None)) })
	}
	if !p.Over() {
		do("prefill runs out of time", func(t *three) { t.prefill(ev(DeadlineOver, 0, None)) })
	}
}

// cuts end links: what is on them is gone, and both ends hear of it, each in its own time.
func (w *ThreeEnds) cuts(s *threeState, do threeDoer, ev eventOf) {
	control := func(cut uint8, open bool, name string, leg uint8, set func(t *three, bits uint8), worker func(t *three, e Event[uint8])) {
		if cut == 0 && open {
			do("the control link to "+name+" ends", func(t *three) {
				set(t, 1)
				t.s.Road[leg-PrefillLeg^1] = words{} // toPrefill is 1, toDecode 0
				t.s.Road[fromDecode+int(leg-PrefillLeg^1)] = words{}
			})
		}
		if cut&1 != 0 && cut&2 == 0 {
			do("the gateway hears that "+name+" is gone", func(t *three) {
				set(t, cut|2)
				t.gateway(ev(PeerLostStep, leg, None))
			})
		}
		if cut&1 != 0 && cut&4 == 0 {
			do(name+" hears that the gateway is gone", func(t *three) {
				set(t, cut|4)
				worker(t, ev(PeerLostStep, GatewayEnd, None))
			})
		}
	}
	control(s.DCut, s.DOpen, "decode", DecodeLeg, func(t *three, b uint8) { t.s.DCut = b }, (*three).decode)
	control(s.PCut, s.POpen, "prefill", PrefillLeg, func(t *three, b uint8) { t.s.PCut = b }, (*three).prefill)
	if !s.DataCut && s.POpen && s.DOpen {
		do("the data link ends", func(t *three) {
			t.s.DataCut = true
			t.s.Road[pages], t.s.Road[grants] = words{}, words{}
			t.decode(ev(PeerLostStep, PrefillLeg, None))
			t.prefill(ev(PeerLostStep, DecodeLeg, None))
		})
	}
}

func (t *three) send(road int, w word) {
	switch {
	case (road == toDecode || road == fromDecode) && t.s.DCut != 0, (road == toPrefill || road == fromPrefill) && t.s.PCut != 0,
		(road == pages || road == grants) && t.s.DataCut:
		return
	}
	t.s.Road[road].put(w)
}

// gateway takes an event and does what it asks for.
func (t *three) gateway(e Event[uint8]) {
	was := t.s.G
	g, asks, err := was.Step(t.w.On, e)
	t.fail(err)
	t.s.G = g
	if asks.Has(AskVerdict) && was.Over() {
		t.fail(errors.New("the gateway gives a second verdict"))
	}
	if asks.Has(AskPlanPrefill) {
		t.send(toPrefill, wordPlan)
	}
	if asks.Has(AskAbortDecode) {
		t.send(toDecode, wordAbort)
	}
	if asks.Has(AskAbortPrefill) {
		t.send(toPrefill, wordAbort)
	}
	if asks.Has(AskLetGo) && g.Output > 0 || asks.Has(AskPass) {
		t.s.Left = true
		switch {
		case was.Over():
			t.fail(errors.New("a byte goes to the client after the attempt was refused"))
		case t.s.POpen && t.s.P.Over() && t.s.P.Verdict != OK:
			t.fail(errors.New("a byte goes to the client although prefill refused"))
		case g.PrefillCode == None:
			t.fail(errors.New("a byte goes to the client before prefill has said how it ended"))
		}
	}
	if asks.Has(AskVerdict) && g.Verdict == OK && !(t.s.P.Verdict == OK && t.s.D.Verdict == OK) {
		t.fail(errors.New("the client is told that all is well, and a leg says otherwise"))
	}
}

// decode takes an event of decode's machine.
func (t *three) decode(e Event[uint8]) {
	if !t.s.DOpen {
		return
	}
	was := t.s.D
	d, asks, err := was.Step(t.w.On&^t.w.Blind, e)
	t.fail(err)
	t.s.D = d
	if asks.Has(AskVerdict) && was.Over() {
		t.fail(errors.New("decode gives a second verdict"))
	}
	if asks.Has(AskReserved) {
		t.send(fromDecode, wordReserved)
	}
	if asks.Has(AskGrant) {
		t.send(grants, wordGrant)
	}
	if asks.Has(AskSealed) {
		t.send(fromDecode, wordSealed)
	}
	if asks.Has(AskEmit) {
		t.send(fromDecode, wordOutput)
	}
	if asks.Has(AskAbortPrefill) {
		t.send(grants, wordAbort)
	}
	if asks.Has(AskOutcome) {
		t.send(fromDecode, outcome(d.Verdict))
	}
	if asks.Has(AskSettled) {
		t.send(fromDecode, wordSettled)
	}
	if asks.Has(AskLand) {
		t.decode(Event[uint8]{Step: PageLanded})
	}
}

func outcome(c Code) word {
	if c == OK {
		return wordOutcomeOK
	}
	return wordOutcomeNo
}

// prefill takes an event of prefill's machine.
func (t *three) prefill(e Event[uint8]) {
	if !t.s.POpen || t.s.P.State == Done {
		return
	}
	was := t.s.P
	p, asks, err := was.Step(t.w.On, e)
	t.fail(err)
	t.s.P = p
	if asks.Has(AskVerdict) && was.Over() {
		t.fail(errors.New("prefill gives a second verdict"))
	}
	if asks.Has(AskClosing) {
		m := wordManifest
		if p.Over() {
			m = wordRefusal
		}
		t.send(pages, m)
		t.send(pages, wordEnd)
	}
	if asks.Has(AskAbortDecode) {
		t.send(pages, wordAbort)
	}
	if asks.Has(AskOutcome) {
		t.send(fromPrefill, outcome(p.Verdict))
	}
	if asks.Has(AskSettled) {
		t.send(fromPrefill, wordSettled)
	}
}

func (t *three) decodeHears(x word) {
	if x == wordPlan {
		t.s.DOpen, t.s.D = true, NewDecode[uint8](1, 1)
		return
	}
	t.decode(Event[uint8]{Step: AbortAsked, A: GatewayEnd, Code: ClientGone})
}

func (t *three) prefillHears(x word) {
	if x == wordPlan {
		t.s.POpen, t.s.P = true, NewPrefill[uint8](1, 1)
		t.send(pages, wordAttach)
		t.prefill(Event[uint8]{Step: PromptSeen, B: 1, C: 1})
		return
	}
	t.prefill(Event[uint8]{Step: AbortAsked, A: GatewayEnd, Code: ClientGone})
}

func (t *three) decodeTakes(x word) {
	e := Event[uint8]{Step: Attached}
	switch x {
	case wordPage:
		e = Event[uint8]{Step: PageArrived}
	case wordManifest:
		e = Event[uint8]{Step: ManifestSeen, A: 1, B: t.s.D.Written, C: MACRight | DigestRight | RootRight, Code: OK}
	case wordRefusal:
		e = Event[uint8]{Step: ManifestSeen, A: 1, B: t.s.D.Written, C: MACRight | DigestRight | RootRight, Code: ContextLength}
	case wordEnd:
		e = Event[uint8]{Step: EndSeen}
	case wordAbort:
		e = Event[uint8]{Step: AbortAsked, A: PrefillLeg, Code: ClientGone}
	}
	t.decode(e)
}

func (t *three) prefillTakes(x word) {
	if x == wordGrant {
		t.prefill(Event[uint8]{Step: GrantSeen, A: 1})
		return
	}
	t.prefill(Event[uint8]{Step: AbortAsked, A: DecodeLeg, Code: ClientGone})
}

func (t *three) gatewayHearsDecode(x word) {
	e := Event[uint8]{Step: LegSettled, A: DecodeLeg}
	switch x {
	case wordReserved:
		e = Event[uint8]{Step: ReservedSeen, A: 1}
	case wordSealed:
		e = Event[uint8]{Step: SealedSeen, A: 1, B: 1, C: 1}
	case wordOutput:
		e = Event[uint8]{Step: OutputSeen, B: 1}
	case wordOutcomeOK:
		e = Event[uint8]{Step: DecodeEnded, A: 1, Code: OK}
	case wordOutcomeNo:
		e = Event[uint8]{Step: DecodeEnded, Code: ClientGone}
	}
	t.gateway(e)
}

func (t *three) gatewayHearsPrefill(x word) {
	e := Event[uint8]{Step: LegSettled, A: PrefillLeg}
	switch x {
	case wordOutcomeOK:
		e = Event[uint8]{Step: PrefillEnded, A: 1, C: 1, Code: OK}
	case wordOutcomeNo:
		e = Event[uint8]{Step: PrefillEnded, Code: ContextLength}
	}
	t.gateway(e)
}

// fold makes states equal that differ in nothing that matters any more.
func (t *three) fold() {
	no := func(c *Code) {
		if *c != None && *c != OK {
			*c = ClientGone
		}
	}
	for _, c := range []*Code{&t.s.D.Verdict, &t.s.D.ManifestVerdict, &t.s.P.Verdict, &t.s.G.Verdict, &t.s.G.PrefillCode, &t.s.G.DecodeCode} {
		no(c)
	}
	if t.s.D.Over() {
		t.s.D.ManifestSeen, t.s.D.ManifestTokens, t.s.D.ManifestPages, t.s.D.ManifestVerdict = false, 0, 0, None
	}
	if t.s.G.State == Quiet {
		t.s.G = Gateway[uint8]{State: Quiet, Verdict: t.s.G.Verdict, PrefillAsked: t.s.G.PrefillAsked}
	}
}

// tell is the world in one line.
func (s threeState) tell() string {
	var b strings.Builder
	fmt.Fprintf(&b, "gateway %s", s.G.State)
	if s.DOpen {
		fmt.Fprintf(&b, ", decode %s", s.D.State)
	}
	if s.POpen {
		fmt.Fprintf(&b, ", prefill %s", s.P.State)
	}
	for i, road := range s.Road {
		for _, x := range road {
			if x != noWord {
				fmt.Fprintf(&b, " | %s%s", roadNames[i], x)
			}
		}
	}
	return b.String()
}
