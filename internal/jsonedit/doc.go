// Package jsonedit reads the JSON body of a request once, strictly, and edits it as bytes.
//
// A gateway that parses a body one way while the engine behind it parses it another way can be talked past: the last of two
// equal keys wins in Python, a key can be spelled with escapes, a control field can ride inside another one. So nothing is
// lenient here: a name that appears twice in one object (in any spelling), invalid UTF-8, a lone surrogate, an unknown escape,
// data after the object, or too much nesting is a refusal, for every object of the body and not only for those that somebody
// looks at. What is accepted means the same to every parser.
//
// # One pass, no copies
//
// Read goes over the body once. It keeps the top-level members as offsets, judges each against a Policy (the allow-list of an
// engine), looks for control names inside fields that engines unpack, and notes where the prompt's text lies. An Edit
// (delete, replace, insert at top level) yields a Body: pieces of the original bytes with a few small pieces between, of known
// length. Two legs take two Edits of one Doc; the body of megabytes is held once, by the caller, who must not change it while
// a Doc, a Value or a Body of it is in use.
//
// The package knows no socket, no engine's answers and no limit on tokens. It copies no text into errors.
package jsonedit
