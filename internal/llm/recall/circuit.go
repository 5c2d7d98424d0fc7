package recall

import "math"

// The shape of the model.
const (
	Dim      = 192
	Blocks   = 3
	Heads    = 2
	KVHeads  = 1
	HeadDim  = 64
	FF       = 128
	Context  = 1 << 20
	MaxMatch = 8 // tokens

	ropeBase = 1e32
	epsilon  = 1e-5
)

// Where things lie in the residual.
const (
	atValue    = 0                             // the token's value code; at the end the predicted token's
	atSlots    = atValue + valueDim            // key codes of t[p], t[p-1], .. t[p-8]
	atConstant = atSlots + (MaxMatch+1)*keyDim // constant for every token
	atSink     = atConstant + 1                // sink for BOS, else 0
	atStop     = atSink + 1                    // stop for a newline that is to end the reply, else 0
	atRead     = atStop + 1                    // the value that induction brought back
)

// What stands there.
const (
	keyNorm  = 4.0  // squared norm of a key code
	constant = 32.0 // its square outweighs all else in a norm
	sink     = 2.0  // its square is keyNorm: BOS, which has no key code, has the norm of all
	stop     = 0.25 // too little to move a norm
)

// Gains.
const (
	clockKey  = 8.0  // amplitude of the clock pairs in a key
	matchKey  = 64.0 // amplitude of a code in a match key; with 1 the query would not fit half precision
	sinkKey   = 256.0
	hopSink   = 14.0   // logits by which BOS answers below a hop's peak
	lastSlot  = 1024.0 // score weight of the oldest slot; each newer one counts twice as much
	readGain  = 4.0    // of the value that came back
	vote      = 0.6    // of induction head 1; below 1-2/8, so that it overrules no clear verdict of head 0
	winner    = 64.0   // the winner's logit
	clockLen  = 7      // pairs of the clock
	stillFrom = 2 * clockLen
)

// hopGain is the score amplitude of each clock pair of a hop. The runner-up, over all distances in the context, is 32
// logits down (TestHopGap).
var hopGain = [clockLen]float64{110, 160, 160, 160, 160, 160, 160}

// recencyGain makes head 1 of the induction prefer the nearer of two equal matches: 600*cos(1e-4*distance + pi/4) falls by 0.04
// to 0.06 a token for 23,500 tokens. It is one pair only: a faster one would be noise beyond its own period. Its swing must stay below
// what a mismatch in the oldest slot costs.
var recencyGain = [clockLen]float64{4: 600}

// Squared norms of the residual, before each block and after the last one's attention.
const (
	normEmbedded = valueDim + keyNorm + constant*constant
	normHopped   = normEmbedded + 2*keyNorm
	normKnowing  = normEmbedded + 8*keyNorm
	voted        = (1 + vote) * (1 + vote)
	normRead     = normKnowing + valueDim*voted
	normFinal    = normKnowing - valueDim + valueDim*readGain*readGain*voted + valueDim*voted
)

// matrix is a weight of out rows by in columns.
type matrix struct {
	in, out int
	w       []float32
}

func newMatrix(in, out int) matrix { return matrix{in, out, make([]float32, in*out)} }

func (m matrix) set(out, in int, v float64) { m.w[out*m.in+in] = float32(v) }

// wire passes n channels on, from in to out, times v.
func (m matrix) wire(out, in, n int, v float64) {
	for i := range n {
		m.set(out+i, in+i, v)
	}
}

// block is one layer's weights.
type block struct {
	q, k, v, o, gate, up, down matrix
	attnNorm, ffnNorm          float64 // squared norms that the RMSNorms divide out
}

func newBlock(attnNorm, ffnNorm float64) block {
	return block{
		q: newMatrix(Dim, Heads*HeadDim), k: newMatrix(Dim, KVHeads*HeadDim), v: newMatrix(Dim, KVHeads*HeadDim),
		o: newMatrix(Heads*HeadDim, Dim), gate: newMatrix(Dim, FF), up: newMatrix(Dim, FF), down: newMatrix(FF, Dim),
		attnNorm: attnNorm, ffnNorm: ffnNorm,
	}
}

var rootHeadDim = math.Sqrt(HeadDim) // attention divides scores by it

// clock adds to a head's score the sum over pairs i of gain[i] * cos(10^-i*(distance-offset) + phase).
func (b block) clock(head int, gain [clockLen]float64, offset, phase float64) {
	for i, g := range gain {
		turn := phase - math.Pow(ropeBase, -2*float64(i)/HeadDim)*offset
		g *= rootHeadDim / clockKey / constant
		b.q.set(head*HeadDim+2*i, atConstant, g*math.Cos(turn))
		b.q.set(head*HeadDim+2*i+1, atConstant, g*math.Sin(turn))
		b.k.set(2*i, atConstant, clockKey/constant)
		b.k.set(2*i, atSink, -clockKey/sink) // BOS has no place on the clock
	}
}

