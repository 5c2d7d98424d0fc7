package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// question is one honest request and what is right to answer.
type question struct {
	kind   string
	path   string
	body   map[string]any
	stream bool
	usage  bool // of a stream: asked for at its end
	cancel int  // hang up after so many events; 0: never; -1: after a moment, whatever came
	// known says that want and finish are; else the engine's own answer, asked for without a gateway, is what is right.
	known        bool
	want, finish string
	prompt       int // tokens; 0: not known beforehand
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

var wide = []rune("äöüßéñçøåőжщыюяλΩπ日本語漢字한국어中文字符العربيةहिन्दी🙂🚀🎉⚙€–“”𝔘")

// distinct returns n letters of an alphabet, none twice, so that any few of them are unique.
func distinct(rng *rand.Rand, alphabet []rune, n int) string {
	var b strings.Builder
	seen := map[rune]bool{}
	for _, i := range rng.Perm(len(alphabet)) {
		if r := alphabet[i]; !seen[r] {
			seen[r] = true
			b.WriteRune(r)
		}
		if len(seen) == n {
			break
		}
	}
	return b.String()
}

var words = strings.Fields("the river turned slowly past old mills and the boats lay tied under grey willows while children ran along its banks with dogs")

func filler(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

// planted is a text that holds a code, and the question that the code answers. The model goes on where the question stood before.
func planted(rng *rand.Rand, alphabet []rune) (text, ask, code string) {
	id := 100000 + rng.IntN(900000)
	code = distinct(rng, alphabet, 12)
	ask = fmt.Sprintf("The code of tenant %d is", id)
	return ask + " " + code + ".\n", ask, code
}

// shared are beginnings that many requests have in common: the engines keep their pages.
func shared(i int) string {
	return filler(rand.New(rand.NewPCG(11, uint64(i))), 200+i*211)
}

// ask makes one question. What a request is, apart from its kind, is chosen by chance: streamed or not, with usage or without, hung up on.
func ask(rng *rand.Rand) question {
	kinds := []struct {
		weight int
		make   func(*rand.Rand) question
	}{
		{18, completion}, {14, chat}, {10, tool}, {12, unicode}, {12, stopped}, {10, prefixed}, {6, ids}, {4, parts}, {6, short}, {2, long}, {3, logprobs}, {3, salted},
	}
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	at := rng.IntN(sum)
	i := 0
	for at >= kinds[i].weight {
		at -= kinds[i].weight
		i++
	}
	q := kinds[i].make(rng)
	q.body["model"], q.body["temperature"] = "recall", 0
	if q.stream = rng.IntN(2) == 0; q.stream {
		q.body["stream"] = true
		if q.usage = rng.IntN(2) == 0; q.usage {
			q.body["stream_options"] = map[string]any{"include_usage": true}
		}
		if q.kind != "short" && rng.IntN(5) == 0 {
			q.body["max_tokens"] = 300
			if _, twice := q.body["max_completion_tokens"]; twice {
				q.body["max_completion_tokens"] = 300
			}
			delete(q.body, "stop")
			q.cancel = 1 + rng.IntN(30)
			if rng.IntN(3) == 0 {
				q.cancel = -1
			}
		}
	} else if rng.IntN(20) == 0 {
		q.cancel = -1
	}
	return q
}

func completion(rng *rand.Rand) question {
	text, ask, code := planted(rng, []rune(letters))
	return complete("completion", filler(rng, rng.IntN(300))+"\n"+text+filler(rng, 20+rng.IntN(600))+"\n"+ask, " "+code+".")
}

// complete asks for a text whose continuation is known.
func complete(kind, prompt, want string) question {
	return question{
		kind: kind, path: "/v1/completions", body: map[string]any{"prompt": prompt, "max_tokens": len(want)},
		known: true, want: want, finish: "length", prompt: 1 + len(prompt), // a token a byte, and one in front
	}
}

func message(role string, content any) map[string]any {
	return map[string]any{"role": role, "content": content}
}

func talk(kind, want string, messages ...map[string]any) question {
	return question{
		kind: kind, path: "/v1/chat/completions", body: map[string]any{"messages": messages, "max_tokens": len(want)},
		known: true, want: want, finish: "length",
	}
}

func chat(rng *rand.Rand) question {
	text, ask, code := planted(rng, []rune(letters))
	q := talk("chat", " "+code+".", message("system", shared(rng.IntN(4))), message("user", text+filler(rng, rng.IntN(200))),
		message("assistant", "Noted."), message("user", filler(rng, rng.IntN(200))+"\n"+ask))
	if rng.IntN(2) == 0 {
		q.body["max_completion_tokens"] = q.body["max_tokens"]
	}
	return q
}

// tool is a conversation in which a tool has said what is asked for.
func tool(rng *rand.Rand) question {
	text, ask, code := planted(rng, []rune(letters))
	id := "call_" + distinct(rng, []rune(letters), 12)
	called := message("assistant", "")
	called["tool_calls"] = []any{map[string]any{"id": id, "type": "function", "function": map[string]any{"name": "look_up", "arguments": `{"tenant":"?"}`}}}
	said := message("tool", filler(rng, 30)+"\n"+text)
	said["tool_call_id"] = id
	q := talk("tool", " "+code+".", message("user", "Look it up."), called, said, message("user", ask))
	if rng.IntN(3) == 0 {
		q.body["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "look_up", "parameters": map[string]any{"type": "object"}}}}
		q.body["tool_choice"] = "none"
	}
	return q
}

func unicode(rng *rand.Rand) question {
	text, ask, code := planted(rng, wide)
	want := " " + code + "."
	if rng.IntN(2) == 0 {
		return complete("unicode", "… "+text+"„"+filler(rng, 60)+"“\n"+ask, want)
	}
	return talk("unicode", want, message("user", text), message("assistant", "好的。"), message("user", filler(rng, 40)+"\n"+ask))
}

// stopped ends at a stop string that comes in the middle of the code.
func stopped(rng *rand.Rand) question {
	alphabet := []rune(letters)
	if rng.IntN(3) == 0 {
		alphabet = wide
	}
	text, ask, code := planted(rng, alphabet)
	r := []rune(code)
	at := 1 + rng.IntN(9)
	q := complete("stop", text+filler(rng, 100)+"\n"+ask, " "+string(r[:at]))
	if rng.IntN(2) == 0 {
		q = talk("stop", " "+string(r[:at]), message("user", text), message("user", filler(rng, 60)+"\n"+ask))
	}
	q.finish = "stop"
	q.body["max_tokens"] = 80
	stop := string(r[at : at+1+rng.IntN(2)])
	q.body["stop"] = stop
	if rng.IntN(2) == 0 {
		q.body["stop"] = []string{"never said", stop}
	}
	return q
}

func prefixed(rng *rand.Rand) question {
	text, ask, code := planted(rng, []rune(letters))
	return complete("prefix", shared(rng.IntN(8))+"\n"+text+filler(rng, 20)+"\n"+ask, " "+code+".")
}

// ids is a prompt of token ids: bytes, and the token in front that nobody adds here.
func ids(rng *rand.Rand) question {
	q := completion(rng)
	list := []int{256}
	for _, c := range []byte(q.body["prompt"].(string)) {
		list = append(list, int(c))
	}
	q.kind, q.body["prompt"], q.prompt = "ids", list, len(list)
	return q
}

func parts(rng *rand.Rand) question {
	text, ask, code := planted(rng, []rune(letters))
	part := func(s string) any { return map[string]any{"type": "text", "text": s} }
	return talk("parts", " "+code+".", message("user", []any{part(text + filler(rng, 30)), part(ask)}))
}

// short prompts end before, at and behind the edges of the engines' blocks.
func short(rng *rand.Rand) question {
	n := 1 + rng.IntN(3*block)
	if rng.IntN(2) == 0 {
		n = block*(1+rng.IntN(3)) - 2 + rng.IntN(4)
	}
	text := filler(rng, n)
	if rng.IntN(6) == 0 {
		text = "<|end|>" + text + "<|tool|>"
	}
	q := complete("short", text, "")
	q.known, q.prompt = false, 0
	q.body["max_tokens"] = 1 + rng.IntN(20)
	if rng.IntN(4) == 0 {
		q.body["min_tokens"] = 1
	}
	return q
}

func long(rng *rand.Rand) question {
	text, ask, code := planted(rng, []rune(letters))
	return complete("long", filler(rng, rng.IntN(500))+text+filler(rng, 1500+rng.IntN(5000))+"\n"+ask, " "+code+".")
}

func logprobs(rng *rand.Rand) question {
	if rng.IntN(2) == 0 {
		q := completion(rng)
		q.kind, q.body["logprobs"] = "logprobs", 2
		return q
	}
	q := chat(rng)
	q.kind, q.body["logprobs"], q.body["top_logprobs"] = "logprobs", true, 2
	return q
}

// salted is a client that parts its own cache further.
func salted(rng *rand.Rand) question {
	q := prefixed(rng)
	q.kind, q.body["cache_salt"], q.body["user"] = "salt", distinct(rng, []rune(letters), 20), "someone"
	return q
}

func (q question) encode() []byte {
	b, err := json.Marshal(q.body)
	if err != nil {
		panic(err)
	}
	return b
}
