package recall

import "math/bits"

const (
	keyDim   = 6  // width of a key code
	valueDim = 64 // width of a value code
)

type keyCode [keyDim]float32

func (c keyCode) dot(o keyCode) (s float32) {
	for i, v := range c {
		s += v * o[i]
	}
	return s
}

// sparse are the 240 vectors of {-1,0,1}^6 with four entries that are not 0: each has the dot product 4 with itself and at
// most 3 with any other.
func sparse() (codes []keyCode) {
	for support := range uint(1 << keyDim) {
		if bits.OnesCount(support) != 4 {
			continue
		}
		for signs := range uint(1 << 4) {
			var c keyCode
			for i := range c {
				if support>>i&1 == 0 {
					continue
				}
				c[i] = 1
				if signs&1 == 1 {
					c[i] = -1
				}
				signs >>= 1
			}
			codes = append(codes, c)
		}
	}
	return codes
}

// dense are the 64 corners of a cube whose norm is nearly a sparse code's (3.96), exact in half precision.
func dense() (codes []keyCode) {
	for signs := range uint(1 << keyDim) {
		var c keyCode
		for i := range c {
			c[i] = 0.8125
			if signs>>i&1 == 1 {
				c[i] = -0.8125
			}
		}
		codes = append(codes, c)
	}
	return codes
}

// serviceOrder lists the tokens that need a key code, those of ordinary text first: they get codes far from one another.
func serviceOrder() (order []int) {
	seen := [Vocab]bool{BOS: true} // BOS has none: an empty slot matches nothing
	add := func(t int) {
		if !seen[t] {
			seen[t] = true
			order = append(order, t)
		}
	}
	for _, c := range []byte(" etaoinshrdlucmfwygpbvkjxqz\n.,0123456789ETAOINSHRDLUCMFWYGPBVKJXQZ'\"-:;!?()/_=") {
		add(int(c))
	}
	for _, span := range [][2]int{{' ', 127}, {EOS, Tool}, {128, 255}, {0, Vocab - 1}} {
		for t := span[0]; t <= span[1]; t++ {
			add(t)
		}
	}
	return order
}

// keyCodes gives each token the free code that is least near to those given before: by the largest dot product, then by
// the sum of squares of the positive ones. The sparse codes go first; the rarest tokens, for which they do not
// suffice, get dense ones.
func keyCodes() (codes [Vocab]keyCode) {
	type candidate struct {
		code           keyCode
		nearest, crowd float32
		taken          bool
	}
	var pool []candidate
	for _, c := range append(sparse(), dense()...) {
		pool = append(pool, candidate{code: c, nearest: -2 * keyDim})
	}
	nSparse := len(sparse())
	for n, t := range serviceOrder() {
		from, to := 0, nSparse
		if n >= nSparse {
			from, to = nSparse, len(pool)
		}
		best := -1
		for i := from; i < to; i++ {
			if c := &pool[i]; !c.taken && (best < 0 || c.nearest < pool[best].nearest ||
				c.nearest == pool[best].nearest && c.crowd < pool[best].crowd) {
				best = i
			}
		}
		given := pool[best].code
		pool[best].taken = true
		codes[t] = given
		for i := range pool {
			d := pool[i].code.dot(given)
			pool[i].nearest = max(pool[i].nearest, d)
			if d > 0 {
				pool[i].crowd += float32(d * d)
			}
		}
	}
	return codes
}

// form is a quadratic form over F_2 in six variables: bit n is the coefficient of the n-th product x_i*x_j, i < j.
type form uint32

// at is the form's value at x.
func (q form) at(x int) (v int) {
	n := 0
	for i := range keyDim {
		for j := i + 1; j < keyDim; j++ {
			v ^= int(q>>n) & (x >> i) & (x >> j) & 1
			n++
		}
	}
	return v
}

// bent reports whether the form's alternating matrix has full rank.
func (q form) bent() bool {
	var rows [keyDim]uint
	n := 0
	for i := range rows {
		for j := i + 1; j < keyDim; j++ {
			if q>>n&1 == 1 {
				rows[i] |= 1 << j
				rows[j] |= 1 << i
			}
			n++
		}
	}
	for col := range rows {
		pivot := -1
		for r := col; r < keyDim; r++ {
			if rows[r]>>col&1 == 1 {
				pivot = r
				break
			}
		}
		if pivot < 0 {
			return false
		}
		rows[col], rows[pivot] = rows[pivot], rows[col]
		for r := range rows {
			if r != col && rows[r]>>col&1 == 1 {
				rows[r] ^= rows[col]
			}
		}
	}
	return true
}

// valueCodes gives each token a vector of 64 signs, (-1)^(Q(x) + a.x) for x in F_2^6: one of five forms Q, whose differences are all
// bent, and one of 64 a (a piece of a Kerdock set). Two of them have a dot product of at most 8, so a mixture of tied
// candidates reads out as one of them.
func valueCodes() (codes [Vocab][valueDim]float32) {
	var forms []form
	for q := form(0); len(forms) < (Vocab+valueDim-1)/valueDim; q++ {
		if q == 1<<15 {
			panic("recall: there are not enough forms whose differences are bent")
		}
		fits := true
		for _, f := range forms {
			fits = fits && (q ^ f).bent() // forms add over F_2
		}
		if fits {
			forms = append(forms, q)
		}
	}
	for t := range codes {
		q, a := forms[t/valueDim], t%valueDim
		for x := range codes[t] {
			codes[t][x] = 1
			if q.at(x)^bits.OnesCount(uint(a&x))&1 == 1 {
				codes[t][x] = -1
			}
		}
	}
	return codes
}
