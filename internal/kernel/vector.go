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
		var sum [4]float64
		for i, v := range row {
			sum[i%4] += float64(float32(v * v))
		}
		mean := float32(((sum[0] + sum[2]) + (sum[1] + sum[3])) / float64(d))
		scale := 1 / float32(math.Sqrt(float64(mean+eps)))
		for i, v := range row {
			out[i] = float32(v*scale) * w[i]
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
		head := x[h:][:len(cs)]
		for i := 0; i < len(cs); i += 2 {
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
	for i, v := range g {
		dst[i] = v / (1 + expGo(-v)) * u[i]
	}
}

// Add does dst += x.
func Add(dst, x []float32) {
	if len(dst) != len(x) {
		panic(fmt.Sprintf("kernel: add %d to %d", len(x), len(dst)))
	}
	for i, v := range x {
		dst[i] += v
	}
}

// Max is the largest of x, which must not be empty.
func Max(x []float32) float32 {
	top := x[0]
	for _, v := range x[1:] {
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
	for i, v := range x {
		dst[i] = expGo(v - top)
		sum += float64(dst[i])
	}
	return sum
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
	p = float32(p*float32(r*r)) + r + 1
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
