package actor

import (
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/llm/recall"
)

// The model's tokens are bytes and a few specials, as those of the built-in model: any text has one encoding, and counts can be told
// by looking.

// Message of a chat.
type Message struct {
	Role string
	Text []byte
}

// EncodeText is a text's tokens: the begin of text, and its bytes.
func EncodeText(text []byte) []int32 {
	ids := make([]int32, 1, len(text)+1)
	ids[0] = recall.BOS
	return appendBytes(ids, text)
}

// EncodeChat is a chat's tokens under the built-in model's template: the reply continues the last message.
func EncodeChat(messages []Message) []int32 {
	n := 1
	for _, m := range messages {
		n += len(m.Text) + 2
	}
	ids := append(make([]int32, 0, n), recall.BOS)
	for i, m := range messages {
		ids = append(ids, tag(m.Role))
		ids = appendBytes(ids, m.Text)
		if i < len(messages)-1 {
			ids = append(ids, recall.EOS)
		}
	}
	return ids
}

func tag(role string) int32 {
	switch role {
	case "user":
		return recall.User
	case "assistant":
		return recall.Assistant
	case "tool", "function":
		return recall.Tool
	}
	return recall.System
}

func appendBytes(ids []int32, text []byte) []int32 {
	for _, b := range text {
		ids = append(ids, int32(b))
	}
	return ids
}

// Speech turns tokens into text, never half a character.
type Speech struct{ held []byte }

// Add returns the text that is complete with one more token.
func (s *Speech) Add(id int32) string {
	if id < 0 || id > 255 {
		return s.Flush()
	}
	s.held = append(s.held, byte(id))
	n := len(s.held)
	// A character that may still become whole waits.
	for k := 1; k <= min(n, utf8.UTFMax-1); k++ {
		if c := s.held[n-k]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(s.held[n-k:]) {
				n -= k
			}
			break
		}
	}
	text := valid(s.held[:n])
	s.held = append(s.held[:0], s.held[n:]...)
	return text
}

// Flush returns what is held, whole or not.
func (s *Speech) Flush() string {
	text := valid(s.held)
	s.held = s.held[:0]
	return text
}

func valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}

// Text of tokens, specials left out.
func Text(ids []int32) string {
	var s Speech
	out := ""
	for _, id := range ids {
		out += s.Add(id)
	}
	return out + s.Flush()
}
