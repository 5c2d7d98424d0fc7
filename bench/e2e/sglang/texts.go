package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// alphabet of codes: without letters that look alike.
var alphabet = []rune("ABCDEFGHJKMNPQRSTUVWXYZ23456789")

// wide has two, three and four bytes a letter.
var wide = []rune("äößéñçøåжщыюλΩπ日本語漢字한국中文العبद€–🙂🚀🎉⚙𝔘")

// drawn returns n letters, none twice.
func drawn(rng *rand.Rand, from []rune, n int) string {
	out := make([]rune, 0, n)
	for _, i := range rng.Perm(len(from))[:n] {
		out = append(out, from[i])
	}
	return string(out)
}

var words = strings.Fields("the sun went down over a quiet harbour and small boats came in with nets full of silver fish while children ran along " +
	"the wall and nobody saw old men mend sails until winter turned every road to mud")

func filler(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

// donor is a prompt of tenant A: a line with a code, over and over.
type donor struct{ code, line, prompt string }

func newDonor(rng *rand.Rand, size int) donor {
	c := drawn(rng, alphabet, 12)
	line := "The vault code of Ada is " + c + ". "
	return donor{c, line, strings.Repeat(line, size/len(line)+1)[:size]}
}

// next is how the donor's prompt goes on, which is what the model answers.
func (d donor) next(n int) string {
	at := len(d.prompt) % len(d.line)
	return strings.Repeat(d.line, n/len(d.line)+2)[at : at+n]
}

// question is a prompt that holds a sentence of its own and ends in its beginning: the model goes on as the sentence did.
type question struct{ prompt, want string }

func newQuestion(rng *rand.Rand, size int, letters []rune) question {
	ask := fmt.Sprintf("The number of guest %d is", 100000+rng.IntN(900000))
	want := " " + drawn(rng, letters, 10) + "."
	rest := max(size-2*len(ask)-len(want)-2, 2)
	return question{filler(rng, rest/2) + "\n" + ask + want + "\n" + filler(rng, rest-rest/2) + ask, want}
}
