package prompt

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/gguf"
)

// Encoder encodes prompts for one model. It is safe for concurrent use, and keeps nothing of a prompt.
type Encoder struct {
	v     *vocabulary
	bpe   *bpe
	added added
	chat  *template // nil if the file has none
}

// exactBytes is up to how much text is counted to its end even when it is over the limit, so that the refusal can name
// the number.
const exactBytes = 1 << 20

// New reads the tokenizer and the chat template of a file. What it does not know (a tokenizer other than byte-level BPE, a
// pre-tokenizer, a template that does not compile) is an error that names it.
func New(f *gguf.File) (*Encoder, error) {
	model, err := f.String("tokenizer.ggml.model")
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	if model != "gpt2" {
		return nil, fmt.Errorf("prompt: tokenizer %q is not supported, only byte-level BPE (\"gpt2\")", model)
	}
	name, err := f.String("tokenizer.ggml.pre")
	if errors.Is(err, gguf.ErrAbsent) {
		name, err = "default", nil
	}
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	pre, ok := pretokenizers[name]
	if !ok {
		return nil, fmt.Errorf("prompt: pre-tokenizer %q is not supported", name)
	}
	v, err := readVocabulary(f)
	if err != nil {
		return nil, err
	}
	merges, err := f.Strings("tokenizer.ggml.merges")
	if err != nil && !errors.Is(err, gguf.ErrAbsent) {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	b, err := newBPE(v, merges, pre)
	if err != nil {
		return nil, err
	}
	e := &Encoder{v: v, bpe: b, added: newAdded(v)}
	source, err := f.String("tokenizer.chat_template")
	if errors.Is(err, gguf.ErrAbsent) {
		return e, nil
	}
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	if e.chat, err = newTemplate(source, v.named); err != nil {
		return nil, err
	}
	return e, nil
}

// Vocab is the number of token ids.
func (e *Encoder) Vocab() int { return len(e.v.text) }

// BOS is the id that begins a text, -1 if the model has none.
func (e *Encoder) BOS() int32 { return e.v.bos }

// EOS returns the ids that end a reply.
func (e *Encoder) EOS() []int32 { return slices.Clone(e.v.stop) }

// HasTemplate reports whether Chat can work.
func (e *Encoder) HasTemplate() bool { return e.chat != nil }

// Text encodes a plain prompt. Control tokens are not recognised in it; a BOS comes first if the model wants one. limit is in tokens,
// 0 for none. Errors: ErrEmpty, *InvalidUTF8, *TooLong.
func (e *Encoder) Text(s string, limit int) ([]int32, error) {
	if s == "" {
		return nil, ErrEmpty
	}
	if i := invalid(s); i >= 0 {
		return nil, &InvalidUTF8{-1, i}
	}
	return e.encode([]piece{{text: s}}, e.added.user, limit)
}

// Count returns the number of tokens that Text would give, without keeping any.
func (e *Encoder) Count(s string) (int, error) {
	if i := invalid(s); i >= 0 {
		return 0, &InvalidUTF8{-1, i}
	}
	o := output{}
	if e.v.addBOS {
		o.n = 1
	}
	e.pieces([]piece{{text: s}}, e.added.user, &o)
	return o.n, nil
}

// IDs checks a prompt that is token ids already, and returns it. Nothing is added to it. Errors: ErrEmpty, *TooLong, *BadID.
func (e *Encoder) IDs(ids []int32, limit int) ([]int32, error) {
	if len(ids) == 0 {
		return nil, ErrEmpty
	}
	if limit > 0 && len(ids) > limit {
		return nil, &TooLong{Tokens: len(ids), Limit: limit}
	}
	for i, id := range ids {
		if id < 0 || int(id) >= e.Vocab() {
			return nil, &BadID{i, e.Vocab()}
		}
	}
	return ids, nil
}

// encode turns pieces into ids, with one BOS in front if the model wants one. Nothing is kept of a prompt that is over the limit: unless
// its bytes alone show that it fits, it is counted first.
func (e *Encoder) encode(ps []piece, set *tokenSet, limit int) ([]int32, error) {
	bytes := 0
	var counts [256]int
	for _, p := range ps {
		bytes += len(p.text)
		if p.content || set == e.added.user { // a template may spell long control tokens: its text proves nothing
			for i := range len(p.text) {
				counts[p.text[i]]++
			}
		}
	}
	front := 0
	if e.v.addBOS && !e.beginsWithBOS(ps, set) {
		front = 1
	}
	guess := bytes/3 + 8
	if limit > 0 && bytes+front > limit {
		sure := e.v.atLeast(&counts) + front
		if sure > limit && bytes > exactBytes {
			return nil, &TooLong{Tokens: sure, AtLeast: true, Limit: limit}
		}
		o := output{n: front, limit: limit}
		if bytes <= exactBytes {
			o.limit = 0
		}
		done := e.pieces(ps, set, &o)
		if o.n > limit {
			return nil, &TooLong{Tokens: max(o.n, sure), AtLeast: !done, Limit: limit}
		}
		guess = o.n
	}
	o := output{keep: true, ids: make([]int32, 0, guess)}
	if front > 0 {
		o.put(e.v.bos)
	}
	e.pieces(ps, set, &o)
	if len(o.ids) == 0 {
		return nil, ErrEmpty
	}
	return o.ids, nil
}

// beginsWithBOS reports whether the template wrote the BOS itself.
func (e *Encoder) beginsWithBOS(ps []piece, set *tokenSet) bool {
	if len(ps) == 0 || ps[0].content || set != e.added.all {
		return false
	}
	id, n := set.match(ps[0].text)
	return n > 0 && id == e.v.bos
}

// invalid returns the offset of the first byte that is not UTF-8, or -1.
func invalid(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
}
