// Package gguf reads and writes GGUF, the one-file format of model weights, metadata and tokenizer.
//
// A file comes from outside: everything that it says is checked against its own length before it is believed. No count
// allocates more than the bytes that are left could hold, no product overflows, no tensor lies outside the file or over
// another, and no key or tensor is named twice (which of the two counts would depend on the reader). Strings are kept
// byte for byte: a tokenizer whose tokens lose their spaces is another tokenizer.
//
// The package knows no model: what the keys mean is for its callers. Versions 2 and 3, little endian, are read; version
// 3 is written. The format is drawn in ggml's docs/gguf.md.
package gguf
