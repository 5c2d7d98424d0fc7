package recall

import "fmt"

// Tokens 0 to 255 are the bytes; these are the specials. Those from 263 on are reserved.
const (
	BOS       = 256 + iota // <|begin|>
	EOS                    // <|end|>: ends a message and a reply
	System                 // <|system|>
	User                   // <|user|>
	Assistant              // <|assistant|>
	Tool                   // <|tool|>
	Pad                    // <|pad|>
	reserved
)

// Vocab is the number of tokens.
const Vocab = 272

// Token types of the GGUF vocabulary.
const (
	typeNormal  = 1
	typeControl = 3
)

var specials = [...]string{"begin", "end", "system", "user", "assistant", "tool", "pad"}

// vocabulary spells the tokens as byte-level BPE does: printable Latin-1 stands for itself, the other bytes for the
// letters from U+0100 on. There are no merges, so any text becomes its bytes.
func vocabulary() (tokens []string, types []int32) {
	stand := rune(256)
	for b := range rune(256) {
		printable := '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xff && b != 0xad
		if printable {
			tokens = append(tokens, string(b))
		} else {
			tokens = append(tokens, string(stand))
			stand++
		}
		types = append(types, typeNormal)
	}
	for t := 256; t < Vocab; t++ {
		name := fmt.Sprintf("reserved_%d", t-reserved)
		if t < reserved {
			name = specials[t-256]
		}
		tokens = append(tokens, "<|"+name+"|>")
		types = append(types, typeControl)
	}
	return tokens, types
}

// chatTemplate ends inside the last message, without a tag for the assistant, so that the reply continues the user's own
// words. Each earlier message ends with EOS, which is copied like any token: a reply that reaches the end of the message
// it copies from stops there.
const chatTemplate = `{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}` +
	`{% if not loop.last or not add_generation_prompt %}{{ '<|end|>' }}{% endif %}{% endfor %}`

// Encode is BOS and the text's bytes: what the tokenizer in the file makes of a text without specials.
func Encode(text string) []int32 {
	ids := make([]int32, 0, len(text)+1)
	ids = append(ids, BOS)
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
	}
	return ids
}

// Decode is the inverse of Encode; specials are spelled out.
func Decode(ids []int32) string {
	tokens, _ := vocabulary()
	var b []byte
	for _, id := range ids {
		switch {
		case id >= 0 && id < 256:
			b = append(b, byte(id))
		case id >= 256 && id < Vocab:
			b = append(b, tokens[id]...)
		default:
			b = fmt.Appendf(b, "<|%d?|>", id)
		}
	}
	return string(b)
}
