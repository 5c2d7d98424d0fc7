package prompt

import (
	"unicode"
	"unicode/utf8"
)

// Pre-tokenizers cut text into the words that merges stay inside. Each is a list of stages; a stage returns the
// length of the first piece of what the stage before it cut off, and never looks beyond it. The patterns are those of the models'
// tokenizer.json files, as llama.cpp (src/llama-vocab.cpp) names them; they are written out by hand because Go's
// regexp has no lookahead and is too slow.
type stage func(s string) int

// pretokenizer is one entry of tokenizer.ggml.pre.
type pretokenizer struct {
	stages []stage
	whole  bool // a word that is in the vocabulary is not merged
}

var (
	preGPT2    = pretokenizer{stages: []stage{gpt2Word}}
	preDigits  = pretokenizer{stages: []stage{digitsApart, gpt2Word}}
	preDefault = pretokenizer{stages: []stage{punctuationRun, gpt2Word, digitRun, digitTriple}}
	preLlama3  = pretokenizer{stages: []stage{llama3Word}, whole: true}
	preDBRX    = pretokenizer{stages: []stage{llama3Word}}
	preQwen2   = pretokenizer{stages: []stage{qwen2Word}}
	preQwen35  = pretokenizer{stages: []stage{qwen35Word}}
)

var pretokenizers = map[string]pretokenizer{
	"default": preDefault,
	"gpt-2":   preGPT2, "phi-2": preGPT2, "mpt": preGPT2, "olmo": preGPT2, "jais": preGPT2, "trillion": preGPT2,
	"granite-docling": preGPT2, "gigachat": preGPT2, "exaone4": preGPT2,
	"smollm": preDigits, "starcoder": preDigits, "refact": preDigits, "command-r": preDigits, "codeshell": preDigits,
	"exaone": preDigits, "minerva-7b": preDigits,
	"llama3": preLlama3, "llama-v3": preLlama3, "llama-bpe": preLlama3, "falcon3": preLlama3, "pixtral": preLlama3, "lfm2": preLlama3,
	"dbrx": preDBRX, "smaug-bpe": preDBRX,
	"qwen2": preQwen2, "deepseek-r1-qwen": preQwen2, "stablelm2": preQwen2, "megrez": preQwen2, "hunyuan": preQwen2,
	"grok-2": preQwen2, "solar-open": preQwen2,
	"qwen35": preQwen35,
}

// class of a character: what the patterns call \p{L}, \p{N}, \s, \p{M}, and the rest.
type class uint8

const (
	other class = iota
	letter
	number
	space
	mark
	none // the end of the text
)

var ascii = func() (t [utf8.RuneSelf]class) {
	for i := range t {
		t[i] = classOf(rune(i))
	}
	return t
}()

func classOf(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	case unicode.IsMark(r):
		return mark
	}
	return other
}

// at returns the class of the character at s[i:] and its size in bytes; (none, 0) at the end.
func at(s string, i int) (class, int) {
	if i >= len(s) {
		return none, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return ascii[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r), n
}

// run returns where the run of class c that includes s[i] ends.
func run(s string, i int, c class) int {
	for {
		k, n := at(s, i)
		if k != c {
			return i
		}
		i += n
	}
}

func newline(c byte) bool { return c == '\r' || c == '\n' }

// contraction returns the length of 's 't 'm 'd 're 've 'll at the start of s; fold takes either case.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(c byte) byte {
		if fold && 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}
	a := lower(s[1])
	switch a {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) > 2 {
		if b := lower(s[2]); a == 'r' && b == 'e' || a == 'v' && b == 'e' || a == 'l' && b == 'l' {
			return 3
		}
	}
	return 0
}

// blanks is the end of every pattern: \s+(?!\S)|\s+, and with newlines \s*[\r\n]+ before it. s starts with a space.
func blanks(s string, newlines bool) int {
	end, last, afterNewline := 0, 0, 0
	for {
		k, n := at(s, end)
		if k != space {
			break
		}
		if newline(s[end]) {
			afterNewline = end + n
		}
		last, end = end, end+n
	}
	switch {
	case newlines && afterNewline > 0:
		return afterNewline
	case end == len(s) || last == 0:
		return end
	}
	return last // the last one goes with the word after it
}

