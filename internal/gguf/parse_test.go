package gguf

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// raw assembles a file by hand, so that it can be wrong.
type raw struct{ b []byte }

func head(version uint32, tensors, pairs uint64) *raw {
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("GGUF"), version)
	return &raw{le.AppendUint64(le.AppendUint64(b, tensors), pairs)}
}
func (r *raw) u32(v uint32) *raw { r.b = binary.LittleEndian.AppendUint32(r.b, v); return r }
func (r *raw) u64(v uint64) *raw { r.b = binary.LittleEndian.AppendUint64(r.b, v); return r }
func (r *raw) str(s string) *raw { r.b = appendString(r.b, s); return r }
func (r *raw) zero(n int) *raw   { r.b = append(r.b, make([]byte, n)...); return r }
func (r *raw) tensor(name string, t Type, offset uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(uint32(t)).u64(offset)
}
func (r *raw) pad() *raw { return r.zero(-len(r.b) & 31) }

func small(t testing.TB) []byte {
	t.Helper()
	var w Writer
	w.String("general.architecture", "llama")
	w.Strings("tokens", []string{" a", "\r", "", "b \n", "\x00"})
	w.Int32s("types", []int32{1, -3})
	w.Float32s("scores", []float32{-0.5, 2})
	w.Bool("yes", true)
	w.Bool("no", false)
	w.Uint32("n", 7)
	w.Float32("eps", 1e-5)
	v := make([]float32, 64)
	for i := range v {
		v[i] = float32(i-20) / 8
	}
	w.Tensor("norm", F32, []uint64{64}, v)
	w.Tensor("m", Q8_0, []uint64{32, 2}, v)
	w.Tensor("h", F16, []uint64{1, 3}, v[:3])
	b, err := w.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	b := small(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	mapped, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	parsed, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*File{mapped, parsed} {
		str, err1 := f.String("general.architecture")
		strs, err2 := f.Strings("tokens")
		ints, err3 := f.Int32s("types")
		floats, err4 := f.Float32s("scores")
		yes, err5 := f.Bool("yes")
		no, err6 := f.Bool("no")
		n, err7 := f.Uint("n")
		eps, err8 := f.Float("eps")
		if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil {
			t.Fatal(err)
		}
		got := []any{str, strs, ints, floats, yes, no, n, eps, f.Version(), f.Size(), f.Keys()}
		want := []any{"llama", []string{" a", "\r", "", "b \n", "\x00"}, []int32{1, -3}, []float32{-0.5, 2}, true, false,
			uint64(7), float64(float32(1e-5)), uint32(3), len(b),
			[]string{"general.architecture", "tokens", "types", "scores", "yes", "no", "n", "eps"}}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]uint64{64, 6, 68}, []uint64{f.tensors[0].Size / 4, f.tensors[2].Size, f.tensors[1].Size}); d != "" {
			t.Error(d)
		}
		h, _ := f.Tensor("h")
		out := make([]float32, 3)
		if err := f.Read(h, func(b []byte) error { return Decode(h.Type, b, out) }); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]float32{-2.5, -2.375, -2.25}, out); d != "" {
			t.Error(d)
		}
		if _, ok := f.Tensor("no such"); ok {
			t.Error("a tensor that is not there was found")
		}
	}
	x, err1 := mapped.Fingerprint()
	y, err2 := parsed.Fingerprint()
	if err1 != nil || err2 != nil || x != y || x == [32]byte{} {
		t.Errorf("fingerprints %x %v and %x %v", x, err1, y, err2)
	}
	b[len(b)-1]++
	other, _ := Parse(b)
	if z, _ := other.Fingerprint(); z == y {
		t.Error("another file has the same fingerprint")
	}
}

