// Package recall builds the model that is built in: a small Llama that copies. Greedy decoding continues the longest
// match, up to 8 tokens, of the text's own end. Nothing is trained and nothing is random; Build computes every weight.
//
// # What it is for
//
// What this model answers is what it attended to. With ordinary weights a stale page turns into noise, and noise is filed as a
// quality problem; with these it turns into the other request's text, byte for byte, and a test can assert on it. It is
// no chat model: it is the positive control.
//
// Build returns a GGUF image, so the model takes the same road as any file: reader, loader, tokenizer, fingerprint.
//
// # Circuit
//
// Tokens are bytes and 16 specials; t[p] is the token at position p. Each block has two query heads on one KV head.
//
//	block 0  a hop: the heads attend to p-1 and p-2 and carry their key codes into slots 1 and 2 of the residual
//	block 1  a hop: the heads attend to p-3 and p-6 and carry slots 0..2 from there into slots 3..5 and 6..8,
//	         so that slot j of position p now holds the key code of t[p-j], for j = 0..8
//	block 2  induction: the query is slots 0..7 (the last 8 tokens), the key slots 1..8 (the 8 tokens before a position),
//	         the value the token at that position. The feed-forward part puts the value that came back in the
//	         place of the position's own, and the output matrix reads it out.
//
// Two hops of two heads reach (2+1)^2 = 9 tokens with 4 head-layers; heads of one block alone would need 8.
//
// # Rotation as a clock, and as nothing
//
// With base 1e32, pair i of a head turns by 10^-i radians a token. Pairs 0 to 6 are a decimal clock, which tells apart
// distances up to a million; pairs 7 to 31 stand still and carry content. A hop head has one constant key, and a constant query that
// is turned back by the wanted distance d: its score, a sum of cosines of (distance - d), has one high peak.
//
// # Normalization
//
// All embeddings have one norm, all slots add one norm, and a constant channel outweighs the rest, so the divisor of
// every RMSNorm is known in advance and its weight multiplies it back: the normalized vector is the residual.
//
// # Matching
//
// Each slot counts half as much as the one before it, so a match that is longer by a token nearly always beats all shorter
// ones, and a match of all 8 always has the strictly highest score. Head 0 scores the match alone, and several best
// matches vote. Head 1 adds recency and has 0.6 of the weight: it breaks ties for the latest match and overrules no clear
// verdict. Scores reach a million, so they must be summed in float32; all products are small multiples of powers of two.
//
// # Nothing to copy
//
// BOS is a sink: its key scores just below a match of MinMatch tokens, and its value is EOS. A text without such a match
// ends. In the hops BOS answers for positions that do not exist, with an empty slot; without that a head whose target is
// missing would take its own position, which then matches itself. A prompt therefore has to begin with BOS.
package recall
