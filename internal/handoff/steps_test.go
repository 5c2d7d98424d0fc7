package handoff

import (
	goflag "flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

var writeSteps = goflag.Bool("write-steps", false, "write testdata/steps from what the machines do now")

// machine is what the three have in common.
type machine[M any] interface {
	comparable
	Step(Event) (M, Effects)
	Digest() uint64
}

// outcome is what a step came to, as far as testdata/steps tells it in words.
type outcome struct {
	illegal bool
	state   string
	does    Effects
}

func (o outcome) String() string {
	if o.illegal {
		return "illegal"
	}
	var b strings.Builder
	b.WriteString(o.state)
	for x := range o.does.All() {
		fmt.Fprintf(&b, " %s%v", strings.TrimPrefix(fmt.Sprintf("%T", x), "handoff."), x)
	}
	return b.String()
}

// cell is one state and one kind of event: what may come of it, how often, and a sum of all that came of it.
type cell struct {
	ways  map[outcome]int
	order []outcome
	sum   hash
}

func take[M machine[M]](m M, e Event) (next M, does Effects, illegal bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ours := p.(string); !ours {
				panic(p)
			}
			next, does, illegal = m, Effects{}, true
		}
	}()
	next, does = m.Step(e)
	return next, does, false
}

// table takes every event in every state that is within reach, and within bounds, of start.
func table[M machine[M]](start M, within func(M) bool, state func(M) string, events []Event) (string, int) {
	cells, names := map[[2]string]*cell{}, [][2]string{}
	seen, todo, steps := map[M]bool{start: true}, []M{start}, 0
	for len(todo) > 0 {
		m := todo[0]
		todo = todo[1:]
		for i, e := range events {
			steps++
			next, does, illegal := take(m, e)
			name := [2]string{state(m), strings.TrimPrefix(reflect.TypeOf(e).String(), "handoff.")}
			c := cells[name]
			if c == nil {
				c = &cell{ways: map[outcome]int{}, sum: newHash()}
				cells[name], names = c, append(names, name)
			}
			o := outcome{illegal, state(next), does}
			if illegal {
				o.state = ""
			}
			if c.ways[o]++; c.ways[o] == 1 {
				c.order = append(c.order, o)
			}
			a, b := m.Digest(), next.Digest()
			c.sum = c.sum.u32(uint32(a), uint32(a>>32), uint32(b), uint32(b>>32), uint32(i), uint32(slices.Index(c.order, o)))
			if !illegal && !seen[next] && within(next) {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	var b strings.Builder
	for _, n := range names {
		c := cells[n]
		fmt.Fprintf(&b, "%s, %s: %016x\n", n[0], n[1], uint64(c.sum))
		for _, o := range c.order {
			fmt.Fprintf(&b, "    %d %s\n", c.ways[o], o)
		}
	}
	return b.String(), steps
}

var (
	anyWord = []verdict.Code{verdict.None, verdict.OK, verdict.ContextLength, verdict.LegsDisagree, 250}
	anyone  = []Who{Self, GatewayEnd, PrefillLeg, DecodeLeg, ClientEnd}
)

// world is what may come to any of the three.
func world() (all []Event) {
	for _, w := range anyone {
		all = append(all, PeerLost{w})
		for _, c := range anyWord {
			all = append(all, AbortAsked{w, c})
		}
	}
	for _, c := range anyWord[:4] {
		all = append(all, Violation{c})
	}
	return append(all, DeadlinePassed{})
}

// leg is what may come to either leg.
func leg() []Event {
	all := append(world(), PagesReserved{3}, LeaseDrained{})
	for _, c := range anyWord[:4] {
		for _, n := range []uint32{0, 19, 20} {
			all = append(all, EngineDone{n, c})
		}
		all = append(all, ReserveEnded{c})
	}
	return all
}

func eachFlag(n int, f func(...bool)) {
	for bits := range 1 << n {
		fs := make([]bool, n)
		for i := range fs {
			fs[i] = bits>>i&1 == 1
		}
		f(fs...)
	}
}

func decodeEvents() []Event {
	all := append(leg(), Attached{}, EndSeen{true}, EndSeen{false}, EchoCompared{true}, EchoCompared{false}, TokenReady{}, StopAsked{})
	for i := range uint32(4) {
		all = append(all, PageArrived{i})
	}
	for _, c := range []verdict.Code{verdict.None, verdict.OK, verdict.TagMismatch} {
		all = append(all, PageLanded{0, c}, SealDone{c})
	}
	for _, word := range anyWord {
		for _, tokens := range []uint32{19, 20} {
			for _, pages := range []uint32{0, 1, 2} {
				eachFlag(3, func(f ...bool) { all = append(all, ManifestSeen{tokens, pages, f[0], f[1], f[2], word}) })
			}
		}
	}
	return all
}

func prefillEvents() []Event {
	all := append(leg(), ClosingSent{})
	for _, n := range []uint32{0, 1, 10, 20, 21} {
		for _, at := range []uint32{0, 10, 19} {
			all = append(all, PromptSeen{at, n, true}, PromptSeen{at, n, false})
		}
	}
	for i := range uint32(4) {
		all = append(all, PageTaken{i}, PageSent{i}, PageDropped{i}, GrantSeen{i, verdict.None}, GrantSeen{i, verdict.MACMismatch}, GrantSeen{i, verdict.OK})
		for to := range uint32(4) {
			all = append(all, PagesSealed{i, to})
		}
	}
	return all
}

func gatewayEvents() []Event {
	all := append(world(), ReservedSeen{3}, StopFound{})
	for _, w := range anyone {
		all = append(all, LegSettled{w})
	}
	for _, tokens := range []uint32{19, 20} {
		all = append(all, SealedSeen{tokens, 1, 1, true}, SealedSeen{tokens, 2, 0, false})
		for _, c := range anyWord {
			all = append(all, PrefillEnded{tokens, true, c}, PrefillEnded{tokens, false, c})
		}
	}
	for i := range uint32(2) {
		all = append(all, OutputSeen{i, 0}, OutputSeen{i, 1}, OutputSeen{i, 2})
		for _, c := range anyWord {
			all = append(all, DecodeEnded{i, c})
		}
	}
	return all
}

// TestEveryStepIsTheOneOfTheTable: the machines are the protocol, so no change of what they do goes by unseen. Each takes every event in every
// state within reach: testdata/steps has, for each state and kind of event, what comes of it and how often, and a sum of the values behind it.
// Where a change is meant: -args -write-steps, and the difference is for the reviewer to read.
func TestEveryStepIsTheOneOfTheTable(t *testing.T) {
	if guard.Unsafe {
		t.Skip("guards may be out")
	}
	decode := func(d Decode) (string, int) {
		return table(d, func(d Decode) bool { return d.Landing <= 2 && d.Written <= 3 && d.Emitted <= 1 }, func(d Decode) string { return d.State.String() }, decodeEvents())
	}
	held := NewDecode(20, 2)
	held.Held = 1
	gateway, first := NewGateway(20)
	for _, x := range []struct {
		name string
		make func() (string, int)
	}{
		{"decode", func() (string, int) { return decode(NewDecode(20, 2)) }},
		{"decode_held", func() (string, int) { return decode(held) }},
		{"prefill", func() (string, int) {
			return table(NewPrefill(20, 2), func(p Prefill) bool { return true }, func(p Prefill) string { return p.State.String() }, prefillEvents())
		}},
		{"gateway", func() (string, int) {
			s, n := table(gateway, func(g Gateway) bool { return g.Output <= 1 }, func(g Gateway) string { return g.State.String() }, gatewayEvents())
			return fmt.Sprintf("the attempt starts: %s\n%s", outcome{state: gateway.State.String(), does: first}, s), n
		}},
		{"events", func() (string, int) {
			var b strings.Builder
			n := 0
			for _, e := range slices.Concat(decodeEvents(), prefillEvents(), gatewayEvents()) {
				n++
				fmt.Fprintf(&b, "%T%+v: %+v\n", e, e, e.Trace())
			}
			return b.String(), n
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, steps := x.make()
			t.Logf("%d steps", steps)
			file := "testdata/steps/" + x.name + ".txt"
			if *writeSteps {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if want := string(b); got != want {
				differ(t, strings.Split(want, "\n"), strings.Split(got, "\n"))
			}
		})
	}
}

// differ prints the cells that are not in the table.
func differ(t *testing.T, want, got []string) {
	t.Helper()
	cell, n := "", 0
	for _, l := range got {
		if !strings.HasPrefix(l, " ") {
			cell = l
		}
		if !slices.Contains(want, l) {
			if n++; n <= 10 {
				t.Errorf("not what the table says: %s: %s", cell, strings.TrimSpace(l))
			}
		}
	}
	t.Errorf("%d lines are not in the table, which has %d lines for %d: see this test's comment", n, len(want), len(got))
}

// TestADigestTellsEveryField: two values of a machine that differ in one field have two names in a trace.
func TestADigestTellsEveryField(t *testing.T) {
	if n := fields(t, reflect.ValueOf(&Decode{}).Elem(), "Decode", func(v reflect.Value) uint64 { return v.Interface().(Decode).Digest() }); n != 17 {
		t.Errorf("decode has %d fields", n)
	}
	if n := fields(t, reflect.ValueOf(&Prefill{}).Elem(), "Prefill", func(v reflect.Value) uint64 { return v.Interface().(Prefill).Digest() }); n != 16 {
		t.Errorf("prefill has %d fields", n)
	}
	if n := fields(t, reflect.ValueOf(&Gateway{}).Elem(), "Gateway", func(v reflect.Value) uint64 { return v.Interface().(Gateway).Digest() }); n != 17 {
		t.Errorf("gateway has %d fields", n)
	}
}

// fields changes each field of m alone, each byte of it, and asks for its digest.
func fields(t *testing.T, m reflect.Value, name string, digest func(reflect.Value) uint64) (n int) {
	seen := map[uint64]string{digest(m): "zero"}
	var each func(v reflect.Value, name string)
	try := func(v, to reflect.Value, name string) {
		was := reflect.ValueOf(v.Interface())
		v.Set(to)
		if other, ok := seen[digest(m)]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[digest(m)] = name
		v.Set(was)
	}
	each = func(v reflect.Value, name string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				each(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
		case reflect.Bool:
			n++
			try(v, reflect.ValueOf(true), name)
		default:
			n++
			for i := range v.Type().Size() {
				try(v, reflect.ValueOf(uint64(3)<<(8*i)).Convert(v.Type()), fmt.Sprintf("%s, byte %d", name, i))
			}
		}
	}
	each(m, name)
	return n
}
