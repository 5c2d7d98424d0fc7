package drill

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// letters of which a code has none twice, so that any few of its bytes are unique.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func secret(rng *rand.Rand) string {
	p := rng.Perm(len(letters))
	b := make([]byte, 16)
	for i := range b {
		b[i] = letters[p[i]]
	}
	return string(b)
}

// planted is tenant A's prompt of about tokens tokens: one line with a code, over and over, so that whatever part of it is read
// gives the code away, and a question for it.
func planted(code string, tokens int) string {
	const ask = "The vault of tenant A opens with"
	line := fmt.Sprintf("%s %s.\n", ask, code)
	return strings.Repeat(line, (tokens-len(ask))/len(line)) + ask
}

// plain is a prompt that never mentions the code, of exactly tokens tokens (a byte each, and BOS), which asks for its own.
func plain(rng *rand.Rand, own string, tokens int) string {
	ask := "\nThe locker of tenant B has number"
	fact := fmt.Sprintf("%s %s.\n", ask, own)
	words := strings.Fields("the river turned slowly past old mills and the boats lay tied under grey willows while children ran along its banks with dogs")
	var b strings.Builder
	at := rng.IntN(tokens / 2)
	for done := false; b.Len() < tokens; {
		if !done && b.Len() >= at {
			b.WriteString(fact)
			done = true
		}
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:tokens-1-len(ask)] + ask
}
