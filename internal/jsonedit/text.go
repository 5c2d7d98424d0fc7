package jsonedit

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// special has the top bit set in the lowest byte of w that is a quote, a backslash, below 0x20 or not ASCII, and is 0 if none
// is. Borrows only run upwards, so bits above the lowest one mean nothing.
func special(w uint64) uint64 {
	return (w | (w - ' '*ones) | ((w ^ '"'*ones) - ones) | ((w ^ '\\'*ones) - ones)) & tops
}

// plain returns the offset of the first byte of b, from i on, that is a quote, a backslash, below 0x20 or not ASCII; len(b) if
// there is none. Most of a prompt is plain, so this is where a large body's time goes.
func plain(b []byte, i int) int {
	p := b[i:]
	for len(p) >= 32 {
		w0, w1 := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		w2, w3 := binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint64(p[24:])
		s0, s1, s2, s3 := special(w0), special(w1), special(w2), special(w3)
		if s0|s1|s2|s3 != 0 {
			at := len(b) - len(p)
			switch {
			case s0 != 0:
				return at + bits.TrailingZeros64(s0)>>3
			case s1 != 0:
				return at + 8 + bits.TrailingZeros64(s1)>>3
			case s2 != 0:
				return at + 16 + bits.TrailingZeros64(s2)>>3
			}
			return at + 24 + bits.TrailingZeros64(s3)>>3
		}
		p = p[32:]
	}
	for len(p) >= 8 {
		if s := special(binary.LittleEndian.Uint64(p)); s != 0 {
			return len(b) - len(p) + bits.TrailingZeros64(s)>>3
		}
		p = p[8:]
	}
	for k, c := range p {
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return len(b) - len(p) + k
		}
	}
	return len(b)
}

// Patterns of UTF-8, as little-endian words: the bits of each byte that are fixed, and what they have to be.
const (
	twoMask, twoWant     = 0xc0e0c0e0c0e0c0e0, 0x80c080c080c080c0 // four characters of two bytes
	threeMask, threeWant = 0x0000c0c0f0c0c0f0, 0x00008080e08080e0 // two of three
	fourMask, fourWant   = 0x00000000c0c0c0f8, 0x00000000808080f0 // one of four
)

// foreign goes over text that is not all ASCII. It returns the offset of a byte that text has to look at, or of one behind which
// eight plain bytes follow; bad is true if what lies between is not UTF-8, and the offset is then that of the first bad byte.
func foreign(b []byte, i int) (end int, bad bool) {
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		switch c := byte(w); {
		case c < utf8.RuneSelf:
			if w&tops == 0 || !easy[c] {
				return i, false
			}
			i++
		case c < 0xe0:
			// Lanes of 16 bits; one that is not a character of two bytes, or is spelled too long (lead C0 or C1), has a bit set.
			x := w&twoMask ^ twoWant | (w&0x001e001e001e001e+0x00fe00fe00fe00fe)&0x0100010001000100 ^ 0x0100010001000100
			if x == 0 {
				i += 8
				continue
			}
			n := bits.TrailingZeros64(x) &^ 15 >> 3
			if n == 0 {
				return i, true
			}
			i += n
		case c < 0xf0:
			if pair := w&threeMask == threeWant; pair && !narrow(c) && !narrow(byte(w>>24)) {
				i = pairs(b, i+6)
				continue
			}
			second := byte(w >> 8)
			if w&(threeMask&0xffffff) != threeWant&0xffffff || c == 0xe0 && second < 0xa0 || c == 0xed && second > 0x9f {
				return i, true
			}
			i += 3
		default:
			second := byte(w >> 8)
			if w&fourMask != fourWant || c == 0xf0 && second < 0x90 || c == 0xf4 && second > 0x8f || c > 0xf4 {
				return i, true
			}
			i += 4
		}
	}
	for i < len(b) && b[i] >= utf8.RuneSelf {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i, true
		}
		i += n
	}
	return i, false
}

