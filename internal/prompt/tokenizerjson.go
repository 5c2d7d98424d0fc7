package prompt

import (
	"encoding/json"
	"fmt"

	"golang.org/x/text/unicode/norm"
)

// Counter counts the tokens that an engine makes of a text, from the tokenizer.json that the engine was given. It keeps nothing of a
// prompt, and is safe for concurrent use.
//
// What it knows is byte-level BPE, as tokenizers (Hugging Face) writes it: no normalizer or NFC; pre-tokenizers ByteLevel, Digits and
// ByteLevel, and the patterns of GPT-2, Llama 3 and Qwen 2 before ByteLevel. Anything else is refused by name: a count that is nearly
// right would be wrong where it matters.
type Counter struct {
	e       *Encoder
	literal *tokenSet // added tokens that are found in the text as it is: engines read a client's text for them
	normal  *tokenSet // those that are found after normalization
	nfc     bool
	special int  // tokens that are put around a text
	spans   bool // an added token has a place inside where words would be cut
}

// maxTokenizer is the largest tokenizer.json that is read; those of large vocabularies have some 30 MB.
const maxTokenizer = 128 << 20

// tokenizerFile is tokenizer.json, as far as it decides about a count.
type tokenizerFile struct {
	Added []struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *component `json:"normalizer"`
	PreTokenizer  *component `json:"pre_tokenizer"`
	PostProcessor *component `json:"post_processor"`
	Model         struct {
		Type           string          `json:"type"`
		Dropout        *float64        `json:"dropout"`
		Unknown        *string         `json:"unk_token"`
		Prefix, Suffix *string         `json:"-"`
		Continuing     *string         `json:"continuing_subword_prefix"`
		EndOfWord      *string         `json:"end_of_word_suffix"`
		ByteFallback   bool            `json:"byte_fallback"`
		IgnoreMerges   bool            `json:"ignore_merges"`
		Vocab          map[string]int  `json:"-"`
		RawVocab       json.RawMessage `json:"vocab"`
		Merges         json.RawMessage `json:"merges"`
	} `json:"model"`
}

// component is a normalizer, pre-tokenizer or post-processor.
type component struct {
	Type             string      `json:"type"`
	Normalizers      []component `json:"normalizers"`
	PreTokenizers    []component `json:"pretokenizers"`
	Processors       []component `json:"processors"`
	AddPrefixSpace   bool        `json:"add_prefix_space"`
	UseRegex         *bool       `json:"use_regex"`
	IndividualDigits bool        `json:"individual_digits"`
	Behavior         string      `json:"behavior"`
	Invert           bool        `json:"invert"`
	Pattern          struct {
		Regex string `json:"Regex"`
	} `json:"pattern"`
	Single []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int `json:"ids"`
	} `json:"special_tokens"`
}

// patterns of Split that are known, and the words that they make.
var patterns = map[string]stage{
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:                                          gpt2Word,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: llama3Word,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      qwen2Word,
}

// NewCounter reads a tokenizer.json. An error names what is not known; nothing is guessed.
func NewCounter(file []byte) (*Counter, error) {
	if len(file) > maxTokenizer {
		return nil, fmt.Errorf("prompt: a tokenizer.json of %d bytes: at most %d are read", len(file), maxTokenizer)
	}
	var f tokenizerFile
	if err := json.Unmarshal(file, &f); err != nil {
		return nil, fmt.Errorf("prompt: tokenizer.json: %w", err)
	}
	m := &f.Model
	if m.Type != "BPE" {
		return nil, fmt.Errorf("prompt: tokenizer.json: model %q is not supported, only byte-level BPE", m.Type)
	}
	if err := json.Unmarshal(m.RawVocab, &m.Vocab); err != nil {
		return nil, fmt.Errorf("prompt: tokenizer.json: vocab: %w", err)
	}
	set := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return nil, fmt.Errorf("prompt: tokenizer.json: dropout is not supported")
	case set(m.Unknown):
		return nil, fmt.Errorf("prompt: tokenizer.json: an unknown token is not supported, only byte-level BPE")
	case set(m.Continuing), set(m.EndOfWord):
		return nil, fmt.Errorf("prompt: tokenizer.json: prefixes and suffixes of subwords are not supported")
	case m.ByteFallback:
		return nil, fmt.Errorf("prompt: tokenizer.json: byte_fallback is not supported, only byte-level BPE")
	}
	nfc, err := f.normalizer()
	if err != nil {
		return nil, err
	}
	pre, err := f.preTokenizer()
	if err != nil {
		return nil, err
	}
	pre.whole = m.IgnoreMerges
	special, err := f.PostProcessor.adds()
	if err != nil {
		return nil, err
	}
	c := &Counter{literal: newTokenSet(), normal: newTokenSet(), nfc: nfc, special: special}
	v, err := f.vocabulary(c)
	if err != nil {
		return nil, err
	}
	merges, err := f.merges()
	if err != nil {
		return nil, err
	}
	b, err := newBPE(v, merges, pre)
	if err != nil {
		return nil, err
	}
	c.e = &Encoder{v: v, bpe: b, added: added{newTokenSet(), newTokenSet(), newTokenSet(), newTokenSet()}}
	return c, nil
}

