package prompt

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Message is one turn of a conversation. Content is text; parts of a content are joined by the caller.
type Message struct {
	Role    string // system, user, assistant, tool
	Content string
}

// Chat renders a conversation with the model's template, up to where the assistant is to speak, and encodes it. Control tokens come from
// the template alone, whatever the contents say. limit is in tokens, 0 for none.
//
// Errors: ErrEmpty, ErrNoTemplate, ErrEntangled, *BadRole, *InvalidUTF8, *TemplateFailed, *TooLong.
func (e *Encoder) Chat(msgs []Message, limit int) ([]int32, error) {
	if e.chat == nil {
		return nil, ErrNoTemplate
	}
	if len(msgs) == 0 {
		return nil, ErrEmpty
	}
	for i, m := range msgs {
		switch m.Role {
		case "system", "user", "assistant", "tool":
		default:
			return nil, &BadRole{i}
		}
		if at := invalid(m.Content); at >= 0 {
			return nil, &InvalidUTF8{i, at}
		}
	}
	ps, err := e.chatPieces(msgs, e.chat.src.emitsOnly)
	if err != nil {
		return nil, err
	}
	return e.encode(ps, e.added.all, limit)
}

// Contents of at least longContent bytes go through a template that only emits them as a stand-in of their ends, of at
// least standInEnd bytes each.
const (
	longContent = 8 << 10
	standInEnd  = 1 << 10
)

// marking is how the contents of one conversation are marked. sign is a character that occurs in none of them.
//
//	sign 's' index sign   a content begins (after its leading blanks: trimming must not meet the mark)
//	sign 'e' index sign   it ends
//	sign 'b' index sign   inside a control token that the content spells
//	sign '"<xX' index sign   the middle of a long content, left out; a filter that changes text would change this
type marking struct {
	sign     string
	contents []marked
}

// marked is one content.
type marked struct {
	core            string // without the blanks around it
	bare, withMarks string // what the two renderings are given
	middle          string // left out of both
}

const middleKind = `"<xX`

func (m *marking) mark(kind string, i int) string { return m.sign + kind + strconv.Itoa(i) + m.sign }

// chatPieces renders a conversation and tells what the template said from what is content.
func (e *Encoder) chatPieces(msgs []Message, standIns bool) ([]piece, error) {
	m, ok := e.markContents(msgs, standIns)
	if !ok {
		return nil, ErrEntangled
	}
	bare, with := make([]line, len(msgs)), make([]line, len(msgs))
	for i, msg := range msgs {
		bare[i] = line{msg.Role, m.contents[i].bare}
		with[i] = line{msg.Role, m.contents[i].withMarks}
	}
	reference, err := e.chat.render(bare)
	if err != nil {
		return nil, err
	}
	rendered, err := e.chat.render(with)
	if err == nil {
		if ps, ok := m.pieces(rendered, reference); ok {
			return ps, nil
		}
	}
	// The marks disturbed the template.
	if standIns {
		return e.chatPieces(msgs, false)
	}
	for _, c := range m.contents {
		if e.added.secret.touches(c.core) {
			return nil, ErrEntangled
		}
	}
	return []piece{{text: reference}}, nil
}

func (e *Encoder) markContents(msgs []Message, standIns bool) (*marking, bool) {
	sign, ok := absentRune(msgs, e.chat.src.rewritten)
	m := &marking{sign: sign, contents: make([]marked, len(msgs))}
	for i, msg := range msgs {
		c := msg.Content
		core := strings.TrimSpace(c)
		if core == "" {
			m.contents[i] = marked{bare: c, withMarks: c}
			continue
		}
		lead := strings.Index(c, core)
		before, after := c[:lead], c[lead+len(core):]
		head, middle, tail := core, "", ""
		stand := ""
		if standIns && len(core) >= longContent {
			if h, t := standInCut(core); h < t {
				head, middle, tail = core[:h], core[h:t], core[t:]
				stand = m.mark(middleKind, i)
			}
		}
		m.contents[i] = marked{
			core:      core,
			bare:      before + head + stand + tail + after,
			withMarks: before + m.mark("s", i) + e.breakTokens(m, head, i) + stand + e.breakTokens(m, tail, i) + m.mark("e", i) + after,
			middle:    middle,
		}
	}
	return m, ok
}

