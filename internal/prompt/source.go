package prompt

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A template's source is read here once and written anew for the template engine, for three reasons. The engine's own handling of
// blanks around tags and of escapes in strings differs from Jinja2's; it cannot be interrupted, so each loop and macro gets a call
// that can; and what a template does with content decides whether long contents have to pass through it.
//
// Blanks follow Jinja2 with trim_blocks and lstrip_blocks, as all users of chat templates set them (jinja2/lexer.py).

// Bounds of a source. The largest of 68 published templates has 17 kB.
const (
	maxSource  = 128 << 10
	maxNesting = 64
)

// word is a token of the template language.
type word struct {
	kind wordKind
	s    string // of a text: its value
}

type wordKind uint8

const (
	wordName wordKind = iota
	wordText
	wordNumber
	wordOp
)

func (w word) is(k wordKind, s ...string) bool {
	if w.kind != k {
		return false
	}
	for _, x := range s {
		if w.s == x {
			return true
		}
	}
	return len(s) == 0
}

// tag is {{ … }}, {% … %} or {# … #}.
type tag struct {
	open        byte // '{', '%' or '#'
	left, right byte // '-' or '+' at the ends, else 0
	code        string
	words       []word
}

// source is a template that has been read.
type source struct {
	rewritten string
	texts     map[string]bool // the string literals
	// emitsOnly: content is at most trimmed on its way to the output; nothing looks at its inside or its length.
	emitsOnly bool
}

const tickCall = "sluice_tick"

func readSource(s string) (*source, error) {
	if len(s) > maxSource {
		return nil, fmt.Errorf("it has %d bytes, at most %d", len(s), maxSource)
	}
	if !utf8.ValidString(s) {
		return nil, errors.New("it is not UTF-8")
	}
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.TrimSuffix(s, "\n")
	src := &source{texts: map[string]bool{}, emitsOnly: true}
	var out strings.Builder
	depth := 0
	lineStart := true // nothing but blanks since the last newline was taken away
	for s != "" {
		at := nextTag(s)
		before := s[:at]
		if at == len(s) {
			literal(&out, before)
			break
		}
		t, rest, err := readTag(s[at:])
		if err != nil {
			return nil, err
		}
		literal(&out, trimBefore(before, t, lineStart))
		s = rest
		if t.open == '%' && len(t.words) == 1 && t.words[0].is(wordName, "raw") {
			body, after, ok := raw(trimAfter(s, t))
			if !ok {
				return nil, errors.New("a raw block has no end")
			}
			literal(&out, body)
			s, lineStart = after, false
			continue
		}
		lineStart = strings.HasPrefix(s, "\n") && t.right == 0 && t.open != '{'
		s = trimAfter(s, t)
		if t.open == '#' {
			continue
		}
		if err := src.vet(t, &depth); err != nil {
			return nil, err
		}
		src.write(&out, t)
	}
	src.rewritten = out.String()
	return src, nil
}

// nextTag returns where the next tag begins, or the length.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return len(s)
}

func closing(open byte) string {
	if open == '{' {
		return "}}"
	}
	return string([]byte{open, '}'})
}

// readTag reads the tag that s begins with.
func readTag(s string) (t tag, rest string, err error) {
	t.open = s[1]
	closer := closing(t.open)
	i := 2
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		t.left = s[i]
		i++
	}
	start := i
	braces := 0
	for i < len(s) {
		if strings.HasPrefix(s[i:], closer) && braces == 0 {
			end := i
			if end > start && (s[end-1] == '-' || s[end-1] == '+') {
				end--
				t.right = s[end]
			}
			t.code = s[start:end]
			if n := len(t.words); t.right != 0 && n > 0 && t.open != '#' {
				t.words = t.words[:n-1] // the sign was read as an operator
			}
			return t, s[i+2:], nil
		}
		if t.open == '#' {
			i++
			continue
		}
		w, n := readWord(s[i:])
		if n == 0 {
			return t, "", errors.New("a string has no end")
		}
		if w.is(wordOp, "{") {
			braces++
		} else if w.is(wordOp, "}") {
			braces--
		}
		if w.s != "" || w.kind == wordText {
			t.words = append(t.words, w)
		}
		i += n
	}
	return t, "", fmt.Errorf("a tag {%c has no end", t.open)
}