func TestGettersNameTheProblem(t *testing.T) {
	r := head(2, 0, 6)
	r.str("i8").u32(1).b = append(r.b, 0xff)
	r.str("i64").u32(11).u64(1 << 40)
	r.str("f64").u32(12).u64(math.Float64bits(1.5))
	r.str("big").u32(9).u32(4).u64(1).u32(1 << 31)
	r.str("nested").u32(9).u32(9).u64(1).u32(8).u64(1).str("x")
	r.str("u16").u32(2).b = append(r.b, 1, 2)
	f, err := Parse(r.b)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.Uint("i64"); n != 1<<40 || err != nil {
		t.Error(n, err)
	}
	if n, err := f.Uint("u16"); n != 0x201 || err != nil {
		t.Error(n, err)
	}
	if x, err := f.Float("f64"); x != 1.5 || err != nil {
		t.Error(x, err)
	}
	if k, e, n, err := f.Kind("nested"); k != KindArray || e != KindArray || n != 1 || err != nil {
		t.Error(k, e, n, err)
	}
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err = f.Uint("i8")
	is("negative", err, ErrKind)
	_, err = f.Int32s("big")
	is("over 31 bits", err, ErrKind)
	_, err = f.Strings("nested")
	is("nested", err, ErrKind)
	_, err = f.String("i8")
	is("string of a number", err, ErrKind)
	_, err = f.Float("i64")
	is("float of a whole number", err, ErrKind)
	_, err = f.Bool("i8")
	is("bool of a number", err, ErrKind)
	_, err = f.Float32s("none")
	is("absent", err, ErrAbsent)
}

func TestRefusals(t *testing.T) {
	ok := func() *raw { return head(3, 1, 0) }
	for _, c := range []struct {
		name, want string
		b          []byte
	}{
		{"empty", "begin", nil},
		{"magic", "begin", []byte("GGML\x03\x00\x00\x00")},
		{"version 1", "version 1", head(1, 0, 0).b},
		{"version 4", "version 4", head(4, 0, 0).b},
		{"big endian", "big endian", head(3<<24, 0, 0).b},
		{"short head", "left", head(3, 0, 0).b[:20]},
		{"pairs over the file", "metadata pairs", head(3, 0, 1<<60).zero(100).b},
		{"tensors over the file", "tensors", head(3, 1<<60, 0).zero(100).b},
		{"string over the file", "left", head(3, 0, 1).u64(1 << 62).zero(64).b},
		{"empty key", "key of 0", head(3, 0, 1).str("").u32(0).zero(9).b},
		{"long key", "key of 65536", head(3, 0, 1).str(strings.Repeat("k", 1<<16)).u32(0).zero(1).b},
		{"unknown kind", "kind 13", head(3, 0, 1).str("k").u32(13).zero(8).b},
		{"bool 2", "bool of value 2", append(head(3, 0, 1).str("key").u32(7).b, 2)},
		{"array over the file", "array of", head(3, 0, 1).str("k").u32(9).u32(4).u64(1 << 61).zero(64).b},
		{"strings over the file", "array of", head(3, 0, 1).str("k").u32(9).u32(8).u64(9).zero(64).b},
		{"array of unknown", "unknown kind 77", head(3, 0, 1).str("k").u32(9).u32(77).u64(1).zero(64).b},
		{"bools in an array", "bool of value 3", append(head(3, 0, 1).str("k").u32(9).u32(7).u64(2).b, 1, 3)},
		{"deep arrays", "nested", head(3, 0, 1).str("k").u32(9).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u32(9).u64(1).u32(0).u64(0).b},
		{"key twice", `"k" is there twice`, head(3, 0, 2).str("k").u32(0).zero(1).str("k").u32(0).zero(1).b},
		{"tensor twice", `"a" is there twice`, head(3, 2, 0).tensor("a", F32, 0, 1).tensor("a", F32, 32, 1).pad().zero(64).b},
		{"no dimensions", "0 dimensions", ok().tensor("a", F32, 0).zero(64).b},
		{"five dimensions", "5 dimensions", ok().tensor("a", F32, 0, 1, 1, 1, 1, 1).zero(64).b},
		{"dimension 0", "dimension is 0", ok().tensor("a", F32, 0, 0, 1).zero(64).b},
		{"product overflows", "overflow", ok().tensor("a", F32, 0, 1<<32, 1<<32).zero(64).b},
		{"product overflows, unknown type", "overflow", ok().tensor("a", 999, 0, 1<<32, 1<<32).zero(64).b},
		{"bytes overflow", "overflow", ok().tensor("a", F32, 0, 1<<62).zero(64).b},
		{"half a block", "whole Q8_0 blocks", ok().tensor("a", Q8_0, 0, 16, 2).pad().zero(64).b},
		{"long tensor name", "tensor name of", ok().tensor(strings.Repeat("n", 257), F32, 0, 1).pad().zero(64).b},
		{"end after the file", "ends after the file", ok().tensor("a", F32, 0, 17).pad().zero(64).b},
		{"offset after the file", "ends after the file", ok().tensor("a", F32, 1<<62, 1).pad().zero(64).b},
		{"no data at all", "ends after the file", ok().tensor("a", F32, 0, 1).b},
		{"not aligned", "no multiple of 32", ok().tensor("a", F32, 4, 1).pad().zero(64).b},
		{"overlap", "overlap", head(3, 2, 0).tensor("a", F32, 0, 9).tensor("b", F32, 32, 1).pad().zero(96).b},
		{"overlap, other order", "overlap", head(3, 2, 0).tensor("b", F32, 32, 1).tensor("a", F32, 0, 9).pad().zero(96).b},
		{"same place, size unknown", "overlap", head(3, 2, 0).tensor("a", 999, 0, 1).tensor("b", 999, 0, 1).pad().zero(96).b},
		{"alignment 24", "power of two", head(3, 0, 1).str("general.alignment").u32(4).u32(24).b},
		{"alignment 0", "power of two", head(3, 0, 1).str("general.alignment").u32(4).u32(0).b},
		{"alignment 2^31", "power of two", head(3, 0, 1).str("general.alignment").u32(4).u32(1 << 31).b},
		{"alignment of letters", "not a whole number", head(3, 0, 1).str("general.alignment").u32(8).str("32").b},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.b)
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := Parse(ok().tensor("a", F32, 0, 16).pad().zero(64).b); err != nil {
		t.Errorf("a file that ends with its tensor: %v", err)
	}
	if _, err := Parse(ok().tensor("a", 999, 0, 16).pad().b); err != nil {
		t.Errorf("a tensor of a type that is not known: %v", err)
	}
}