func (f *tokenizerFile) normalizer() (nfc bool, err error) {
	n := f.Normalizer
	switch {
	case n == nil, n.Type == "Sequence" && len(n.Normalizers) == 0:
		return false, nil
	case n.Type == "NFC", n.Type == "Sequence" && len(n.Normalizers) == 1 && n.Normalizers[0].Type == "NFC":
		return true, nil
	}
	return false, fmt.Errorf("prompt: tokenizer.json: normalizer %q is not supported, only NFC or none", n.Type)
}

// preTokenizer reads the stages before the bytes become characters.
func (f *tokenizerFile) preTokenizer() (p pretokenizer, err error) {
	if f.PreTokenizer == nil {
		return p, fmt.Errorf("prompt: tokenizer.json: without a pre-tokenizer, it is not byte-level BPE")
	}
	steps := []component{*f.PreTokenizer}
	if f.PreTokenizer.Type == "Sequence" {
		steps = f.PreTokenizer.PreTokenizers
	}
	for i, s := range steps {
		last := i == len(steps)-1
		switch {
		case s.Type == "ByteLevel" && last && !s.AddPrefixSpace:
			if s.UseRegex == nil || *s.UseRegex {
				p.stages = append(p.stages, gpt2Word)
			}
			return p, nil
		case s.Type == "Digits" && !last && s.IndividualDigits:
			p.stages = append(p.stages, digitsApart)
		case s.Type == "Split" && !last && s.Behavior == "Isolated" && !s.Invert:
			word, ok := patterns[s.Pattern.Regex]
			if !ok {
				return p, fmt.Errorf("prompt: tokenizer.json: the pattern of a pre-tokenizer is not one of the %d that are supported", len(patterns))
			}
			p.stages = append(p.stages, word)
		default:
			return p, fmt.Errorf("prompt: tokenizer.json: pre-tokenizer %q with these settings is not supported", s.Type)
		}
	}
	return p, fmt.Errorf("prompt: tokenizer.json: the pre-tokenizer does not end in ByteLevel: it is not byte-level BPE")
}

// adds is how many tokens a post-processor puts around a text.
func (c *component) adds() (n int, err error) {
	if c == nil {
		return 0, nil
	}
	switch c.Type {
	case "ByteLevel":
		return 0, nil
	case "Sequence":
		for i := range c.Processors {
			k, err := c.Processors[i].adds()
			if err != nil {
				return 0, err
			}
			n += k
		}
		return n, nil
	case "TemplateProcessing":
		for _, s := range c.Single {
			if s.SpecialToken == nil {
				continue
			}
			t, ok := c.SpecialTokens[s.SpecialToken.ID]
			if !ok {
				return 0, fmt.Errorf("prompt: tokenizer.json: the post-processor names a token that it does not have")
			}
			n += len(t.IDs)
		}
		return n, nil
	}
	return 0, fmt.Errorf("prompt: tokenizer.json: post-processor %q is not supported", c.Type)
}

