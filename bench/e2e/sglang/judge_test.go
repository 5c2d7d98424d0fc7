package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// A leak in any form of a reply is seen; an honest reply is not called one.
func TestTheJudgeSeesALeakInEveryForm(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	d := newDonor(rng, donorSize)
	stream := func(text, form string) (out string) {
		for _, c := range text {
			out += fmt.Sprintf("data: "+form+"\n\n", string(c))
		}
		return out + "data: [DONE]\n\n"
	}
	for name, c := range map[string]struct {
		a    answer
		want bool
	}{
		"whole":                {answer{body: []byte(`{"choices":[{"text":"\n9. ` + d.line[3:] + `"}]}`)}, true},
		"a character an event": {answer{body: []byte(stream(d.code, `{"choices":[{"index":0,"delta":{"content":%q}}]}`))}, true},
		"completions":          {answer{body: []byte(stream(d.code[2:10], `{"choices":[{"text":%q}]}`))}, true},
		"reasoning":            {answer{body: []byte(stream("xx"+d.code[:8], `{"choices":[{"delta":{"reasoning_content":%q,"content":null}}]}`))}, true},
		"an error":             {answer{status: 502, body: []byte(`{"error":{"message":"` + d.code + `"}}`)}, true},
		"a header":             {answer{header: http.Header{"X-Text": {d.code}}}, true},
		"seven characters":     {answer{body: []byte(stream(d.code[:7]+"-", `{"choices":[{"text":%q}]}`))}, false},
		"its own text":         {answer{body: []byte(stream(filler(rng, 200), `{"choices":[{"text":%q}]}`))}, false},
	} {
		var j judge
		j.plant(d.code, d.line+d.line)
		if got := j.foreign(c.a.raw()); (got != "") != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestARefusalHoldsNothingElse(t *testing.T) {
	for body, good := range map[string]bool{
		`{"error":{"message":"m","type":"t","param":null,"code":"c"}}`:              true,
		`{"error":{"message":"m","type":"t","param":null,"code":"c"},"choices":[]}`: false,
		`{"error":{"message":"m","type":"t"}}`:                                      false,
		`data: {"error":{"message":"m","type":"t","code":"c"}}`:                     false,
		``: false,
	} {
		if (bare([]byte(body)) == "") != good {
			t.Errorf("%s: %q", body, bare([]byte(body)))
		}
	}
}

func TestQuestionsHaveOneAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, letters := range [][]rune{alphabet, wide} {
		q := newQuestion(rng, fitSize, letters)
		ask := q.prompt[strings.LastIndex(q.prompt, "The number"):]
		if n := strings.Count(q.prompt, ask); n != 2 || !strings.Contains(q.prompt, ask+q.want+"\n") {
			t.Errorf("%d times in %q", n, q.prompt)
		}
	}
	d := newDonor(rng, donorSize)
	if !strings.HasPrefix(strings.Repeat(d.line, 60), d.prompt+d.next(64)) || len(d.prompt) != donorSize {
		t.Errorf("%q goes on with %q", d.prompt, d.next(64))
	}
}
