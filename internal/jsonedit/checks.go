package jsonedit

import (
	"fmt"
	"slices"
)

func invalid(format string, args ...any) no { return no{Invalid, fmt.Sprintf(format, args...)} }

// boolean is for what the gateway reads too: engines take "yes" and 1 for true, and two readers must not differ.
func boolean(_ *Doc, v Value) no {
	if k := v.Kind(); k != Bool && k != Null {
		return invalid("must be a boolean, not %s", k)
	}
	return no{}
}

// whole numbers of at least least; engines would also take "16" and 16.0.
func wholeFrom(least int64) check {
	return func(_ *Doc, v Value) no {
		if v.Kind() == Null {
			return no{}
		}
		n, ok := v.Int()
		if !ok {
			return invalid("must be an integer")
		}
		if n < least {
			return invalid("must be at least %d, got %d", least, n)
		}
		return no{}
	}
}

// only lets a value pass in one of the given spellings: any other would change what the gateway checks.
func only(why string, spellings ...string) check {
	return func(_ *Doc, v Value) no {
		if v.Kind() == Null || slices.Contains(spellings, string(v.raw)) {
			return no{}
		}
		return no{Unsupported, why}
	}
}

const (
	maxModelName = 256
	oneSequence  = "one sequence a request is taken"
	ownPrompt    = "the prompt is given as text or token ids only"
	fullCount    = "the prompt is taken whole"
)

func model(_ *Doc, v Value) no {
	text, ok := v.Text()
	if !ok {
		return invalid("must be a string, not %s", v.Kind())
	}
	if len(text) == 0 || len(text) > maxModelName {
		return invalid("must have 1 to %d bytes", maxModelName)
	}
	return no{}
}

func prompted(d *Doc, v Value) no {
	if d.prompt.Shape == NoPrompt {
		return invalid("must be a string or a list, not %s", v.Kind())
	}
	return no{}
}

func chatted(d *Doc, v Value) no {
	if d.prompt.Shape != Messages {
		return invalid("must be a list, not %s", v.Kind())
	}
	return no{}
}

// streamOptions may hold the two settings that the gateway reads and nothing that it does not know.
func streamOptions(_ *Doc, v Value) (n no) {
	if v.Kind() == Null {
		return no{}
	}
	if v.Kind() != Object {
		return invalid("must be an object, not %s", v.Kind())
	}
	v.Each(func(name []byte, m Value) bool {
		if s := string(name); s == "include_usage" || s == "continuous_usage_stats" {
			n = boolean(nil, m)
		}
		return n.reason == 0
	})
	return n
}
