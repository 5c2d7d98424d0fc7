// Package prompt turns text into token ids, once, in the gateway, and token ids back into text.
//
// It reads the tokenizer (byte-level BPE, model "gpt2") and the chat template of a GGUF file. Nothing in it is shared
// between requests but what the file says: there is no cache of words that other requests used, so no request can be
// timed through another's, and no text stays behind. An Encoder is safe for concurrent use.
//
// # Control tokens come from the template, never from content
//
// A user who types "<|im_start|>" gets the pieces of that text, not the token. A chat template is a program that may
// trim content, cut it up, or decide by it, so content cannot simply be encoded apart and pasted in. Instead
// the conversation is rendered twice: as it is (the reference), and with marks (a character that occurs in none of the contents)
// at the ends of each content and inside each control token that a content spells out. If the second rendering without its marks
// equals the first, the marks did not disturb the template, and they say which characters came from content: there,
// and across a mark, no added token is recognised. If they differ (the template asked how a content begins, say), the plain
// rendering is used provided that no content spells a control token, nor begins or ends with a part of one; else the
// prompt is refused.
//
// Limits of this. When a template cuts a piece out of a content, both marks may be lost, and a token of the kind "user
// defined" (<think>, for one) in that piece is recognised; a control token is not, since its inside is marked. A
// template that itself puts content inside a control token it spells is not defended against.
//
// # Memory
//
// Long contents do not pass through templates that only trim and emit: the template sees a stand-in (head, mark, tail) and the
// middle is encoded from where it is. Encoding stops at the limit, and ids are kept only once it is known that
// they fit.
//
// # Templates are untrusted
//
// A render has a deadline, a bound on its output and on range(); its panics become errors; a template that multiplies (a string
// times a number is memory without end), recurses or nests beyond reason is refused when the model is loaded. What
// remains: the template engine cannot be interrupted, so a template made for it can still waste memory by doubling a string.
// Loading a model file is trusting its author that far.
package prompt