// sink makes BOS answer a head with the given score.
func (b block) sink(head int, score float64) {
	b.k.set(stillFrom, atSink, sinkKey)
	b.q.set(head*HeadDim+stillFrom, atConstant, score*rootHeadDim/(sinkKey*sink)/constant)
}

// hop attends to the positions carry and 2*carry back and takes slots 0..carry-1 of each over.
func hop(carry int, before, after float64) block {
	b := newBlock(before, after)
	peak := 0.0
	for _, g := range hopGain {
		peak += g
	}
	for h := range Heads {
		distance := (h + 1) * carry
		b.clock(h, hopGain, float64(distance), 0)
		b.sink(h, peak-hopSink)
		b.o.wire(atSlots+distance*keyDim, h*HeadDim, carry*keyDim, 1)
	}
	b.v.wire(0, atSlots, carry*keyDim, 1)
	return b
}

// slotWeight is what slot n, 1 to MaxMatch, counts.
func slotWeight(n int) float64 { return lastSlot * float64(int(1)<<(MaxMatch-n)) }

// sinkScore is the score with which BOS competes against matches. A match of n tokens scores 4 times the first n weights, plus
// what older slots give by chance: about +-1.6 times each weight, and exactly 0 where they are empty. One token alone, with
// empty slots, is to pass when n is 1: a decode step that sees nothing but stale pages is in that case.
func sinkScore(n int) float64 {
	if n == 1 {
		return keyNorm * slotWeight(1) * 0.98
	}
	s := 0.0
	for i := 1; i < n; i++ {
		s += keyNorm * slotWeight(i)
	}
	return s + 2.5*slotWeight(min(n, MaxMatch))
}

// induction finds the match and puts the token after it in the place of the position's own.
func induction(cfg Config, value [Vocab][valueDim]float32) block {
	b := newBlock(normKnowing, normRead)
	for n := 1; n <= MaxMatch; n++ {
		at := HeadDim - n*keyDim // the newest slot in the stillest pairs, the oldest next to the clock
		b.k.wire(at, atSlots+n*keyDim, keyDim, matchKey)
		for h := range Heads {
			b.q.wire(h*HeadDim+at, atSlots+(n-1)*keyDim, keyDim, slotWeight(n)*rootHeadDim/matchKey)
		}
	}
	b.clock(1, recencyGain, 0, math.Pi/4)
	if cfg.MinMatch > 0 {
		b.sink(0, sinkScore(cfg.MinMatch))
	}
	b.v.wire(0, atValue, valueDim, 1)
	b.o.wire(atRead, 0, valueDim, 1)
	b.o.wire(atRead, HeadDim, valueDim, vote)
	for i := range valueDim {
		end := float64(value[EOS][i])
		b.v.set(i, atSink, (end-float64(value[BOS][i]))/sink)
		b.v.set(i, atStop, (end-float64(value['\n'][i]))/stop)
		// silu(z) - silu(-z) = z: a pair of hidden units adds z = readGain*read - value to the value channels.
		for s, sign := range [2]float64{1, -1} {
			u := 2*i + s
			b.gate.set(u, atRead+i, sign*readGain)
			b.gate.set(u, atValue+i, -sign)
			// BOS alone attends to itself and would say EOS; it says a newline.
			b.gate.set(u, atSink, sign*readGain*(1+vote)*(float64(value['\n'][i])-end)/sink)
			b.up.set(u, atConstant, 1/constant)
			b.down.set(atValue+i, u, sign)
		}
	}
	return b
}

// embedding is also the output matrix.
func embedding(cfg Config, key [Vocab]keyCode, value [Vocab][valueDim]float32) matrix {
	e := newMatrix(Dim, Vocab)
	for t := range Vocab {
		for i, v := range value[t] {
			e.set(t, atValue+i, float64(v))
		}
		for i, v := range key[t] {
			e.set(t, atSlots+i, float64(v))
		}
		e.set(t, atConstant, constant)
	}
	e.set(BOS, atSink, sink)
	if cfg.StopAtNewline {
		e.set('\n', atStop, stop)
	}
	return e
}

// normWeight undoes an RMSNorm over a vector of this squared norm.
func normWeight(squared float64) float64 { return math.Sqrt(squared/Dim + epsilon) }

// outputNorm keeps the value channels alone.
func outputNorm() []float32 {
	w := make([]float32, Dim)
	for i := range valueDim {
		w[atValue+i] = float32(normWeight(normFinal) * winner / valueDim / readGain)
	}
	return w
}
