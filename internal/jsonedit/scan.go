package jsonedit

// scanner goes over one body. Its methods take the offset where something begins and return the offset after it, or -1 once the
// scan has failed; the steps of the path are collected while the calls return.
type scanner struct {
	body    []byte
	bounds  Bounds
	escaped bool // the string that was scanned last has escapes
	names   *names

	reason Reason
	offset int
	steps  []string // of the failure's path, innermost first
	what   string   // of a field's refusal
}

func (s *scanner) fail(r Reason, offset int) int {
	if s.reason == 0 {
		s.reason, s.offset = r, offset
	}
	return -1
}

// early is the failure at an offset where a byte was expected: the body ended, or another one stands there.
func (s *scanner) early(i int) int {
	if i >= len(s.body) {
		return s.fail(EndsEarly, len(s.body))
	}
	return s.fail(NotJSON, i)
}

// space returns the offset of the next byte that is not white space.
func (s *scanner) space(i int) int {
	for i < len(s.body) {
		if c := s.body[i]; c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			break
		}
		i++
	}
	return i
}

// value scans the value that begins at i, which is no white space.
func (s *scanner) value(i, depth int) int {
	if i >= len(s.body) {
		return s.fail(EndsEarly, i)
	}
	switch c := s.body[i]; c {
	case '"':
		return s.text(i + 1)
	case '{':
		return s.object(i, depth, nil)
	case '[':
		return s.array(i, depth, nil)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	default:
		if c == '-' || '0' <= c && c <= '9' {
			return s.number(i)
		}
		return s.fail(NotJSON, i)
	}
}

func (s *scanner) literal(i int, want string) int {
	for k := range len(want) {
		if i+k >= len(s.body) || s.body[i+k] != want[k] {
			return s.early(i + k)
		}
	}
	return i + len(want)
}

// number scans the grammar of RFC 8259: no leading zeros, no NaN, no infinity.
func (s *scanner) number(i int) int {
	b := s.body
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && '1' <= b[i] && b[i] <= '9':
		i = digits(b, i)
	default:
		return s.early(i)
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = digits(b, from); i == from {
			return s.early(i)
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = digits(b, from); i == from {
			return s.early(i)
		}
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i
}

// object scans the object at i. visit, if there is one, takes over each member's value: it is called with the name (valid until it
// scans on), the offset of the quote before it, and the offset of the value, and returns the offset after that.
func (s *scanner) object(i, depth int, visit func(name []byte, key, value int) int) int {
	if depth >= s.bounds.Depth {
		return s.fail(TooDeep, i)
	}
	mark := s.names.open()
	i = s.space(i + 1)
	if i < len(s.body) && s.body[i] == '}' {
		s.names.close(mark)
		return i + 1
	}
	for {
		if i >= len(s.body) || s.body[i] != '"' {
			return s.early(i)
		}
		key := i
		s.escaped = false
		if i = s.text(key + 1); i < 0 {
			return -1
		}
		name, r := s.names.add(&mark, s.body, key+1, i-1, s.escaped)
		if r == 0 && len(s.names.live) > s.bounds.Names {
			r = TooMany
		}
		if r != 0 {
			s.steps = append(s.steps, clip(name))
			return s.fail(r, key)
		}
		own := s.names.live[len(s.names.live)-1]
		if i = s.space(i); i >= len(s.body) || s.body[i] != ':' {
			return s.early(i)
		}
		i = s.space(i + 1)
		if visit == nil {
			i = s.value(i, depth+1)
		} else {
			i = visit(name, key, i)
		}
		if i < 0 {
			s.steps = append(s.steps, clip(s.names.bytes(s.body, own)))
			return -1
		}
		i = s.space(i)
		if i >= len(s.body) {
			return s.fail(EndsEarly, i)
		}
		switch s.body[i] {
		case '}':
			s.names.close(mark)
			return i + 1
		case ',':
			i = s.space(i + 1)
		default:
			return s.fail(NotJSON, i)
		}
	}
}

// integers scans elements of an array that are plain integers, as far as they go, and returns the offset of the next element. n
// counts those that it went over; the last element is never among them.
func (s *scanner) integers(i int) (next, n int) {
	b := s.body
	for i < len(b) {
		at := i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		if i == at || i == len(b) || b[i] != ',' || b[at] == '0' && i > at+1 {
			return at, n
		}
		n++
		if i++; i < len(b) && b[i] == ' ' {
			i++
		}
	}
	return i, n
}

// array scans the array at i. visit, if there is one, takes over each element.
func (s *scanner) array(i, depth int, visit func(value int) int) int {
	if depth >= s.bounds.Depth {
		return s.fail(TooDeep, i)
	}
	i = s.space(i + 1)
	if i < len(s.body) && s.body[i] == ']' {
		return i + 1
	}
	for n := 0; ; n++ {
		if visit == nil {
			at, k := s.integers(i)
			n += k
			i = s.value(s.space(at), depth+1)
		} else {
			i = visit(i)
		}
		if i < 0 {
			s.steps = append(s.steps, element(n))
			return -1
		}
		i = s.space(i)
		if i >= len(s.body) {
			return s.fail(EndsEarly, i)
		}
		switch s.body[i] {
		case ']':
			return i + 1
		case ',':
			i = s.space(i + 1)
		default:
			return s.fail(NotJSON, i)
		}
	}
}