// Every prefix of a good file is an error or, from the last tensor's end on, the file.
func TestEveryCutIsRefused(t *testing.T) {
	b := small(t)
	f, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	end := 0
	for _, x := range f.Tensors() {
		end = max(end, int(x.Offset+x.Size))
	}
	for n := range b {
		if _, err := Parse(b[:n]); (err == nil) != (n >= end) {
			t.Fatalf("cut at %d of %d: %v", n, len(b), err)
		}
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	empty := filepath.Join(dir, "empty")
	os.WriteFile(empty, nil, 0o600)
	if _, err := Open(empty); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
	if _, err := Open("/dev/zero"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Error(err)
	}
}

// A mapped file that someone truncates must not take the process down.
func TestFileThatShrinks(t *testing.T) {
	var w Writer
	w.Tensor("a", F32, []uint64{1 << 16}, make([]float32, 1<<16))
	b, err := w.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fingerprint(); !errors.Is(err, ErrShrunk) {
		t.Errorf("fingerprint: %v", err)
	}
	a, _ := f.Tensor("a")
	sum := byte(0)
	err = f.Read(a, func(b []byte) error {
		for _, x := range b {
			sum += x
		}
		return nil
	})
	if !errors.Is(err, ErrShrunk) {
		t.Errorf("read: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a panic that is no fault was swallowed")
		}
	}()
	f.Read(a, func([]byte) error { panic("ours") })
}

func TestUseAfterClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, small(t), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a string was read from an unmapped file")
		}
	}()
	f.String("general.architecture")
}

func FuzzParse(f *testing.F) {
	f.Add(small(f))
	f.Add(head(2, 1, 1).str("general.alignment").u32(4).u32(64).tensor("a", Q4_1, 0, 32, 2).zero(200).b)
	f.Add(head(3, 0, 1).str("k").u32(9).u32(9).u64(2).u32(7).u64(1).zero(40).b)
	f.Add(head(3, 1, 0).tensor("a", F32, 0, 1<<32, 1<<32).zero(64).b)
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("an error of another family: %v", err)
			}
			return
		}
		for _, k := range file.Keys() {
			file.String(k)
			file.Strings(k)
			file.Int32s(k)
			file.Float32s(k)
			file.Uint(k)
			file.Float(k)
			file.Bool(k)
		}
		for _, x := range file.Tensors() {
			if !x.Type.Known() {
				continue
			}
			file.Read(x, func(b []byte) error {
				if uint64(len(b)) != x.Size {
					t.Fatalf("%d bytes of %d", len(b), x.Size)
				}
				if x.Size < 1<<16 {
					n, _ := product(x.Dims)
					Decode(x.Type, b, make([]float32, n))
				}
				return nil
			})
		}
	})
}
