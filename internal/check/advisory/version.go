package advisory

import (
	"strconv"
	"strings"
)

// Version is a release number as Python packages have them (PEP 440), as far as engines use it.
type Version struct {
	Release []int
	Pre     string // a, b or rc; "" for none
	PreN    int
	Post    int // -1 for none
	Dev     int // -1 for none
	Local   string
}

// ParseVersion reads "0.5.19", "v0.5.10.post1", "0.20.0rc1", "0.11.2.dev278+gdbc3d9991". False for anything else
// (latest, nightly, a commit).
func ParseVersion(s string) (v Version, ok bool) {
	v.Post, v.Dev = -1, -1
	s = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(s), "v"))
	s, v.Local, _ = strings.Cut(s, "+")
	i := 0
	for {
		j := i
		for j < len(s) && s[j] >= '0' && s[j] <= '9' {
			j++
		}
		if j == i || j-i > 9 {
			return v, false
		}
		n, _ := strconv.Atoi(s[i:j])
		v.Release = append(v.Release, n)
		i = j
		if i+1 < len(s) && s[i] == '.' && s[i+1] >= '0' && s[i+1] <= '9' {
			i++
			continue
		}
		break
	}
	rest := s[i:]
	for rest != "" {
		rest = strings.TrimLeft(rest, ".-_")
		var n int
		switch {
		case strings.HasPrefix(rest, "post"):
			n, rest = leadingInt(rest[4:])
			v.Post = n
		case strings.HasPrefix(rest, "dev"):
			n, rest = leadingInt(rest[3:])
			v.Dev = n
		case strings.HasPrefix(rest, "rc"):
			v.Pre = "rc"
			v.PreN, rest = leadingInt(rest[2:])
		case strings.HasPrefix(rest, "a"), strings.HasPrefix(rest, "b"):
			v.Pre = rest[:1]
			v.PreN, rest = leadingInt(rest[1:])
		default:
			return v, false
		}
	}
	return v, len(v.Release) > 1
}

func leadingInt(s string) (int, string) {
	i := 0
	for i < len(s) && i < 9 && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	n, _ := strconv.Atoi(s[:i])
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return n, s[i:]
}

// officialLocal are local labels that a project's own builds carry: they name a device, not a patch.
func officialLocal(l string) bool {
	return l == "" || l == "cpu" || l == "empty" || strings.HasPrefix(l, "cu") && len(l) <= 5 || strings.HasPrefix(l, "rocm") ||
		strings.HasPrefix(l, "tpu") || strings.HasPrefix(l, "xpu") || strings.HasPrefix(l, "neuron") || strings.HasPrefix(l, "precompiled")
}

// Uncertain reports whether a version does not say what is in the build: no release number at all, a development build,
// a pre-release, or a build with somebody's own label. why is a few words.
func Uncertain(s string) (why string, yes bool) {
	v, ok := ParseVersion(s)
	switch {
	case s == "":
		return "the version is not known", true
	case !ok:
		return "“" + s + "” is no release number", true
	case v.Dev >= 0:
		return s + " is a development build", true
	case v.Pre != "":
		return s + " is a pre-release", true
	case !officialLocal(v.Local):
		return s + " is a build of somebody's own (+" + v.Local + ")", true
	}
	return "", false
}

// Compare orders two versions: -1, 0 or 1. What is no version sorts before everything.
func Compare(a, b string) int {
	x, okX := ParseVersion(a)
	y, okY := ParseVersion(b)
	if !okX || !okY {
		return boolInt(okX) - boolInt(okY)
	}
	return x.compare(y)
}

func (v Version) compare(w Version) int {
	for i := range max(len(v.Release), len(w.Release)) {
		var a, b int
		if i < len(v.Release) {
			a = v.Release[i]
		}
		if i < len(w.Release) {
			b = w.Release[i]
		}
		if a != b {
			return sign(a - b)
		}
	}
	if d := v.phase() - w.phase(); d != 0 {
		return sign(d)
	}
	if v.Pre != "" && v.PreN != w.PreN {
		return sign(v.PreN - w.PreN)
	}
	if v.Post != w.Post {
		return sign(v.Post - w.Post)
	}
	// A development build comes before what it leads to.
	a, b := v.Dev, w.Dev
	if a < 0 {
		a = 1 << 30
	}
	if b < 0 {
		b = 1 << 30
	}
	return sign(a - b)
}

// phase orders what may follow a release number: .dev, a, b, rc, nothing.
func (v Version) phase() int {
	switch {
	case v.Pre == "" && v.Dev >= 0 && v.Post < 0:
		return 0
	case v.Pre == "a":
		return 1
	case v.Pre == "b":
		return 2
	case v.Pre == "rc":
		return 3
	}
	return 4
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