// readWord reads one word of code, or one blank (an op without text); n is 0 for a string without an end.
func readWord(s string) (w word, n int) {
	isName := func(c byte) bool {
		return c == '_' || isASCIILetter(c) || '0' <= c && c <= '9'
	}
	switch c := s[0]; {
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		return word{kind: wordOp}, 1
	case c == '\'' || c == '"':
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case c:
				return word{wordText, unescape(s[1:i])}, i + 1
			}
		}
		return w, 0
	case '0' <= c && c <= '9':
		for n < len(s) && (isName(s[n]) || s[n] == '.' && n+1 < len(s) && '0' <= s[n+1] && s[n+1] <= '9') {
			n++
		}
		return word{wordNumber, s[:n]}, n
	case isName(c):
		for n < len(s) && isName(s[n]) {
			n++
		}
		return word{wordName, s[:n]}, n
	case len(s) > 1 && strings.Contains("== != <= >= ** //", s[:2]) && s[1] != ' ' && c != ' ':
		return word{wordOp, s[:2]}, 2
	}
	return word{wordOp, s[:1]}, 1
}

// unescape decodes the escapes of a string as Python does.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	hex := func(i, n int) (rune, bool) {
		if i+n > len(s) {
			return 0, false
		}
		v, err := strconv.ParseUint(s[i:i+n], 16, 32)
		return rune(v), err == nil && v <= utf8.MaxRune
	}
	simple := map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', 'b': '\b', 'f': '\f', 'v': '\v', 'a': '\a', '0': 0, '\\': '\\', '\'': '\'', '"': '"'}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		if v, ok := simple[c]; ok {
			b.WriteByte(v)
		} else if c == '\n' {
			// a line that goes on
		} else if n := digits[c]; n > 0 {
			if r, ok := hex(i+1, n); ok {
				b.WriteRune(r)
				i += n
			} else {
				b.WriteString(s[i-1 : i+1])
			}
		} else {
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

const blank = " \t\n\r\v\f"

// trimBefore applies the left end of t to the text before it.
func trimBefore(s string, t tag, lineStart bool) string {
	switch {
	case t.left == '-':
		return strings.TrimRight(s, blank)
	case t.left == '+' || t.open == '{':
		return s
	}
	line := strings.LastIndexByte(s, '\n') + 1
	if (line > 0 || lineStart) && strings.Trim(s[line:], " \t") == "" {
		return s[:line]
	}
	return s
}

// trimAfter applies the right end of t to the text after it.
func trimAfter(s string, t tag) string {
	switch {
	case t.right == '-':
		return strings.TrimLeft(s, blank)
	case t.right == '+' || t.open == '{':
		return s
	}
	return strings.TrimPrefix(s, "\n")
}

// raw returns the text up to {% endraw %}.
func raw(s string) (body, rest string, ok bool) {
	for at := 0; ; at += 2 {
		i := strings.Index(s[at:], "{%")
		if i < 0 {
			return "", "", false
		}
		at += i
		t, after, err := readTag(s[at:])
		if err == nil && len(t.words) == 1 && t.words[0].is(wordName, "endraw") {
			return trimBefore(s[:at], t, false), trimAfter(after, t), true
		}
	}
}

// literal writes text as an expression, so that the engine has no text of its own to trim.
func literal(out *strings.Builder, s string) {
	if s != "" {
		out.WriteString("{{ ")
		quote(out, s)
		out.WriteString(" }}")
	}
}

func quote(out *strings.Builder, s string) {
	out.WriteByte('\'')
	for i := range len(s) {
		switch s[i] {
		case '\'', '\\':
			out.WriteByte('\\')
			out.WriteByte(s[i])
		case '\n':
			out.WriteString(`\n`)
		default:
			out.WriteByte(s[i])
		}
	}
	out.WriteByte('\'')
}

// write writes a tag for the engine: its strings with escapes that the engine knows, and a tick at the start of each loop's and macro's body.
func (src *source) write(out *strings.Builder, t tag) {
	closer := closing(t.open)
	out.WriteByte('{')
	out.WriteByte(t.open)
	out.WriteByte(' ')
	for i := 0; i < len(t.code); {
		w, n := readWord(t.code[i:])
		switch {
		case w.kind == wordText:
			quote(out, w.s)
		case w.is(wordOp, "}"):
			out.WriteString("} ")
		default:
			out.WriteString(t.code[i : i+n])
		}
		i += n
	}
	out.WriteByte(' ')
	out.WriteString(closer)
	if t.open == '%' && len(t.words) > 0 && t.words[0].is(wordName, "for", "macro") {
		out.WriteString("{% set " + tickCall + "_ = " + tickCall + "() %}")
	}
}

// vet refuses what could run away, and finds out what the template does with content.
func (src *source) vet(t tag, blocks *int) error {
	if t.open == '%' && len(t.words) > 0 && t.words[0].kind == wordName {
		switch w := t.words[0].s; {
		case w == "if" || w == "for" || w == "macro" || w == "call" || w == "filter" || w == "generation":
			*blocks++
		case strings.HasPrefix(w, "end"):
			*blocks--
		}
		if *blocks > maxNesting {
			return fmt.Errorf("it nests deeper than %d blocks", maxNesting)
		}
	}
	depth, signs, calls := 0, 0, 0
	for _, w := range t.words {
		switch {
		case w.kind == wordText:
			src.texts[w.s] = true
		case w.is(wordOp, "*", "**"):
			return errors.New("it multiplies, which could make text without end")
		case w.is(wordOp, "(", "[", "{"):
			depth++
			if w.s == "(" {
				calls++
			}
		case w.is(wordOp, ")", "]", "}"):
			depth--
		}
		if w.is(wordName, "not") || w.is(wordOp, "-", "+") {
			signs++
		} else {
			signs = 0
		}
		if depth > maxNesting || signs > maxNesting {
			return fmt.Errorf("it nests deeper than %d brackets", maxNesting)
		}
	}
	if len(t.words) > 0 && t.words[0].is(wordName, "macro") && calls > 1 {
		return errors.New("a macro's default calls something")
	}
	src.emitsOnly = src.emitsOnly && emitsOnly(t.words)
	return nil
}

// What may be done with a text without looking at its inside, and the names of what is no text. Anything else makes a template one that
// contents pass through whole.
var (
	plainFilters = []string{"trim", "tojson", "string", "safe", "default", "d"}
	plainMethods = []string{"strip", "lstrip", "rstrip", "get", "items", "append"}
	plainTests   = []string{"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "true", "false", "boolean", "number"}
	structures   = []string{"message", "messages", "loop_messages", "loop", "tool", "tools", "tool_call", "ns", "documents"}
)

func emitsOnly(ws []word) bool {
	isFor := len(ws) > 0 && ws[0].is(wordName, "for")
	for i, w := range ws {
		before, after := word{wordOp, ""}, word{wordOp, ""}
		if i > 0 {
			before = ws[i-1]
		}
		if i+1 < len(ws) {
			after = ws[i+1]
		}
		switch {
		case w.is(wordName, "filter") && i == 0:
			return false
		case w.is(wordOp, "|"):
			if !after.is(wordName, plainFilters...) && !(after.is(wordName, "length", "count") && before.is(wordName, structures...)) {
				return false
			}
		case w.is(wordOp, ".") && i+2 < len(ws) && ws[i+2].is(wordOp, "("):
			if !after.is(wordName, plainMethods...) {
				return false
			}
		case w.is(wordName, "is"):
			if after.is(wordName, "not") && i+2 < len(ws) {
				after = ws[i+2]
			}
			if !after.is(wordName, plainTests...) {
				return false
			}
		case w.is(wordName, "in"):
			part := i+2 < len(ws) && ws[i+2].is(wordOp, ".", "[")
			if !isFor && (part || !after.is(wordName, structures...)) {
				return false
			}
			isFor = false // a second one is a test
		case w.is(wordOp, "==", "!="): // two contents could be compared
			fixed := after.kind != wordName && !after.is(wordOp) || after.is(wordOp, "(") || after.is(wordName, "true", "false", "none", "True", "False", "None")
			if !fixed && before.kind != wordText {
				return false
			}
		case w.is(wordOp, "[") && after.kind != wordText: // x['role'] is a field, x[0] may be a character
			if before.is(wordName) && !before.is(wordName, structures...) && !before.is(wordName, "in", "if", "else", "and", "or", "not", "is") {
				return false
			}
			if before.is(wordOp, "]", ")") {
				return false
			}
		case w.is(wordOp, "<", ">", "<=", ">=", "%"):
			if !(before.kind == wordNumber || after.kind == wordNumber || before.is(wordName, "index", "index0") || after.is(wordName, "loop")) {
				return false
			}
		}
	}
	return true
}
