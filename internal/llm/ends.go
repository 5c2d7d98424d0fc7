package llm

import (
	"slices"

	"github.com/sluicekv/sluice/internal/gguf"
)

// Control tokens that end a turn whatever the model calls its end token: what llama.cpp stops at too.
var endNames = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
	"<|eom_id|>", "<EOT>", "<end_of_utterance>",
}

const typeControl = 3 // of a vocabulary's tokens

// endTokens collects the tokens that end a reply. A model without any would never stop, and is refused.
func endTokens(r *reading, vocab int) (ends []int32) {
	for _, key := range []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"} {
		if r.f.Has(key) {
			ends = append(ends, int32(r.count(key, -1, 0, vocab-1)))
		}
	}
	if r.f.Has("tokenizer.ggml.tokens") {
		ends = append(ends, namedEnds(r, vocab)...)
	}
	if len(ends) == 0 {
		r.refuse("it names no token that ends a reply")
	}
	slices.Sort(ends)
	return slices.Compact(ends)
}

func namedEnds(r *reading, vocab int) (ends []int32) {
	k, elem, n, _ := r.f.Kind("tokenizer.ggml.tokens")
	if k != gguf.KindArray || elem != gguf.KindString || n != vocab {
		r.refuse("its vocabulary lists %d tokens and its embedding has %d", n, vocab)
		return nil
	}
	tokens, err := r.f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		r.refuse("%v", err)
		return nil
	}
	types, err := r.f.Int32s("tokenizer.ggml.token_type")
	if err != nil || len(types) != len(tokens) {
		return nil // without types no token is known to be a control token
	}
	for i, s := range tokens {
		if types[i] == typeControl && slices.Contains(endNames, s) {
			ends = append(ends, int32(i))
		}
	}
	return ends
}
