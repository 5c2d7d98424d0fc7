package web

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// answer is a whole reply with some of its parts replaced: pairs of what stands there and what shall.
func answer(t *testing.T, swap ...string) *jsonedit.Doc {
	t.Helper()
	body := `{"id":"a","model":"m","choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	for i := 0; i < len(swap); i += 2 {
		if !strings.Contains(body, swap[i]) {
			t.Fatalf("no %s in it", swap[i])
		}
		body = strings.Replace(body, swap[i], swap[i+1], 1)
	}
	doc, bad := jsonedit.Read([]byte(body), nil)
	if bad != nil {
		t.Fatal(bad)
	}
	return doc
}

func TestAnswersThatTakeTheirSuccessBack(t *testing.T) {
	for _, c := range []struct{ from, to, why string }{
		{`"finish_reason"`, `"error":{"message":"no","code":400},"finish_reason"`, "has an error in a choice"},
		{`"finish_reason"`, `"error":"no","finish_reason"`, "has an error in a choice"},
		{`"finish_reason"`, `"meta_info":{"finish_reason":{"type":"abort","status_code":400}},"finish_reason"`, "takes back in its meta_info that it succeeded"},
		{`"id"`, `"meta_info":{"finish_reason":{"type":"abort"}},"id"`, "takes back in its meta_info that it succeeded"},
		{`"id"`, `"meta_info":{"finish_reason":"abort"},"id"`, "takes back in its meta_info that it succeeded"},
		{`"id"`, `"meta_info":{"finish_reason":{"type":3}},"id"`, "takes back in its meta_info that it succeeded"},
		{`"id"`, `"meta_info":{"prompt_tokens":1,"finish_reason":{"type":"length"}},"id"`, "has two counts of its prompt"},
		{`"prompt_tokens":7`, `"prompt_tokens":-7`, "counts tokens with what is no count"},
		{`"prompt_tokens":7`, `"prompt_tokens":"7"`, "counts tokens with what is no count"},
		{`"prompt_tokens":7`, `"prompt_tokens":7.5`, "counts tokens with what is no count"},
		{`"prompt_tokens":7`, `"prompt_tokens":[7]`, "counts tokens with what is no count"},
		{`"prompt_tokens":7`, `"prompt_tokens":1000000000000000000000000000000`, "counts tokens with what is no count"},
		{`"completion_tokens":1`, `"completion_tokens":-1`, "counts tokens with what is no count"},
		{`{"prompt_tokens":7,"completion_tokens":1}`, `"7"`, "has a usage that is no object"},
	} {
		for _, chunk := range []bool{false, true} {
			if why := (&summary{}).add(answer(t, c.from, c.to), chunk); why != c.why {
				t.Errorf("%s: %q, want %q", c.to, why, c.why)
			}
		}
	}
	for _, c := range [][2]string{
		{`"finish_reason"`, `"error":null,"finish_reason"`},
		{`"id"`, `"meta_info":{"prompt_tokens":7,"finish_reason":{"type":"length","length":1}},"id"`},
		{`"id"`, `"meta_info":{"finish_reason":null},"id"`},
		{`"id"`, `"meta_info":null,"id"`},
		{`"prompt_tokens":7`, `"prompt_tokens":null`},
		{`{"prompt_tokens":7,"completion_tokens":1}`, `null`},
	} {
		if why := (&summary{}).add(answer(t, c[0], c[1]), false); why != "" {
			t.Errorf("%s: %q", c[1], why)
		}
	}
}

func TestOnlyDecodeEndsByAFilter(t *testing.T) {
	for reason, want := range map[string][2]legs.Finish{
		"length": {legs.Length, legs.Length}, "stop": {legs.Stop, legs.Stop}, "tool_calls": {legs.Stop, legs.Stop},
		"content_filter": {legs.Other, legs.Stop}, "repetition": {legs.Other, legs.Stop}, "abort": {legs.Other, legs.Other},
	} {
		for i, first := range []bool{true, false} {
			s := summary{first: first}
			if why := s.add(answer(t, "length", reason), false); why != "" || s.finish() != want[i] {
				t.Errorf("%s, prefill %v: %q, %s", reason, first, why, s.finish())
			}
		}
	}
}

func TestAChunkThatEndsNoReplyIsTold(t *testing.T) {
	for _, reason := range []string{"abort", "error"} {
		bad := strings.Replace(text, `"stop"`, `"`+reason+`"`, 1)
		es, _ := hear(events(role, bad, last, "[DONE]"), Plan{})
		told, n := false, 0
		for _, e := range es {
			switch e := e.(type) {
			case legs.LegFinish:
				told = told || e.Reason == legs.Other
			case legs.LegBytes:
				if n++; n == 2 && !told {
					t.Errorf("%s: the chunk comes before what it says", reason)
				}
			}
		}
		if !told {
			t.Errorf("%s: %v", reason, es)
		}
	}
}

func TestAChunkOfAnotherModel(t *testing.T) {
	named := func(chunk, model string) string {
		return strings.Replace(chunk, `{"id"`, `{"model":"`+model+`","id"`, 1)
	}
	for _, c := range []struct {
		chunks []string
		broken bool
	}{
		{[]string{named(role, "m"), named(text, "other"), last}, true},
		{[]string{named(role, "m"), text, named(last, "other")}, true},
		{[]string{role, named(text, "m"), last}, false},
		{[]string{named(role, "m"), named(text, "m"), last}, false},
		{[]string{role, text, last}, false},
	} {
		broken := false
		es, _ := hear(events(append(c.chunks, "[DONE]")...), Plan{})
		for _, e := range es {
			if b, is := e.(legs.LegBroke); is && strings.Contains(b.Verdict.Reason, "another model than the reply's before") {
				broken = true
			}
		}
		if broken != c.broken {
			t.Errorf("%v: broken %v", c.chunks, broken)
		}
	}
}
