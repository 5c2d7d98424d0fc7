package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// word has no letter twice, so that any few of them are unique.
func word(rng *rand.Rand, n int) string {
	p := rng.Perm(len(letters))
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[p[i]]
	}
	return string(b)
}

var words = strings.Fields("the river turned slowly past old mills and the boats lay tied under grey willows while children ran along its banks with dogs")

// needle is a prompt of n bytes with a code planted at a random depth, which asks for it at the end. The built-in model has a token a byte,
// and one in front.
func needle(rng *rand.Rand, n int) (prompt, code string) {
	id := 1000 + rng.IntN(9000)
	code = word(rng, 16)
	ask := fmt.Sprintf("\nThe code of tenant %d is", id)
	planted := fmt.Sprintf("\nThe code of tenant %d is %s.\n", id, code)
	at := rng.IntN(max(n-len(ask)-2*len(planted), 1))
	var b strings.Builder
	for done := false; !done || b.Len() < n-len(ask); {
		if !done && b.Len() >= at {
			b.WriteString(planted)
			done = true
		}
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:n-len(ask)] + ask, code
}
