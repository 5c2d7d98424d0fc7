package kernel

import (
	"fmt"
	"math"
)

// RMSNorm normalises rows of len(w) floats: dst = x / sqrt(mean(x^2) + eps) * w. The mean is summed in double precision, as
// ggml does. dst may be x.
func RMSNorm(dst, x, w []float32, eps float32) {
	d := len(w)
	if d == 0 || len(x)%d != 0 || len(dst) != len(x) {
		panic(fmt.Sprintf("kernel: norm of %d into %d with %d weights", len(x), len(dst), d))
	}
	for r := 0; r < len(x); r += d {
		row, out := x[r:][:d], dst[r:][:d]
		var sum [16]float64
		n := 0
		if avx2 && d >= 16 {
			n = d &^ 15
			squaresAVX2(&row[0], n, &sum[0])
		}
		for i := n; i < d; i++ {
			sum[i%16] += float64(float32(row[i] * row[i]))
		}
		for half := 8; half > 0; half /= 2 {
			for i := range half {
				sum[i] += sum[i+half]
			}
		}
		mean := float32(sum[0] / float64(d))
		scale := 1 / float32(math.Sqrt(float64(mean+eps)))
		n = 0
		if avx2 && d >= 8 {
			n = d &^ 7
			scaleAVX2(&out[0], &row[0], &w[0], n, scale)
		}
		for i := n; i < d; i++ {
			out[i] = float32(row[i]*scale) * w[i]
		}
	}
}

// RopeFreqs are the radians per position of each pair of dims: base^(-2i/dims). dims is even.
func RopeFreqs(dims int, base float64) []float64 {
	f := make([]float64, dims/2)
	for i := range f {
		f[i] = math.Pow(base, -2*float64(i)/float64(dims))
	}
	return f
}

// RopeTable writes cosine and sine of pos*freqs[i] to cs[2i], cs[2i+1]: one table serves all heads and layers of a position.
// Angles are taken in double precision, so that they are right at a million positions.
func RopeTable(cs []float32, pos int, freqs []float64) {
	if len(cs) != 2*len(freqs) {
		panic(fmt.Sprintf("kernel: a rope table of %d for %d pairs", len(cs), len(freqs)))
	}
	for i, f := range freqs {
		sin, cos := math.Sincos(float64(pos) * f)
		cs[2*i], cs[2*i+1] = float32(cos), float32(sin)
	}
}

// Rope rotates each head of hd dims of one token, pairs (2i, 2i+1) by the table's angle i: the order of dims in the GGUF
// files of the llama family. Dims after the table's stay as they are.
func Rope(x []float32, hd int, cs []float32) {
	if hd <= 0 || len(x)%hd != 0 || len(cs) > hd || len(cs)%2 != 0 {
		panic(fmt.Sprintf("kernel: rope of %d values in heads of %d with %d angles", len(x), hd, len(cs)))
	}
	for h := 0; h < len(x); h += hd {
		head, n := x[h:][:len(cs)], 0
		if avx2 && len(cs) >= 8 {
			n = len(cs) &^ 7
			ropeAVX2(&head[0], &cs[0], n)
		}
		for i := n; i < len(cs); i += 2 {
			a, b, cos, sin := head[i], head[i+1], cs[i], cs[i+1]
			head[i] = float32(a*cos) - float32(b*sin)
			head[i+1] = float32(a*sin) + float32(b*cos)
		}
	}
}

// SiLUMul is the gate of a SwiGLU block: dst = g / (1 + exp(-g)) * u, element by element. dst may be g or u.
func SiLUMul(dst, g, u []float32) {
	if len(dst) != len(g) || len(dst) != len(u) {
		panic(fmt.Sprintf("kernel: gate of %d and %d into %d", len(g), len(u), len(dst)))
	}
	if !avx2 {
		for i, v := range g {
			dst[i] = v / (1 + expGo(-v)) * u[i]
		}
		return
	}
	n := len(g) &^ 7
	if n > 0 {
		siluMulAVX2(&dst[0], &g[0], &u[0], n)
	}
	if n < len(g) { // the rest through the same arithmetic, so that no element depends on where a thread's share ends
		var gt, ut [8]float32
		copy(gt[:], g[n:])
		copy(ut[:], u[n:])
		siluMulAVX2(&gt[0], &gt[0], &ut[0], 8)
		copy(dst[n:], gt[:])
	}
}

// Add does dst += x.
func Add(dst, x []float32) {
	if len(dst) != len(x) {
		panic(fmt.Sprintf("kernel: add %d to %d", len(x), len(dst)))
	}
	n := 0
	if avx2 && len(x) >= 8 {
		n = len(x) &^ 7
		addAVX2(&dst[0], &x[0], n)
	}
	for i := n; i < len(x); i++ {
		dst[i] += x[i]
	}
}

// Max is the largest of x, which must not be empty.
func Max(x []float32) float32 {
	top, n := x[0], 0
	if avx2 && len(x) >= 8 {
		n = len(x) &^ 7
		top = maxAVX2(&x[0], n)
	}
	for _, v := range x[n:] {
		top = max(top, v)
	}
	return top
}

// ExpSum writes dst = exp(x - top), where top is the largest of x, and returns the sum of dst. dst may be x.
func ExpSum(dst, x []float32, top float32) float64 {
	if len(dst) != len(x) {
		panic(fmt.Sprintf("kernel: exponentials of %d into %d", len(x), len(dst)))
	}
	sum := 0.0
	const run = 1024 // summed in eight lanes of floats, runs in double precision: a vocabulary is long
	for len(x) > 0 {
		n := min(run, len(x))
		var lanes [8]float32
		expSum(dst[:n], x[:n], top, &lanes)
		sum += float64(sumLanes(&lanes))
		dst, x = dst[n:], x[n:]
	}
	return sum
}

func expSum(dst, x []float32, top float32, lanes *[8]float32) {
	if !avx2 {
		for i, v := range x {
			dst[i] = expGo(v - top)
			lanes[i%8] += dst[i]
		}
		return
	}
	n := len(x) &^ 7
	if n > 0 {
		expSumAVX2(&dst[0], &x[0], n, &lanes[0], top)
	}
	if n < len(x) {
		t := [8]float32{negInf, negInf, negInf, negInf, negInf, negInf, negInf, negInf}
		copy(t[:], x[n:])
		expSumAVX2(&t[0], &t[0], 8, &lanes[0], top)
		copy(dst[n:], t[:])
	}
}

// expGo is e^x for x <= 88: the polynomial of Cephes' expf, within 2 units of the last place. Below -87.3 it is 0.
func expGo(x float32) float32 {
	if x < expLow {
		return 0
	}
	if x > expHigh {
		x = expHigh
	}
	n := float32(math.RoundToEven(float64(x * math.Log2E)))
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	p := float32(expC0)
	p = float32(p*r) + expC1
	p = float32(p*r) + expC2
	p = float32(p*r) + expC3
	p = float32(p*r) + expC4
	p = float32(p*r) + expC5
	p = float32(float32(p*r)*r) + r + 1
	if p != p {
		return p
	}
	return math.Float32frombits(math.Float32bits(p) + uint32(int32(n))<<23)
}

const (
	expLow  = -87.3
	expHigh = 88.3
	ln2High = 0.693359375
	ln2Low  = -2.12194440e-4
	expC0   = 1.9875691500e-4
	expC1   = 1.3981999507e-3
	expC2   = 8.3334519073e-3
	expC3   = 4.1665795894e-2
	expC4   = 1.6666665459e-1
	expC5   = 5.0000001201e-1
)
