package prompt

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/gguf"
)

// kind of a token, as tokenizer.ggml.token_type numbers it.
type kind int32

const (
	kindNormal  kind = 1
	kindUnknown kind = 2
	kindControl kind = 3
	kindUser    kind = 4 // "user defined": added to the vocabulary, but text like any other
	kindUnused  kind = 5
	kindByte    kind = 6
)

// vocabulary is the tokens, as bytes.
type vocabulary struct {
	text  []string // raw bytes of each token; of control tokens the name
	kind  []kind
	ids   map[string]int32 // of the tokens that text may become: normal, byte, user defined
	bytes [256]int32       // the token of each single byte, -1 if there is none
	// lacking: some byte has no token. Text loses such bytes, as it does in the models' own tokenizers (SmolLM2 has none for eight
	// rare ones).
	lacking bool
	bos     int32 // -1 if there is none
	eos     int32
	stop    []int32
	named   map[string]string // bos_token, eos_token, … as templates call them
	// addBOS: a prompt begins with bos.
	addBOS bool
	// longest[b] is the bytes of the longest token that has byte b in it, 0 if none has.
	longest [256]int
}

// endings are names of tokens that end a reply. Files often name only one of theirs in eos_token_id; the
// list is llama.cpp's (src/llama-vocab.cpp), so that a reply ends where it would there.
var endings = map[string]bool{
	"<|eot_id|>": true, "<|im_end|>": true, "<|end|>": true, "<|return|>": true, "<|call|>": true, "<|flush|>": true,
	"<|calls|>": true, "<end_of_turn>": true, "<|endoftext|>": true, "</s>": true, "<|eom_id|>": true, "<EOT>": true,
	"_<EOT>": true, "[EOT]": true, "[EOS]": true, "<|end_of_text|>": true, "<end_of_utterance>": true, "<eos>": true,
	"<｜end▁of▁sentence｜>": true,
}

// maxVocab bounds what a file may declare; the largest models have about 260,000.
const maxVocab = 1 << 21

func readVocabulary(f *gguf.File) (*vocabulary, error) {
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	if len(tokens) == 0 || len(tokens) > maxVocab {
		return nil, fmt.Errorf("prompt: a vocabulary of %d tokens: must be 1 to %d", len(tokens), maxVocab)
	}
	types, err := f.Int32s("tokenizer.ggml.token_type")
	if errors.Is(err, gguf.ErrAbsent) {
		types, err = make([]int32, len(tokens)), nil
		for i := range types {
			types[i] = int32(kindNormal)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	if len(types) != len(tokens) {
		return nil, fmt.Errorf("prompt: %d tokens but %d token types", len(tokens), len(types))
	}
	v := &vocabulary{
		text: make([]string, len(tokens)), kind: make([]kind, len(tokens)), ids: make(map[string]int32, len(tokens)),
		named: map[string]string{},
	}
	for i, t := range tokens {
		k := kind(types[i])
		v.kind[i] = k
		switch k {
		case kindNormal, kindByte:
			v.text[i] = fromAlphabet(t)
		case kindUser, kindControl, kindUnknown, kindUnused:
			v.text[i] = t
		default:
			return nil, fmt.Errorf("prompt: token %d is of unknown type %d", i, k)
		}
		if k == kindControl || k == kindUnknown || k == kindUnused || v.text[i] == "" {
			continue
		}
		v.ids[v.text[i]] = int32(i) // of equal texts the last one is used, as llama.cpp does
		for j := range len(v.text[i]) {
			b := v.text[i][j]
			v.longest[b] = max(v.longest[b], len(v.text[i]))
		}
	}
	for b := range v.bytes {
		id, ok := v.ids[string([]byte{byte(b)})]
		if !ok {
			id = -1
			v.lacking = true
		}
		v.bytes[b] = id
	}
	return v, v.readSpecials(f)
}

// readSpecials reads the ids that the file names.
func (v *vocabulary) readSpecials(f *gguf.File) error {
	id := func(key string) (int32, error) {
		n, err := f.Uint("tokenizer.ggml." + key)
		if errors.Is(err, gguf.ErrAbsent) {
			return -1, nil
		}
		if err != nil {
			return -1, fmt.Errorf("prompt: %w", err)
		}
		if n >= uint64(len(v.text)) {
			return -1, fmt.Errorf("prompt: %s is %d, the vocabulary has %d tokens", key, n, len(v.text))
		}
		return int32(n), nil
	}
	stop := make(map[int32]bool)
	for _, s := range []struct{ key, variable string }{
		{"bos_token_id", "bos_token"}, {"eos_token_id", "eos_token"}, {"unknown_token_id", "unk_token"}, {"padding_token_id", "pad_token"},
		{"eot_token_id", ""}, {"eom_token_id", ""},
	} {
		n, err := id(s.key)
		if err != nil {
			return err
		}
		if n >= 0 && s.variable != "" {
			v.named[s.variable] = v.text[n]
		}
		switch s.key {
		case "bos_token_id":
			v.bos = n
		case "eos_token_id":
			v.eos = n
			stop[n] = true
		case "eot_token_id", "eom_token_id":
			stop[n] = true
		}
	}
	for i, t := range v.text {
		if v.kind[i] == kindControl && endings[t] {
			stop[int32(i)] = true
		}
		if stop[int32(i)] {
			v.stop = append(v.stop, int32(i))
		}
	}
	add, err := f.Bool("tokenizer.ggml.add_bos_token")
	if err != nil && !errors.Is(err, gguf.ErrAbsent) {
		return fmt.Errorf("prompt: %w", err)
	}
	if add && v.bos < 0 {
		return errors.New("prompt: the file asks for a bos token but names none")
	}
	v.addBOS = add
	return nil
}

// fromAlphabet turns a token of byte-level BPE into its bytes. In files each byte is written as a printable character (the
// alphabet of GPT-2's encoder.py: printable Latin-1 stands for itself, the others for U+0100 and up in order). Characters
// outside it stand for themselves.
func fromAlphabet(t string) string {
	plain := true
	for i := range len(t) {
		plain = plain && '!' <= t[i] && t[i] <= '~'
	}
	if plain {
		return t
	}
	var b strings.Builder
	b.Grow(len(t))
	for _, r := range t {
		if c, ok := alphabet[r]; ok {
			b.WriteByte(c)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

var alphabet = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(256)
	for c := range rune(256) {
		if '!' <= c && c <= '~' || 0xa1 <= c && c <= 0xac || 0xae <= c {
			m[c] = byte(c)
			continue
		}
		m[next] = byte(c)
		next++
	}
	return m
}()

// atLeast is a proven lower bound on the tokens of a text that holds no added token: a token of n bytes counts 1/n for each of them, and no byte
// can count less than 1 over the longest token it occurs in.
func (v *vocabulary) atLeast(counts *[256]int) int {
	const unit = 1 << 20
	sum := 0
	for b, n := range counts {
		if l := v.longest[b]; l > 0 {
			sum += n * (unit / l)
		}
	}
	return sum / unit
}
