package gateway

import "strings"

// stops finds stop strings in text that comes in pieces. Text that may be the beginning of one is held back until it is known.
type stops struct {
	strings []string
	held    string // a proper beginning of a stop string, the longest that the text ends with
}

// add takes a piece of text and appends to out what may be sent. On a match it appends the text before it and reports true.
func (s *stops) add(out []byte, piece string) ([]byte, bool) {
	if piece == "" {
		return out, false
	}
	if len(s.strings) == 0 {
		return append(out, piece...), false
	}
	text := s.held + piece
	at := -1
	for _, stop := range s.strings {
		if i := strings.Index(text, stop); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at >= 0 {
		s.held = ""
		return append(out, text[:at]...), true
	}
	keep := 0
	for _, stop := range s.strings {
		for n := min(len(stop)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				keep = n
				break
			}
		}
	}
	s.held = text[len(text)-keep:]
	return append(out, text[:len(text)-keep]...), false
}

// flush appends what is held back: the text has ended.
func (s *stops) flush(out []byte) []byte {
	out = append(out, s.held...)
	s.held = ""
	return out
}
