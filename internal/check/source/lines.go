package source

import (
	"bytes"
	"io"
)

// MaxLine bounds what is kept of one line, in bytes; the longest real one (an argument list) has 40 KB. The rest of a
// longer line is passed over without being held.
const MaxLine = 1 << 20

// chunk is how much is read at once.
const chunk = 256 << 10

// eachLine calls fn for every line of r, without its end, in one pass and constant memory. cut says that the line was
// longer than MaxLine; last that it had no line end. b is valid during the call only.
func eachLine(r io.Reader, fn func(b []byte, no int, cut, last bool)) error {
	buf := make([]byte, chunk)
	var held []byte // the beginning of a line whose end is not read yet
	holding, cut := false, false
	no := 1
	for {
		n, err := r.Read(buf)
		b := buf[:n]
		for len(b) > 0 {
			i := bytes.IndexByte(b, '\n')
			if i < 0 {
				if room := MaxLine - len(held); room >= len(b) {
					held = append(held, b...)
				} else {
					held, cut = append(held, b[:room]...), true
				}
				holding = true
				break
			}
			line := b[:i]
			if holding {
				if room := MaxLine - len(held); room >= len(line) {
					held = append(held, line...)
				} else {
					held, cut = append(held, line[:room]...), true
				}
				line = held
			}
			fn(bytes.TrimSuffix(line, []byte{'\r'}), no, cut, false)
			held, holding, cut = held[:0], false, false
			no++
			b = b[i+1:]
		}
		if err != nil {
			if holding {
				fn(held, no, cut, true)
			}
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// stripANSI removes terminal colours in place. Lines without an escape are returned as they are.
func stripANSI(b []byte) []byte {
	if bytes.IndexByte(b, 0x1b) < 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != 0x1b {
			out = append(out, b[i])
			continue
		}
		i++
		if i >= len(b) {
			break
		}
		switch b[i] {
		case '[': // CSI: to the final byte
			for i++; i < len(b) && (b[i] < 0x40 || b[i] > 0x7e); i++ {
			}
		case ']': // OSC: to BEL or ST
			for i++; i < len(b) && b[i] != 0x07; i++ {
				if b[i] == 0x1b && i+1 < len(b) && b[i+1] == '\\' {
					i++
					break
				}
			}
		}
	}
	return out
}

// number reads a whole number at the start of b: digits, with thousands separated by commas or underscores. rest is
// what follows.
func number(b []byte) (n int, rest []byte, ok bool) {
	i := 0
	for i < len(b) {
		c := b[i]
		switch {
		case c >= '0' && c <= '9':
			if n > (1<<62)/10 {
				return 0, b, false
			}
			n = n*10 + int(c-'0')
			ok = true
			i++
		case (c == ',' || c == '_') && ok && threeDigits(b[i+1:]):
			i++
		default:
			return n, b[i:], ok
		}
	}
	return n, nil, ok
}

func threeDigits(b []byte) bool {
	if len(b) < 3 || !digit(b[0]) || !digit(b[1]) || !digit(b[2]) {
		return false
	}
	return len(b) == 3 || !digit(b[3])
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func word(c byte) bool {
	return c == '_' || digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// after returns what follows key in b.
func after(b []byte, key string) ([]byte, bool) {
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return nil, false
	}
	return b[i+len(key):], true
}

// value returns what follows key and its '=' or ':', quotes and blanks passed over: key=1, 'key': 1, "key" : 1. The key
// must stand by itself.
func value(b []byte, key string) ([]byte, bool) {
	for off := 0; ; {
		i := bytes.Index(b[off:], []byte(key))
		if i < 0 {
			return nil, false
		}
		start, end := off+i, off+i+len(key)
		off = end
		if start > 0 && word(b[start-1]) {
			continue
		}
		r := b[end:]
		for len(r) > 0 && (r[0] == '"' || r[0] == '\'' || r[0] == ' ' || r[0] == '\\') {
			r = r[1:]
		}
		if len(r) == 0 || r[0] != '=' && r[0] != ':' {
			continue
		}
		return bytes.TrimLeft(r[1:], " \"'\\"), true
	}
}

// intValue is the number of key=N.
func intValue(b []byte, key string) (int, bool) {
	r, ok := value(b, key)
	if !ok {
		return 0, false
	}
	n, _, ok := number(r)
	return n, ok
}

// intAfter is the number right after a piece of prose.
func intAfter(b []byte, key string) (int, bool) {
	r, ok := after(b, key)
	if !ok {
		return 0, false
	}
	n, _, ok := number(bytes.TrimLeft(r, " (=:"))
	return n, ok
}

// token is the run of characters up to a blank, comma, quote or bracket.
func token(b []byte) string {
	i := 0
	for i < len(b) && b[i] > ' ' && !bytes.ContainsRune([]byte(",'\"()[]{};"), rune(b[i])) {
		i++
	}
	return string(b[:i])
}

// decimal is the number at the start of b as text: 10.12.
func decimal(b []byte) string {
	i := 0
	for i < len(b) && (digit(b[i]) || b[i] == '.') {
		i++
	}
	return string(b[:i])
}

// decimalAfter is the decimal number after a piece of prose.
func decimalAfter(b []byte, key string) string {
	r, ok := after(b, key)
	if !ok {
		return ""
	}
	return decimal(bytes.TrimLeft(r, " (=:"))
}