// standInCut returns where the head of a long content ends and its tail begins; both are places where words begin whatever follows.
func standInCut(core string) (head, tail int) {
	h := firstBoundary(core[standInEnd:])
	t := lastBoundary(core[:len(core)-standInEnd])
	if h < 0 || t < 0 {
		return 0, 0
	}
	return standInEnd + h, t
}

// breakTokens puts a mark inside each control token that s spells.
func (e *Encoder) breakTokens(m *marking, s string, i int) string {
	var b strings.Builder
	for {
		at, _, n := e.added.secret.find(s)
		if n == 0 {
			break
		}
		_, first := utf8.DecodeRuneInString(s[at:])
		b.WriteString(s[:at+first])
		b.WriteString(m.mark("b", i))
		s = s[at+first:] // another one may begin inside this one
	}
	if b.Len() == 0 {
		return s
	}
	b.WriteString(s)
	return b.String()
}

// absentRune returns a character that occurs in no content nor in the template: a noncharacter, else one of private use. False if there is none.
func absentRune(msgs []Message, source string) (string, bool) {
	absent := func(s string) bool {
		for _, m := range msgs {
			if strings.Contains(m.Content, s) {
				return false
			}
		}
		return !strings.Contains(source, s)
	}
	for r := rune(0xfdd0); r <= 0xfdef; r++ {
		if s := string(r); absent(s) {
			return s, true
		}
	}
	present := map[rune]bool{}
	for _, m := range msgs {
		for _, r := range m.Content {
			if r >= 0xf0000 {
				present[r] = true
			}
		}
	}
	for r := rune(0xf0000); r <= utf8.MaxRune; r++ {
		if !present[r] && !strings.ContainsRune(source, r) {
			return string(r), true
		}
	}
	return "", false
}

// pieces takes the marks out of a rendering. It fails unless what remains is the reference.
func (m *marking) pieces(rendered, reference string) ([]piece, bool) {
	var ps []piece
	add := func(s string, content bool) bool {
		if !strings.HasPrefix(reference, s) {
			return false
		}
		reference = reference[len(s):]
		if s != "" {
			ps = append(ps, piece{s, content})
		}
		return true
	}
	inside, since := -1, 0 // the content whose begin was seen, and the piece after it
	for {
		at := strings.Index(rendered, m.sign)
		if at < 0 {
			break
		}
		kind, i, after, ok := m.parse(rendered[at:])
		if !ok || !add(rendered[:at], false) {
			return nil, false
		}
		rendered = after
		switch kind {
		case "s":
			inside, since = i, len(ps)
		case "e":
			if inside == i && spells(ps[since:], m.contents[i].core) {
				for j := since; j < len(ps); j++ {
					ps[j].content = true
				}
			}
			inside = -1
		case middleKind:
			mark := m.mark(middleKind, i)
			if !strings.HasPrefix(reference, mark) {
				return nil, false
			}
			reference = reference[len(mark):]
			ps = append(ps, piece{m.contents[i].middle, true})
		}
	}
	if !add(rendered, false) || reference != "" {
		return nil, false
	}
	return ps, true
}

// spells reports whether the pieces together are s: between the ends of a content there may be the template's own words, if it cut the
// content up.
func spells(ps []piece, s string) bool {
	for _, p := range ps {
		rest, ok := strings.CutPrefix(s, p.text)
		if !ok {
			return false
		}
		s = rest
	}
	return s == ""
}

// parse reads the mark that s begins with.
func (m *marking) parse(s string) (kind string, i int, after string, ok bool) {
	s = s[len(m.sign):]
	for _, k := range []string{"s", "e", "b", middleKind} {
		if rest, found := strings.CutPrefix(s, k); found {
			end := strings.Index(rest, m.sign)
			if end < 0 || end > 9 {
				return "", 0, "", false
			}
			n, err := strconv.Atoi(rest[:end])
			if err != nil || n < 0 || n >= len(m.contents) || strconv.Itoa(n) != rest[:end] {
				return "", 0, "", false
			}
			return k, n, rest[end+len(m.sign):], true
		}
	}
	return "", 0, "", false
}
