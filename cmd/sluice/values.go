package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/page"
)

// checked is a flag's value that is looked at when it is set. So a mistake is named where it stands, on the command line, in the
// environment or on a line of a file, and sluice config check refuses what the command would.
type checked[T any] struct {
	into *T
	read func(string) (T, error)
}

// flagVar registers a flag whose value read accepts; value is its default, which is not read.
func flagVar[T any](fs *pflag.FlagSet, into *T, name string, value T, read func(string) (T, error), usage string) {
	*into = value
	fs.Var(checked[T]{into, read}, name, usage)
}

func (c checked[T]) Set(s string) error {
	v, err := c.read(s)
	if err == nil {
		*c.into = v
	}
	return err
}

func (c checked[T]) String() string {
	if c.into == nil {
		return ""
	}
	return fmt.Sprint(*c.into)
}

func (c checked[T]) Type() string {
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", *new(T)), "time."))
}

// count reads a number that cannot be negative.
func count(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case err != nil:
		return 0, errors.New("must be a whole number")
	case n < 0:
		return 0, errors.New("must not be negative")
	}
	return n, nil
}

// pageSize reads the tokens of a page.
func pageSize(s string) (int, error) {
	n, err := count(s)
	if err == nil && (n > 1024 || page.Geometry{Tokens: uint32(n), Layers: 1, KVHeads: 1, HeadDim: 64, Layout: page.LayoutPairs16}.Validate() != nil) {
		err = errors.New("must be 16, 32, 64 or a multiple of 64 up to 1024")
	}
	return n, err
}

// byteSize reads what capacity.ParseBytes does, and keeps the words.
func byteSize(s string) (string, error) {
	n, err := capacity.ParseBytes(s)
	if err == nil && n <= 0 {
		err = errors.New("must be more than 0")
	}
	return s, err
}

// address reads host:port; "" means none.
func address(s string) (string, error) {
	if s == "" {
		return s, nil
	}
	_, _, err := net.SplitHostPort(s)
	return s, err
}

// patience reads a time to wait.
func patience(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = errors.New("must not be negative")
	}
	return d, err
}

// oneOf reads one of words.
func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return s, fmt.Errorf("must be %s or %s", strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
		}
		return s, nil
	}
}
