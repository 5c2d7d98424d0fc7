package source

import (
	"bytes"
	"strings"
)

// pairs reads the keys and values of a Python repr: ServerArgs(a='x', b=[1, 2]), {'a': 'x', "b": None}, or the bare list
// a='x', b=1 to the end of the line. b begins at or before the opening bracket if there is one. Values keep their
// quotes. A cut list gives what is there.
func pairs(b []byte, fn func(key string, val []byte)) {
	b = bytes.TrimLeft(b, " ")
	if i := bytes.IndexAny(b, "({="); i >= 0 && b[i] != '=' {
		b = b[i+1:]
	}
	for len(b) > 0 {
		b = bytes.TrimLeft(b, " ,\t")
		if len(b) == 0 || b[0] == ')' || b[0] == '}' {
			return
		}
		var key []byte
		switch b[0] {
		case '\'', '"':
			end := closing(b)
			if end < 0 {
				return
			}
			key, b = b[1:end], b[end+1:]
		default:
			i := 0
			for i < len(b) && (word(b[i]) || b[i] == '-' || b[i] == '.') {
				i++
			}
			if i == 0 {
				return
			}
			key, b = b[:i], b[i:]
		}
		b = bytes.TrimLeft(b, " ")
		if len(b) == 0 || b[0] != '=' && b[0] != ':' {
			return
		}
		b = bytes.TrimLeft(b[1:], " ")
		end, whole := valueEnd(b)
		if !whole && end > 0 && end == len(b) && !bareEnd(b) {
			return // cut inside a quote or a bracket: the value cannot be trusted
		}
		fn(string(key), bytes.TrimRight(b[:end], " "))
		b = b[end:]
	}
}

// bareEnd reports whether a value that runs to the end of the text is no opened quote or bracket.
func bareEnd(b []byte) bool { return len(b) > 0 && !bytes.ContainsAny(b[:1], "'\"([{") }

// closing is the index of the quote that ends the string at b[0], or -1.
func closing(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case b[0]:
			return i
		}
	}
	return -1
}

// valueEnd is where the value at the start of b ends: a comma or a closing bracket of the level above. whole is false
// when the text ran out.
func valueEnd(b []byte) (end int, whole bool) {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\'', '"':
			n := closing(b[i:])
			if n < 0 {
				return len(b), false
			}
			i += n
		case '(', '[', '{', '<':
			depth++
		case ')', ']', '}', '>':
			if depth == 0 {
				return i, true
			}
			depth--
		case ',':
			if depth == 0 {
				return i, true
			}
		}
	}
	return len(b), false
}

// plain is a Python value as text: quotes off, None and null as "".
func plain(v []byte) string {
	s := strings.TrimSpace(string(v))
	if len(s) >= 2 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	switch s {
	case "None", "null", "<null>":
		return ""
	case "True":
		return "true"
	case "False":
		return "false"
	}
	return s
}
