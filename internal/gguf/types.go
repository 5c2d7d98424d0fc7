package gguf

import (
	"fmt"
	"math"
)

// Type says how the values of a tensor are stored. The numbers are ggml's.
type Type uint32

// The types that this repository can compute with. Others have a name and a size, so that a refusal can name them.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q8_0 Type = 8
)

// layout is a type's name and its block: so many values in so many bytes.
type layout struct {
	name          string
	values, bytes uint64
}

var layouts = map[Type]layout{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q8_0: {"Q8_0", 32, 34},
	6: {"Q5_0", 32, 22}, 7: {"Q5_1", 32, 24}, 9: {"Q8_1", 32, 36},
	10: {"Q2_K", 256, 84}, 11: {"Q3_K", 256, 110}, 12: {"Q4_K", 256, 144}, 13: {"Q5_K", 256, 176}, 14: {"Q6_K", 256, 210},
	15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66}, 17: {"IQ2_XS", 256, 74}, 18: {"IQ3_XXS", 256, 98}, 19: {"IQ1_S", 256, 50},
	20: {"IQ4_NL", 32, 18}, 21: {"IQ3_S", 256, 110}, 22: {"IQ2_S", 256, 82}, 23: {"IQ4_XS", 256, 136},
	24: {"I8", 1, 1}, 25: {"I16", 1, 2}, 26: {"I32", 1, 4}, 27: {"I64", 1, 8}, 28: {"F64", 1, 8},
	29: {"IQ1_M", 256, 56}, 30: {"BF16", 1, 2}, 34: {"TQ1_0", 256, 54}, 35: {"TQ2_0", 256, 66}, 39: {"MXFP4", 32, 17},
}

func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Known reports whether the size of a tensor of this type can be computed.
func (t Type) Known() bool { _, ok := layouts[t]; return ok }

// Size returns how many bytes a row-major tensor of dims takes, dims[0] being the row length. It is an error if the
// type is not known, a dimension is zero, a row is not whole blocks, or a product overflows 63 bits.
func (t Type) Size(dims []uint64) (uint64, error) {
	l, ok := layouts[t]
	if !ok {
		return 0, fmt.Errorf("unknown %s", t)
	}
	n, err := product(dims)
	if err != nil {
		return 0, err
	}
	if len(dims) > 0 && dims[0]%l.values != 0 {
		return 0, fmt.Errorf("a row of %d values is not whole %s blocks of %d", dims[0], l.name, l.values)
	}
	blocks := n / l.values
	if blocks > math.MaxInt64/l.bytes {
		return 0, fmt.Errorf("%d values of %s overflow", n, l.name)
	}
	return blocks * l.bytes, nil
}

func product(dims []uint64) (uint64, error) {
	n := uint64(1)
	for _, d := range dims {
		if d == 0 {
			return 0, fmt.Errorf("a dimension is 0")
		}
		if n > math.MaxInt64/d {
			return 0, fmt.Errorf("dimensions overflow: %v", dims)
		}
		n *= d
	}
	return n, nil
}

// Kind is the type of a metadata value. The numbers are the format's.
type Kind uint32

// The kinds of values.
const (
	KindUint8 Kind = iota
	KindInt8
	KindUint16
	KindInt16
	KindUint32
	KindInt32
	KindFloat32
	KindBool
	KindString
	KindArray
	KindUint64
	KindInt64
	KindFloat64
)

var kindNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64"}

// kindBytes is the size of a scalar of each kind; 0 for those that carry their own length.
var kindBytes = [...]int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}
