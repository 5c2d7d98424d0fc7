package openai

import (
	"bytes"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// unquote returns the text of a quoted JSON string, in the string's own place: no escape is shorter than what it stands for, so a
// prompt full of them takes no memory beside the body. The decoder has checked raw already (RFC 8259, with surrogates in pairs);
// anything else is a bug here.
func unquote(raw []byte) []byte {
	in := raw[1 : len(raw)-1]
	at := bytes.IndexByte(in, '\\')
	if at < 0 {
		return in[:len(in):len(in)]
	}
	out := in[:at]
	for in = in[at:]; len(in) > 0; {
		switch c := in[1]; c {
		case 'u':
			r, n := rune(hex4(in[2:6])), 6
			if utf16.IsSurrogate(r) {
				r, n = utf16.DecodeRune(r, rune(hex4(in[8:12]))), 12
			}
			out, in = utf8.AppendRune(out, r), in[n:]
		case 'b', 'f', 'n', 'r', 't':
			out, in = append(out, controls[c]), in[2:]
		case '"', '\\', '/':
			out, in = append(out, c), in[2:]
		default:
			panic(fmt.Sprintf("openai: an escape of byte %#x in a string that was checked", c))
		}
		plain := bytes.IndexByte(in, '\\')
		if plain < 0 {
			plain = len(in)
		}
		out, in = append(out, in[:plain]...), in[plain:]
	}
	return out[:len(out):len(out)]
}

var controls = ['t' + 1]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func hex4(b []byte) (v uint16) {
	for _, c := range b {
		switch {
		case c <= '9':
			c -= '0'
		default:
			c = c | 0x20 - 'a' + 10
		}
		v = v<<4 | uint16(c)
	}
	return v
}
