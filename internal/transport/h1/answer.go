package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
)

// answer is the answer to one request: its head, and its body as it comes.
type answer struct {
	c    *conn // nil once the connection is given back or closed
	stop func() bool
	resp http.Response
	last bool // the connection ends with it
	half bool // and so it does after half a request

	chunked bool
	left    int64 // bytes of the body, or of the chunk; -1: until the connection ends
	begun   bool  // a chunk was read: its line end comes next
	err     error // the body's end
}

const (
	maxLines   = 256 // of a head
	maxInforms = 8   // heads with a status 1xx before the answer's
)

// head reads the answer's head.
func (c *conn) head(a *answer, req *http.Request) error {
	for range maxInforms {
		status, err := c.oneHead(a)
		if err != nil {
			return err
		}
		if status == http.StatusSwitchingProtocols {
			return broken("it switches protocols")
		}
		if status >= 200 {
			a.resp.Request, a.resp.Body = req, a
			return a.frame(req.Method)
		}
	}
	return broken("too many informational heads")
}

func (c *conn) oneHead(a *answer) (status int, err error) {
	line, err := readLine(c.in)
	if err != nil {
		return 0, err
	}
	budget := c.t.maxHead() - len(line)
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return 0, broken("no status line")
	}
	for _, d := range line[9:12] {
		if d < '0' || d > '9' {
			return 0, broken("no status")
		}
		status = status*10 + int(d-'0')
	}
	if status < 100 {
		return 0, broken("no status")
	}
	minor := int(line[7] - '0')
	a.resp = http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: minor, ContentLength: -1}
	a.last = minor == 0
	// The names and values of all lines lie in one string.
	var text []byte
	spans := make([][3]int, 0, 16)
	for {
		if line, err = readLine(c.in); err != nil {
			return 0, early(err)
		}
		if len(line) == 0 {
			break
		}
		if budget -= len(line) + 2; budget < 0 || len(spans) == maxLines {
			return 0, broken("its head is too long")
		}
		colon := field(line)
		if colon < 0 {
			return 0, broken("a line of its head is no header")
		}
		value := bytes.Trim(line[colon+1:], " \t")
		at := len(text)
		text = append(append(text, line[:colon]...), value...)
		spans = append(spans, [3]int{at, at + colon, len(text)})
	}
	all := string(text)
	h := make(http.Header, len(spans))
	values := make([]string, len(spans))
	for i, s := range spans {
		name := textproto.CanonicalMIMEHeaderKey(all[s[0]:s[1]])
		if had := h[name]; had != nil {
			h[name] = append(had[:len(had):len(had)], all[s[1]:s[2]])
			continue
		}
		values[i] = all[s[1]:s[2]]
		h[name] = values[i : i+1 : i+1]
	}
	a.resp.Header = h
	return status, nil
}

// frame says how the body ends.
func (a *answer) frame(method string) error {
	h := a.resp.Header
	te, lengths := h["Transfer-Encoding"], h["Content-Length"]
	for _, v := range h["Connection"] {
		a.last = a.last || hasToken(v, "close")
	}
	switch status := a.resp.StatusCode; {
	case len(te) > 0 && (len(te) != 1 || !equalFold(te[0], "chunked") || len(lengths) > 0 || a.resp.ProtoMinor == 0):
		return broken("its length is not clear")
	case method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified:
		a.resp.ContentLength = 0
	case len(te) > 0:
		a.chunked = true
	case len(lengths) > 0:
		for _, v := range lengths[1:] {
			if v != lengths[0] {
				return broken("two lengths")
			}
		}
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil {
			return broken("no length")
		}
		a.left, a.resp.ContentLength = int64(n), int64(n)
	default:
		a.left, a.last = -1, true
	}
	if !a.chunked && a.left == 0 {
		_ = a.end(io.EOF)
	}
	return nil
}