// vocabulary makes the tokens, and c's sets of added ones.
func (f *tokenizerFile) vocabulary(c *Counter) (*vocabulary, error) {
	most := -1
	for _, id := range f.Model.Vocab {
		most = max(most, id)
	}
	for _, a := range f.Added {
		most = max(most, a.ID)
	}
	if most < 0 || most >= maxVocab {
		return nil, fmt.Errorf("prompt: tokenizer.json: the largest token id is %d: must be 0 to %d", most, maxVocab-1)
	}
	v := &vocabulary{text: make([]string, most+1), kind: make([]kind, most+1), ids: make(map[string]int32, len(f.Model.Vocab)), bos: -1, eos: -1}
	for i := range v.kind {
		v.kind[i] = kindUnused
	}
	for t, id := range f.Model.Vocab {
		if id < 0 || v.kind[id] != kindUnused {
			return nil, fmt.Errorf("prompt: tokenizer.json: token id %d is negative or given twice", id)
		}
		v.kind[id], v.text[id] = kindNormal, fromAlphabet(t)
		if _, twice := v.ids[v.text[id]]; twice {
			return nil, fmt.Errorf("prompt: tokenizer.json: token %d has the bytes of another", id)
		}
		v.ids[v.text[id]] = int32(id)
	}
	for _, a := range f.Added {
		switch {
		case a.ID < 0 || a.Content == "":
			return nil, fmt.Errorf("prompt: tokenizer.json: an added token is empty, or has a negative id")
		case a.SingleWord || a.LStrip || a.RStrip:
			return nil, fmt.Errorf("prompt: tokenizer.json: added token %d takes blanks around it, or whole words only: not supported", a.ID)
		}
		set := c.literal
		if a.Normalized {
			set = c.normal
		}
		set.add(a.Content, int32(a.ID))
		c.spans = c.spans || firstBoundary(a.Content) >= 0
		if v.kind[a.ID] == kindUnused {
			v.kind[a.ID], v.text[a.ID] = kindControl, a.Content
		}
	}
	for b := range v.bytes {
		id, ok := v.ids[string([]byte{byte(b)})]
		if !ok {
			id, v.lacking = -1, true
		}
		v.bytes[b] = id
	}
	if v.bytes['e'] < 0 {
		return nil, fmt.Errorf("prompt: tokenizer.json: its vocabulary does not hold single bytes: it is not byte-level BPE")
	}
	return v, nil
}

// merges are written as "a b", or as ["a","b"] since tokenizers 0.20.
func (f *tokenizerFile) merges() (out []string, err error) {
	if json.Unmarshal(f.Model.Merges, &out) == nil {
		return out, nil
	}
	var pairs [][2]string
	if err := json.Unmarshal(f.Model.Merges, &pairs); err != nil {
		return nil, fmt.Errorf("prompt: tokenizer.json: merges: %w", err)
	}
	out = make([]string, len(pairs))
	for i, p := range pairs {
		out[i] = p[0] + " " + p[1]
	}
	return out, nil
}

// Count is the number of tokens of a text; special adds those that are put around one. Text that is no valid UTF-8 cannot have come
// from a request: its count means nothing.
func (c *Counter) Count(text string, special bool) (n int) {
	o := output{}
	if special {
		o.n = c.special
	}
	for len(text) > 0 {
		at, id, size := c.literal.find(text)
		part := text[:at]
		if c.nfc {
			part = norm.NFC.String(part)
		}
		c.e.pieces([]piece{{text: part}}, c.normal, &o)
		if size > 0 {
			o.put(id)
		}
		text = text[at+size:]
	}
	return o.n
}

// Most is a proven bound on the tokens that a text adds to whatever it is put into, trimmed or not: what stands around it can change
// how its ends are cut into words, up to the first place where every pre-tokenizer begins a word. There a token is at least a byte.
func (c *Counter) Most(text string) int {
	if c.nfc && !norm.NFC.IsNormalString(text) {
		return 3 * len(text) // no text becomes longer than that (Unicode, UAX 15)
	}
	from, to := firstBoundary(text), lastBoundary(text)
	if from < 0 || to <= from || c.spans {
		return len(text)
	}
	return from + c.Count(text[from:to], false) + len(text) - to
}