// gpt2Word: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func gpt2Word(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	switch k, n := at(s, i); k {
	case letter, number:
		return run(s, i+n, k)
	case other, mark:
		return symbols(s, i+n, true)
	}
	return blanks(s, false)
}

// symbols returns where the run of neither spaces, letters nor numbers ends. Marks belong to it unless they count as letters.
func symbols(s string, i int, marks bool) int {
	for {
		k, n := at(s, i)
		if k != other && (k != mark || !marks) {
			return i
		}
		i += n
	}
}

// llama3Word: (?i:'s|…)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func llama3Word(s string) int { return modernWord(s, 3, false) }

// qwen2Word is llama3Word with single digits.
func qwen2Word(s string) int { return modernWord(s, 1, false) }

// qwen35Word is qwen2Word with marks among the letters.
func qwen35Word(s string) int { return modernWord(s, 1, true) }

func modernWord(s string, digits int, marks bool) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	first, size := at(s, 0)
	letters := func(k class) bool { return k == letter || marks && k == mark }
	start := -1
	if letters(first) {
		start = size
	} else if first != number && !newline(s[0]) {
		if k, n := at(s, size); letters(k) {
			start = size + n
		}
	}
	if start > 0 {
		for {
			k, n := at(s, start)
			if !letters(k) {
				return start
			}
			start += n
		}
	}
	if first == number {
		i := size
		for ; digits > 1; digits-- {
			k, n := at(s, i)
			if k != number {
				break
			}
			i += n
		}
		return i
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	if k, n := at(s, i); k == other || k == mark {
		i = symbols(s, i+n, !marks)
		for i < len(s) && newline(s[i]) {
			i++
		}
		return i
	}
	return blanks(s, true)
}

// digitsApart: \p{N}, each alone.
func digitsApart(s string) int {
	if k, n := at(s, 0); k == number {
		return n
	}
	return until(s, func(k class, _ string) bool { return k == number })
}

// digitRun: \p{N}+
func digitRun(s string) int {
	if k, _ := at(s, 0); k == number {
		return run(s, 0, number)
	}
	return until(s, func(k class, _ string) bool { return k == number })
}

// digitTriple: [0-9][0-9][0-9]
func digitTriple(s string) int {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	for i := 0; i+2 < len(s); i++ {
		if digit(s[i]) && digit(s[i+1]) && digit(s[i+2]) {
			if i == 0 {
				return 3
			}
			return i
		}
	}
	return len(s)
}

// punctuationRun: [\p{P}\$\+<=>\^~\|]+
func punctuationRun(s string) int {
	in := func(_ class, s string) bool {
		r, _ := utf8.DecodeRuneInString(s)
		switch r {
		case '$', '+', '<', '=', '>', '^', '~', '|':
			return true
		}
		return unicode.IsPunct(r)
	}
	if in(other, s) {
		return until(s, func(k class, s string) bool { return !in(k, s) })
	}
	return until(s, in)
}

// until returns where the first character that stop accepts begins.
func until(s string, stop func(class, string) bool) int {
	for i := 0; i < len(s); {
		k, n := at(s, i)
		if stop(k, s[i:]) {
			return i
		}
		i += n
	}
	return len(s)
}

// boundary reports whether every pre-tokenizer starts a new word at s[i], whatever stands further left or right: at a lone space
// between two ASCII letters, and between a lone newline and what is no space. Text may be cut there and its halves
// encoded apart. (After two newlines it may not: the end of a text and a word after it cut blanks differently.)
func boundary(s string, i int) bool {
	if i < 1 || i >= len(s) {
		return false
	}
	if s[i-1] == '\n' {
		before, n := utf8.DecodeLastRuneInString(s[:i-1])
		k, _ := at(s, i)
		return n > 0 && !unicode.IsSpace(before) && k != space
	}
	return s[i] == ' ' && i+1 < len(s) && isASCIILetter(s[i-1]) && isASCIILetter(s[i+1])
}

func isASCIILetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// firstBoundary and lastBoundary return a place where s may be cut, or -1.
func firstBoundary(s string) int {
	for i := 1; i < len(s); i++ {
		if (s[i] == ' ' || s[i-1] == '\n') && boundary(s, i) {
			return i
		}
	}
	return -1
}

func lastBoundary(s string) int {
	for i := len(s) - 1; i > 0; i-- {
		if (s[i] == ' ' || s[i-1] == '\n') && boundary(s, i) {
			return i
		}
	}
	return -1
}
