// Package sglang is a fake SGLang worker, prefill, decode or neither, that speaks the wire of releases 0.5.19 to 0.5.23.
//
// The legs of a pair get the same body at once and find each other by the room in it. Decode reserves pages for the prompt that it
// sees, prefill writes those of the prompt that it computed, and decode goes on from whatever then lies there: nothing compares
// the two, as in the releases. Up to 0.5.19 a prompt over prefill's pool becomes a prompt of one token, whose one page is sent and
// called a success; from 0.5.20 on it is refused, which decode never hears.
//
// Bodies, statuses and pages of facts have the keys and types, in the order, of answers that the released packages gave
// (testdata of this package); texts of errors are theirs. Times in them are the fake's own.
package sglang
