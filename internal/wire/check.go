package wire

import (
	"fmt"
	"math"
	"unicode"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
)

// check is the one judge of values: Append asks it before it writes, Decode after it has read, so that the two cannot differ.
func check(f Frame) error {
	c := checker{kind: f.Kind()}
	switch f := f.(type) {
	case Hello:
		c.that(f.Role >= RoleGateway && f.Role <= RoleDecode, "role %d", f.Role)
		c.name("name", f.Name, MaxName)
		c.name("path", f.Path, MaxPath)
		c.that(f.Boot != 0 || f.Role == RoleGateway, "a worker's boot is 0")
		if f.Geometry != (page.Geometry{}) {
			err := f.Geometry.Validate()
			c.that(err == nil, "%v", err)
		}
		c.that(f.MaxPage <= MaxPagePayload, "a largest page of %d bytes, at most %d", f.MaxPage, MaxPagePayload)
	case Auth, Ping, Pong:
	case Facts:
		c.length("facts", len(f.JSON), MaxFacts)
		c.name("data address", f.Data, MaxAddress)
	case Plan:
		c.length("signed plan", len(f.Signed), maxSigned)
	case Prompt:
		c.attempt(f.Attempt)
		c.ids(f.Offset, f.IDs, PromptChunk)
	case Reserved:
		c.attempt(f.Attempt)
	case Attach:
		c.attempt(f.Attempt)
	case Grant:
		c.attempt(f.Attempt)
		c.that(f.Boot != 0, "boot is 0")
		c.length("pages", len(f.Pages), MaxGrantPages)
	case PageHeader:
		c.attempt(f.Attempt)
		c.length("payload", int(f.Length), MaxPagePayload)
	case Manifest:
		c.attempt(f.Attempt)
		c.verdict(f.Verdict)
		if !f.Echo.IsZero() {
			c.that(f.Echo.wellFormed(), "an echo that is not falling finite logits of distinct ids")
		}
	case End:
		c.attempt(f.Attempt)
	case Sealed:
		c.attempt(f.Attempt)
	case Output:
		c.attempt(f.Attempt)
		c.ids(f.Index, f.IDs, OutputChunk)
	case Stop:
		c.attempt(f.Attempt)
	case Abort:
		c.attempt(f.Attempt)
		c.verdict(f.Verdict)
	case Outcome:
		c.attempt(f.Attempt)
		c.verdict(f.Verdict)
		c.that(f.Finish <= FinishLength, "finish %d", f.Finish)
	case Settled:
		c.attempt(f.Attempt)
	default:
		panic(fmt.Sprintf("wire: a frame of type %T", f))
	}
	return c.err
}

// checker keeps the first thing that is wrong.
type checker struct {
	kind Kind
	err  error
}

func (c *checker) that(ok bool, format string, args ...any) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf("%w: %s on %s", ErrValue, fmt.Sprintf(format, args...), c.kind)
	}
}

func (c *checker) length(what string, n, limit int) {
	if n > limit && c.err == nil {
		c.err = fmt.Errorf("%w: %d for the %s of a %s, at most %d", ErrLength, n, what, c.kind, limit)
	}
}

func (c *checker) attempt(a attempt.ID) { c.that(!a.IsZero(), "attempt is 0") }

// name checks a string that ends up in messages: bounded, and without anything that could forge a line of a log.
func (c *checker) name(what, s string, limit int) {
	c.length(what, len(s), limit)
	c.that(plainText(s), "control characters or broken UTF-8 in the %s", what)
}

func (c *checker) ids(first uint32, ids []int32, limit int) {
	c.length("ids", len(ids), limit)
	c.that(len(ids) > 0, "no ids")
	c.that(int64(first)+int64(len(ids)) <= math.MaxUint32, "positions past 2^32")
	for _, id := range ids {
		if id < 0 {
			c.that(false, "a negative id")
			return
		}
	}
}

func (c *checker) verdict(v verdict.Verdict) {
	c.that(v.Code.Known(), "verdict %s", v.Code)
	c.that(layerKnown[v.Layer], "verdict %s by %s", v.Code, v.Layer)
	c.that(v.Status >= 100 && v.Status <= 599, "verdict %s with status %d", v.Code, v.Status)
	c.length("reason", len(v.Reason), MaxReason)
	c.that(plainText(v.Reason), "control characters or broken UTF-8 in the reason")
}

// layerKnown is the layers that have a name, NoLayer apart: a verdict that nobody set is none.
var layerKnown = func() (known [256]bool) {
	for i := 1; i < len(known); i++ {
		var l verdict.Layer
		known[i] = l.UnmarshalText([]byte(verdict.Layer(i).String())) == nil
	}
	return known
}()

// plainText reports whether s is UTF-8 without control characters: it may go into a log line or a header.
func plainText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !plainRune(r) {
			return false
		}
	}
	return true
}

// plainRune refuses control characters and the two separators that some readers of logs take for line ends.
func plainRune(r rune) bool { return !unicode.IsControl(r) && r != '\u2028' && r != '\u2029' }
