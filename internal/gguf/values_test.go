package gguf

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestHalfIsExact(t *testing.T) {
	for h := range 1 << 16 {
		f := FromHalf(uint16(h))
		if f != f {
			if back := FromHalf(ToHalf(f)); back == back {
				t.Fatalf("%#x: not a number became %v", h, back)
			}
			continue
		}
		if back := ToHalf(f); back != uint16(h) {
			t.Fatalf("%#x widens to %v and narrows to %#x", h, f, back)
		}
	}
	for _, c := range []struct {
		f    float32
		want uint16
	}{
		{1, 0x3c00}, {-2, 0xc000}, {65504, 0x7bff}, {65519.996, 0x7bff}, {65520, 0x7c00}, {-1e30, 0xfc00},
		{0x1p-24, 1}, {0x1p-25, 0}, {0x1.8p-25, 1}, {0x1p-14, 0x400}, // the least values
		{1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02}, // ties go to even
		{0x1.ffep-15, 0x400}, // just below the least normal
	} {
		if got := ToHalf(c.f); got != c.want {
			t.Errorf("%v: %#x, want %#x", c.f, got, c.want)
		}
	}
}

// The blocks as ggml draws them, by hand.
func TestDecodeBlocks(t *testing.T) {
	q8 := append([]byte{0x00, 0x38}, make([]byte, 32)...) // d = 0.5
	q8[2], q8[33] = 0x80, 127
	q40 := append([]byte{0x00, 0xc0}, make([]byte, 16)...) // d = -2
	q40[2], q40[17] = 0xf1, 0x08
	q41 := append([]byte{0x00, 0x38, 0x00, 0x3c}, make([]byte, 16)...) // d = 0.5, m = 1
	q41[4], q41[19] = 0xf1, 0x20
	for _, c := range []struct {
		t    Type
		b    []byte
		want map[int]float32
	}{
		{Q8_0, q8, map[int]float32{0: -64, 31: 63.5, 1: 0}},
		{Q4_0, q40, map[int]float32{0: 14, 16: -14, 15: 0, 31: 16, 1: 16}},
		{Q4_1, q41, map[int]float32{0: 1.5, 16: 8.5, 15: 1, 31: 2, 1: 1}},
	} {
		out := make([]float32, 32)
		if err := Decode(c.t, c.b, out); err != nil {
			t.Fatal(err)
		}
		for i, w := range c.want {
			if out[i] != w {
				t.Errorf("%s value %d: %v, want %v", c.t, i, out[i], w)
			}
		}
	}
}

// Encoding loses at most half a step, and what was decoded encodes to itself.
func TestEncodeDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	v := make([]float32, 32*64)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	clear(v[32:64])
	for _, c := range []struct {
		t    Type
		step float64 // of a block whose values reach about 4
	}{{F32, 0}, {F16, 0x1p-8}, {Q8_0, 8. / 127}, {Q4_0, 8. / 8}, {Q4_1, 8. / 15}} {
		b, err := Encode(c.t, v)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]float32, len(v))
		if err := Decode(c.t, b, out); err != nil {
			t.Fatal(err)
		}
		for i := range v {
			if d := math.Abs(float64(v[i] - out[i])); d > c.step {
				t.Fatalf("%s: value %d: %v became %v", c.t, i, v[i], out[i])
			}
		}
		if out[40] != 0 {
			t.Errorf("%s: a block of zeroes became %v", c.t, out[40])
		}
	}
	if _, err := Encode(Q8_0, v[:31]); err == nil {
		t.Error("31 values were encoded as Q8_0")
	}
	if _, err := Encode(14, make([]float32, 256)); err == nil {
		t.Error("Q6_K was encoded")
	}
	if err := Decode(Q8_0, make([]byte, 33), make([]float32, 32)); err == nil {
		t.Error("33 bytes were decoded")
	}
}

func TestWriterKeepsTheFirstError(t *testing.T) {
	for name, write := range map[string]func(w *Writer){
		"key twice": func(w *Writer) { w.Bool("a", true); w.Uint32("a", 1) },
		"empty key": func(w *Writer) { w.Bool("", true) },
		"tensor twice": func(w *Writer) {
			w.Tensor("a", F32, []uint64{1}, []float32{1})
			w.Tensor("a", F32, []uint64{1}, []float32{1})
		},
		"wrong count":   func(w *Writer) { w.Tensor("a", F32, []uint64{2}, []float32{1}) },
		"half a block":  func(w *Writer) { w.Tensor("a", Q4_0, []uint64{16, 2}, make([]float32, 32)) },
		"raw, no name":  func(w *Writer) { w.Raw("", 99, []uint64{1}, nil) },
		"raw, too long": func(w *Writer) { w.Raw("a", F32, []uint64{1}, make([]byte, 5)) },
	} {
		var w Writer
		write(&w)
		if b, err := w.Bytes(); err == nil || b != nil {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}
