// Package replay checks a recorded file of a handoff's transitions against the protocol's model, and says which line is wrong.
package replay

import (
	"errors"
	"fmt"
	"io"

	"github.com/sluicekv/sluice/internal/handoff/model/validate"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// Result of a file.
type Result struct {
	Lines uint64 // events read
	Valid uint64 // of them, up to the first that is wrong
	validate.Counts
	Head trace.Head
}

// File reads and walks a recorded file. unfinished lets it end in the middle: of a process that was killed, or still runs. The error names
// the line, or what is missing at the end; it is nil when all of it is valid.
func File(r io.Reader, unfinished bool) (Result, error) {
	var res Result
	var v *validate.Validator
	err := trace.Read(r, func(h trace.Head) {
		res.Head = h
		v = validate.New(validate.Options{Sampled: h.Sample > 1})
	}, func(n uint64, e trace.Event) error {
		res.Lines = n
		if err := v.Step(e); err != nil {
			return err
		}
		res.Valid = n
		return nil
	})
	if v != nil {
		res.Counts = v.Counts()
	}
	switch {
	case err == nil && !unfinished:
		err = v.End()
	case unfinished && errors.Is(err, trace.ErrCut):
		err = nil
	}
	return res, err
}

// Print writes the result for people: "valid N/N", or the line that is wrong.
func Print(w io.Writer, res Result, err error) {
	if err != nil {
		fmt.Fprintf(w, "invalid: %v\n%d events before it are valid\n", err, res.Valid)
		return
	}
	fmt.Fprintf(w, "valid %d/%d\n%d attempts, %d served, %d pages handed over", res.Valid, res.Lines, res.Attempts, res.Served, res.Pages)
	if res.Head.Sample > 1 {
		fmt.Fprintf(w, "; one attempt in %d was recorded", res.Head.Sample)
	}
	fmt.Fprintln(w)
}
