package page

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
)

// ID is the index of a page in one pool.
type ID uint32

// Generation counts the hand-overs of a page. It is bumped at each, and never reused within a boot.
type Generation uint64

// Boot is the random id that a worker takes at start. It is never 0.
type Boot uint64

// NewBoot takes a boot id.
func NewBoot() Boot {
	for {
		var b [8]byte
		rand.Read(b[:])
		if v := binary.LittleEndian.Uint64(b[:]); v != 0 {
			return Boot(v)
		}
	}
}

func (b Boot) String() string { return fmt.Sprintf("%016x", uint64(b)) }

// MarshalText makes a Boot a JSON string of 16 hex digits: as a number it would not survive JavaScript.
func (b Boot) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (b *Boot) UnmarshalText(t []byte) error {
	v, err := strconv.ParseUint(string(t), 16, 64)
	*b = Boot(v)
	return err
}

// Tag names one hand-over of one page of one process.
type Tag struct {
	Boot Boot
	ID   ID
	Gen  Generation
}

func (t Tag) String() string { return fmt.Sprintf("%s/%d@%d", t.Boot, t.ID, t.Gen) }
