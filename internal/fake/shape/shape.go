// Package shape compares the form of two JSON texts: the same members in the same order, values of the same kinds.
package shape

import (
	"bytes"
	"fmt"

	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Differ says where the form of got is not that of want; "" if it is. Of lists the first elements are compared, and whether there are
// any. A path in free may have any kind.
func Differ(got, want []byte, free ...string) string {
	d, no := jsonedit.Read(wrap(got), nil)
	if no != nil {
		return "got: " + no.Error()
	}
	w, no := jsonedit.Read(wrap(want), nil)
	if no != nil {
		return "want: " + no.Error()
	}
	return differ("", d.Get("v"), w.Get("v"), free)
}

func wrap(b []byte) []byte {
	return append(append([]byte(`{"v":`), bytes.TrimSpace(b)...), '}')
}

type member struct {
	name string
	v    jsonedit.Value
}

func members(v jsonedit.Value) (out []member) {
	v.Each(func(name []byte, m jsonedit.Value) bool {
		out = append(out, member{string(name), m})
		return true
	})
	return out
}

func differ(path string, got, want jsonedit.Value, free []string) string {
	for _, f := range free {
		if f == path {
			return ""
		}
	}
	if got.Kind() != want.Kind() {
		return fmt.Sprintf("%s is %s, not %s", path, got.Kind(), want.Kind())
	}
	g, w := members(got), members(want)
	switch got.Kind() {
	case jsonedit.Object:
		for i := range max(len(g), len(w)) {
			switch {
			case i >= len(g):
				return fmt.Sprintf("%s.%s is missing", path, w[i].name)
			case i >= len(w):
				return fmt.Sprintf("%s.%s is one too many", path, g[i].name)
			case g[i].name != w[i].name:
				return fmt.Sprintf("%s.%s stands where %s should", path, g[i].name, w[i].name)
			}
			if d := differ(path+"."+g[i].name, g[i].v, w[i].v, free); d != "" {
				return d
			}
		}
	case jsonedit.Array:
		if (len(g) == 0) != (len(w) == 0) {
			return fmt.Sprintf("%s has %d elements, not %d", path, len(g), len(w))
		}
		if len(g) > 0 {
			return differ(path+"[]", g[0].v, w[0].v, free)
		}
	}
	return ""
}
