package jsonedit

import (
	"bytes"
	"iter"
)

// Shape of a prompt.
type Shape uint8

const (
	NoPrompt Shape = iota
	Text           // prompt: a string
	IDs            // prompt: token ids
	Texts          // prompt: several strings
	IDLists        // prompt: several lists of token ids
	Messages       // a chat
)

// Prompt is where a request's prompt lies in the body.
type Prompt struct {
	Shape Shape
	N     int // messages, or prompts
	IDs   int // token ids, of all lists
	Bytes int // of the texts as they stand in the body, escapes counted as they are spelled
	spans []span
	body  []byte
}

type span struct{ start, end int }

// Raw yields the insides of the JSON strings that are the prompt's text, escapes and all: of a chat the contents, without roles,
// names and tools.
func (p Prompt) Raw() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, s := range p.spans {
			if !yield(p.body[s.start:s.end:s.end]) {
				return
			}
		}
	}
}

func (p *Prompt) text(from, end int) {
	p.spans = append(p.spans, span{from + 1, end - 1})
	p.Bytes += end - from - 2
}

// Media is what a chat holds beside text.
type Media struct {
	Parts  int // content parts that are not text
	Remote int // of these, given by an address that the engine would fetch
}

func (s *scanner) is(i int, c byte) bool { return i < len(s.body) && s.body[i] == c }

// prompt scans the prompt of a completion.
func (s *scanner) prompt(d *Doc, i int) int {
	p := &d.prompt
	switch {
	case s.is(i, '"'):
		end := s.text(i + 1)
		if end >= 0 {
			p.Shape, p.N = Text, 1
			p.text(i, end)
		}
		return end
	case !s.is(i, '['):
		return s.value(i, 1)
	}
	p.Shape = IDs
	ids := 0
	end := s.array(i, 1, func(at int) int {
		switch {
		case s.is(at, '"'):
			end := s.text(at + 1)
			if end >= 0 {
				p.Shape = Texts
				p.N++
				p.text(at, end)
			}
			return end
		case s.is(at, '['):
			p.Shape = IDLists
			p.N++
			return s.array(at, 2, func(id int) int {
				id, n := s.integers(id)
				p.IDs += n + 1
				return s.value(s.space(id), 3)
			})
		}
		at, n := s.integers(at)
		ids += n + 1
		return s.value(s.space(at), 2)
	})
	if p.Shape == IDs {
		p.N, p.IDs = 1, ids
	} else {
		p.N += ids // a mixture, which no engine takes
	}
	return end
}

// messages scans a chat.
func (s *scanner) messages(d *Doc, i int) int {
	if !s.is(i, '[') {
		return s.value(i, 1)
	}
	d.prompt.Shape = Messages
	return s.array(i, 1, func(at int) int {
		d.prompt.N++
		if !s.is(at, '{') {
			return s.value(at, 2)
		}
		return s.object(at, 2, func(name []byte, _, value int) int {
			if string(name) == "content" {
				return s.content(d, value, 3)
			}
			return s.value(value, 3)
		})
	})
}

// content scans a message's content: a string, or a list of parts. Parts of Anthropic's API hold contents themselves: results of tools,
// documents.
func (s *scanner) content(d *Doc, i, depth int) int {
	switch {
	case s.is(i, '"'):
		return s.said(d, i)
	case !s.is(i, '['):
		return s.value(i, depth)
	}
	return s.array(i, depth, func(at int) int {
		switch {
		case s.is(at, '"'):
			return s.said(d, at)
		case !s.is(at, '{'):
			return s.value(at, depth+1)
		}
		media := 0
		end := s.object(at, depth+1, func(name []byte, key, value int) int {
			switch string(name) {
			case "text":
				if s.is(value, '"') {
					return s.said(d, value)
				}
				return s.value(value, depth+2)
			case "type", "refusal", "thinking", "reasoning", "signature", "name", "cache_control", "uuid", "modalities":
				return s.value(value, depth+2)
			}
			if d.blocks() {
				switch string(name) {
				case "content":
					return s.content(d, value, depth+2)
				case "id", "tool_use_id", "is_error", "input", "data", "title", "tool_name", "tool", "citations", "context":
					return s.value(value, depth+2) // of a tool's call or result, or opaque: nothing that is fetched
				}
				if s.is(value, '"') && string(name) == "source" {
					return s.value(value, depth+2) // where a search found it: words
				}
			}
			if bytes.HasSuffix(name, []byte("embeds")) && d.policy != nil && !s.is(value, 'n') {
				s.what = "embeddings in place of text are not taken"
				return s.fail(Unsupported, key)
			}
			media = 1
			return s.medium(d, name, value, depth+2)
		})
		d.media.Parts += media
		return end
	})
}

// blocks reports whether the body is in the dialect of Anthropic's API.
func (d *Doc) blocks() bool { return d.policy != nil && d.policy.cfg.Endpoint == AnthropicAPI }

// said scans a string that is part of the prompt.
func (s *scanner) said(d *Doc, i int) int {
	end := s.text(i + 1)
	if end >= 0 {
		d.prompt.text(i, end)
	}
	return end
}

// medium scans a part's payload: an address, or an object that holds one. What is not in the body itself the engine would have to
// fetch from wherever the client says.
func (s *scanner) medium(d *Doc, name []byte, i, depth int) int {
	if s.is(i, '"') && isAddress(name) {
		return s.address(d, i)
	}
	if !s.is(i, '{') {
		return s.value(i, depth)
	}
	return s.object(i, depth, func(name []byte, _, value int) int {
		switch {
		case s.is(value, '"') && isAddress(name):
			return s.address(d, value)
		case d.blocks() && string(name) == "content":
			return s.content(d, value, depth+1)
		}
		return s.value(value, depth+1)
	})
}

func isAddress(name []byte) bool { return bytes.HasSuffix(name, []byte("url")) }

func (s *scanner) address(d *Doc, i int) int {
	end := s.text(i + 1)
	if end < 0 {
		return -1
	}
	// Spelled with escapes it counts as an address elsewhere: nobody honest does that.
	const inline = "data:"
	text := s.body[i+1 : end-1]
	if len(text) < len(inline) || !bytes.EqualFold(text[:len(inline)], []byte(inline)) {
		d.media.Remote++
		if d.policy != nil && !d.policy.cfg.RemoteMedia {
			s.what = "media by address are not fetched: put them into the body (data:)"
			return s.fail(Unsupported, i)
		}
	}
	return end
}