// Read reads the body. It is not for use by several goroutines at once.
func (a *answer) Read(p []byte) (n int, err error) {
	if a.err != nil {
		return 0, a.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if a.chunked && a.left == 0 {
		if err := a.chunk(); err != nil {
			return 0, a.end(err)
		}
	}
	if a.left >= 0 && int64(len(p)) > a.left {
		p = p[:a.left]
	}
	n, err = a.c.in.Read(p)
	if a.left > 0 {
		a.left -= int64(n)
	}
	switch {
	case err == nil && a.left == 0 && !a.chunked:
		return n, a.end(io.EOF)
	case err == nil:
		return n, nil
	case a.left >= 0:
		err = early(err)
	}
	return n, a.end(err)
}

// chunk reads the line before a chunk. io.EOF is the end of the last one, with its trailers.
func (a *answer) chunk() error {
	in := a.c.in
	if a.begun {
		line, err := readStrict(in)
		if err != nil {
			return early(err)
		}
		if len(line) != 0 {
			return broken("a chunk is longer than it says")
		}
	}
	a.begun = true
	line, err := readStrict(in)
	if err != nil {
		return early(err)
	}
	if len(line) > 256 {
		return broken("a chunk's line is too long")
	}
	line, _, _ = bytes.Cut(line, []byte{';'})
	line = bytes.TrimRight(line, " \t")
	n, digits := int64(0), 0
	for _, c := range line {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return broken("a chunk without a length")
		}
		n = n<<4 | int64(c)
		if digits++; digits > 15 {
			return broken("a chunk without a length")
		}
	}
	if digits == 0 {
		return broken("a chunk without a length")
	}
	if a.left = n; n > 0 {
		return nil
	}
	for budget := a.c.t.maxHead(); ; {
		line, err := readStrict(in)
		if err != nil {
			return early(err)
		}
		if len(line) == 0 {
			return io.EOF
		}
		if budget -= len(line) + 2; budget < 0 {
			return broken("its trailers are too long")
		}
		if field(line) < 0 {
			return broken("a line of its trailers is none")
		}
	}
}

// end notes how the body ended, and what becomes of the connection.
func (a *answer) end(err error) error {
	if a.err != nil {
		return a.err
	}
	if ctx := a.resp.Request.Context(); !errors.Is(err, io.EOF) && ctx.Err() != nil {
		err = ctx.Err()
	}
	a.err = err
	c := a.c
	a.c = nil
	over := a.stop()
	clean := errors.Is(err, io.EOF) && over && !a.last && !a.half && c.in.Buffered() == 0
	c.letGo()
	if clean {
		c.t.put(c)
	} else {
		c.close()
	}
	return err
}

// Close ends the answer: a body that was not read to its end ends the connection, too.
func (a *answer) Close() error {
	if a.err == nil {
		_ = a.end(errClosed)
	}
	return nil
}

var errClosed = errors.New("h1: the body was closed")

// readStrict is readLine for the lines of chunks: a bare LF does not end them, since readers that take it differ from those that do not on
// where a chunk begins.
func readStrict(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case err == nil && (len(line) < 2 || line[len(line)-2] != '\r'):
		return nil, broken("a chunk's line ends in a bare LF")
	case err == nil:
		return line[:len(line)-2], nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, broken("a line is too long")
	}
	return nil, early(err)
}

// readLine reads a line of at most a buffer, without its end. It is valid until the next read.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case err == nil:
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, broken("a line is too long")
	case len(line) > 0:
		return nil, early(err)
	default:
		return nil, err
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// field is where the colon of a header's line is, -1 if it is no header: a name that is a token, and no control characters in the value.
func field(line []byte) int {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || !isToken(line[:colon]) {
		return -1
	}
	for _, c := range line[colon:] {
		if c < ' ' && c != '\t' || c == 0x7f {
			return -1
		}
	}
	return colon
}

func isToken(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), c) >= 0 {
			return false
		}
	}
	return true
}

func hasToken(list, token string) bool {
	for len(list) > 0 {
		one := list
		list = ""
		for i := range len(one) {
			if one[i] == ',' {
				one, list = one[:i], one[i+1:]
				break
			}
		}
		if equalFold(textproto.TrimString(one), token) {
			return true
		}
	}
	return false
}

func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		x, y := a[i], b[i]
		if 'A' <= x && x <= 'Z' {
			x += 'a' - 'A'
		}
		if x != y {
			return false
		}
	}
	return true
}