// easy bytes are ASCII that strings need no look at.
var easy = func() (t [256]bool) {
	for c := range utf8.RuneSelf {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// pairs goes over characters of three bytes, two at a time, as far as they go.
func pairs(b []byte, i int) int {
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		if w&threeMask != threeWant || narrow(byte(w)) || narrow(byte(w>>24)) {
			break
		}
		i += 6
	}
	return i
}

// narrow leads have fewer second bytes than others: below would be spelled too long, or be half a surrogate pair.
func narrow(lead byte) bool { return lead == 0xe0 || lead == 0xed }

// crowd is where the special bytes of b[:64] are: bit k stands for b[k]. Unlike special it is right for every byte.
func crowd(b []byte) (m uint64) {
	const low = ^uint64(tops)
	_ = b[63]
	for k := 0; k < 64; k += 8 {
		w := binary.LittleEndian.Uint64(b[k:])
		q, e := w^'"'*ones, w^'\\'*ones
		x := (^((q&low + low | q) & (e&low + low | e) & (w<<1 | w<<2)) | w) & tops
		m |= x >> 7 * 0x0102040810204080 >> 56 << k
	}
	return m
}

// text scans the string whose opening quote is at i-1. It returns the offset after the closing quote, or -1 with the failure set.
func (s *scanner) text(i int) int {
	b := s.body
	for {
		i = plain(b, i)
		if i < len(b) && b[i] == '"' {
			return i + 1
		}
		// Special bytes come in crowds (code, transcripts): they are taken from the mask of a block, which costs no search for each.
		for many := i < len(b) && b[i] == '\\'; many && i+65 <= len(b); {
			m := crowd(b[i:])
			many = m&(m-1) != 0
			n := 64
			for m != 0 {
				k := bits.TrailingZeros64(m)
				if b[i+k] != '\\' || !short[b[i+k+1]] {
					n, many = k, false
					break
				}
				s.escaped = true
				m &^= 3 << k
				if k == 63 {
					n = 65
				}
			}
			i += n
		}
		if i >= len(b) {
			return s.fail(EndsEarly, len(b))
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			s.escaped = true
			if i = s.escape(i); i < 0 {
				return -1
			}
		case c < ' ':
			return s.fail(NotJSON, i)
		case c >= utf8.RuneSelf:
			end, bad := foreign(b, i)
			if bad {
				return s.fail(NotUTF8, end)
			}
			i = end
		}
	}
}

// short escapes are one character long.
var short = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escape scans the escape at i and returns the offset after it. Half a surrogate pair is not a character.
func (s *scanner) escape(i int) int {
	b := s.body
	if i+1 >= len(b) {
		return s.fail(EndsEarly, len(b))
	}
	if short[b[i+1]] {
		return i + 2
	}
	if b[i+1] != 'u' {
		return s.fail(NotJSON, i)
	}
	r := s.hex(i)
	if r < 0 {
		return -1
	}
	switch {
	case r < 0xd800 || r > 0xdfff:
		return i + 6
	case r >= 0xdc00:
		return s.fail(NotUTF8, i)
	}
	if i+8 > len(b) {
		return s.fail(EndsEarly, len(b))
	}
	if b[i+6] != '\\' || b[i+7] != 'u' {
		return s.fail(NotUTF8, i)
	}
	low := s.hex(i + 6)
	if low < 0 {
		return -1
	}
	if low < 0xdc00 || low > 0xdfff {
		return s.fail(NotUTF8, i)
	}
	return i + 12
}

// hex reads the four digits of the \u escape at i.
func (s *scanner) hex(i int) int {
	if i+6 > len(s.body) {
		return s.fail(EndsEarly, len(s.body))
	}
	r := 0
	for _, c := range s.body[i+2 : i+6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return s.fail(NotJSON, i)
		}
		r = r<<4 | int(c)
	}
	return r
}

// unquote appends the text of a string's inside, which was scanned.
func unquote(dst, inside []byte) []byte {
	s := scanner{body: inside}
	for i := 0; i < len(inside); {
		if inside[i] != '\\' {
			dst = append(dst, inside[i])
			i++
			continue
		}
		switch c := inside[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := rune(s.hex(i))
			if 0xd800 <= r && r <= 0xdfff {
				r = (r-0xd800)<<10 | (rune(s.hex(i+6)) - 0xdc00) + 0x10000
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			i += 4
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}
