package source

import (
	"strings"
)

// versionAfter reads a version that follows the name of an engine: sglang==0.5.19, lmsysorg/sglang:v0.5.19-cu126,
// "SGLang 0.5.19", vllm-openai:v0.11.0. "" if none does.
func versionAfter(s, name string) string {
	l := strings.ToLower(s)
	for off := 0; ; {
		i := strings.Index(l[off:], name)
		if i < 0 {
			return ""
		}
		start, end := off+i, off+i+len(name)
		off = end
		if start > 0 && word(l[start-1]) {
			continue
		}
		r := s[end:]
		// The rest of an image's name (vllm-openai, sglang-router is another thing).
		for _, suffix := range []string{"-openai", "-cpu", "-rocm"} {
			r = strings.TrimPrefix(r, suffix)
		}
		j := 0
		for j < len(r) && j < 12 && strings.ContainsRune(" =:v@<>~('\"", rune(r[j])) {
			j++
		}
		if strings.HasPrefix(strings.ToLower(r[j:]), "version") {
			j += len("version")
			for j < len(r) && strings.ContainsRune(" =:v", rune(r[j])) {
				j++
			}
		}
		if j == 0 || j >= len(r) {
			continue
		}
		if v := leadingVersion(r[j:]); v != "" {
			return v
		}
	}
}

// leadingVersion is the version at the start of s: 0.5.19, 0.5.10.post1, 0.20.0rc1, 0.11.2.dev278+gdbc3d9991. "" if s
// does not begin with one (at least two numbers and a dot).
func leadingVersion(s string) string {
	i, dots := 0, 0
	for i < len(s) && (digit(s[i]) || s[i] == '.' && i > 0 && i+1 < len(s) && digit(s[i+1])) {
		if s[i] == '.' {
			dots++
		}
		i++
	}
	if dots == 0 {
		return ""
	}
	for _, p := range []string{".post", "post", ".dev", "dev", "rc", "a", "b", ".rc"} {
		if strings.HasPrefix(s[i:], p) && i+len(p) < len(s) && digit(s[i+len(p)]) {
			i += len(p)
			for i < len(s) && digit(s[i]) {
				i++
			}
			if strings.HasPrefix(s[i:], ".dev") {
				i += 4
				for i < len(s) && digit(s[i]) {
					i++
				}
			}
			break
		}
	}
	if i < len(s) && s[i] == '+' {
		j := i + 1
		for j < len(s) && (word(s[j]) || s[j] == '.') {
			j++
		}
		i = j
	}
	return strings.TrimRight(s[:i], ".")
}
