package verdict

import "fmt"

// Of makes a verdict with the code's own status.
func Of(c Code, l Layer, format string, args ...any) Verdict {
	return Verdict{Code: c, Layer: l, Reason: fmt.Sprintf(format, args...), Status: c.About().Status}
}

// Served is the good end.
func Served(l Layer) Verdict { return Verdict{Code: OK, Layer: l, Reason: "served", Status: 200} }

// TooLong refuses a request for its length. prompt and output are tokens asked for (output 0: the prompt alone is
// over), atLeast says that counting stopped early, limit is tokens, setter names what set it (capacity.Limit.Setter).
func TooLong(l Layer, prompt, output int, atLeast bool, limit int, setter string) Verdict {
	about := ""
	if atLeast {
		about = "at least "
	}
	if output > 0 {
		return Of(ContextLength, l, "the prompt has %s%d tokens and asks for up to %d more, but at most %d fit (set by %s)", about, prompt, output, limit, setter)
	}
	return Of(ContextLength, l, "the prompt has %s%d tokens, but at most %d fit (set by %s)", about, prompt, limit, setter)
}

// NoPages refuses for want of free pages.
func NoPages(l Layer, want, free, total int) Verdict {
	return Of(PoolExhausted, l, "%d pages wanted, %d of %d free", want, free, total)
}
