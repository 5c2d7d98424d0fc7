package main

import (
	"fmt"
	"os"

	"github.com/sluicekv/sluice/internal/gguf"
)

// expand writes a model anew with every weight as F32, of the same value. Then neither side quantizes activations, and what is left
// to differ is arithmetic.
func expand(in, out string) error {
	f, err := gguf.Open(in)
	if err != nil {
		return err
	}
	var w gguf.Writer
	for _, key := range f.Keys() {
		if err := copyPair(&w, f, key); err != nil {
			return err
		}
	}
	for _, t := range f.Tensors() {
		n := uint64(1)
		for _, d := range t.Dims {
			n *= d
		}
		v := make([]float32, n)
		if err := f.Read(t, func(b []byte) error { return gguf.Decode(t.Type, b, v) }); err != nil {
			return err
		}
		w.Tensor(t.Name, gguf.F32, t.Dims, v)
	}
	b, err := w.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(out, b, 0o644)
}

func copyPair(w *gguf.Writer, f *gguf.File, key string) error {
	kind, elem, _, err := f.Kind(key)
	if err != nil {
		return err
	}
	switch {
	case key == "general.file_type":
		w.Uint32(key, 0)
	case kind == gguf.KindString:
		v, err := f.String(key)
		w.String(key, v)
		return err
	case kind == gguf.KindBool:
		v, err := f.Bool(key)
		w.Bool(key, v)
		return err
	case kind == gguf.KindFloat32:
		v, err := f.Float(key)
		w.Float32(key, float32(v))
		return err
	case kind == gguf.KindArray && elem == gguf.KindString:
		v, err := f.Strings(key)
		w.Strings(key, v)
		return err
	case kind == gguf.KindArray && elem == gguf.KindInt32:
		v, err := f.Int32s(key)
		w.Int32s(key, v)
		return err
	case kind == gguf.KindArray && elem == gguf.KindFloat32:
		v, err := f.Float32s(key)
		w.Float32s(key, v)
		return err
	case kind == gguf.KindUint32:
		v, err := f.Uint(key)
		w.Uint32(key, uint32(v))
		return err
	default:
		return fmt.Errorf("%s: a value of kind %s cannot be copied", key, kind)
	}
	return nil
}
