package jsonedit

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Every reason has its words and its code: nobody is refused without being told for what.
func TestEveryReasonHasItsWords(t *testing.T) {
	for r, want := range map[Refusal]string{
		{Reason: NotJSON, Offset: 3}:                          "invalid_request: the body is not valid JSON at byte 3",
		{Reason: EndsEarly, Offset: 3}:                        "invalid_request: the body is not JSON: it ends early, at byte 3",
		{Reason: NotUTF8, Offset: 3}:                          "invalid_request: the body is not valid UTF-8 at byte 3",
		{Reason: NotObject}:                                   "invalid_request: the body must be a JSON object",
		{Reason: Trailing, Offset: 3}:                         "invalid_request: there is data after the JSON object, at byte 3",
		{Reason: Duplicate, Offset: 3}:                        "invalid_request: a key appears twice in one object, the second time at byte 3",
		{Reason: TooDeep, What: "9 levels"}:                   "invalid_request: the body is nested deeper than 9 levels",
		{Reason: TooMany, What: "9"}:                          "invalid_request: an object of the body has too many members: over 9",
		{Reason: TooLarge, What: "9 bytes"}:                   "body_too_large: the body is larger than 9 bytes",
		{Reason: Control, Path: "rid"}:                        "unsupported_parameter: rid: the gateway sets this field itself",
		{Reason: Control, Path: "their own words"}:            "unsupported_parameter: the gateway sets this field itself",
		{Reason: Unsupported, Path: "n", What: "one"}:         "unsupported_parameter: n: one",
		{Reason: Unknown, Path: "x.their_word", What: "what"}: "unsupported_parameter: what",
		{Reason: Invalid, Path: "model", What: "a string"}:    "invalid_request: model: a string",
	} {
		v := r.Verdict()
		if got := v.Code.String() + ": " + v.Reason; got != want || v.Layer != verdict.Parser || r.Error() != v.Reason {
			t.Errorf("%+v: %q, not %q", r, got, want)
		}
	}
}

// All four kinds of white space, wherever there may be some.
func TestWhiteSpaceIsNothing(t *testing.T) {
	const space = " \t\r\n"
	body := strings.NewReplacer("~", space).Replace(`~{~"model"~:~"m"~,~"prompt"~:~[~1~,~23~,~4~]~,~"stop"~:~[~"a"~,~"b"~]~,~"max_tokens"~:~5~}~`)
	d, r := read(t, Config{Engine: SGLang, Endpoint: Completions}, body)
	if r != nil {
		t.Fatal(r)
	}
	if n := d.Prompt().IDs; d.Prompt().Shape == NoPrompt || n != 3 {
		t.Errorf("%+v", d.Prompt())
	}
	for _, c := range []string{"\v", "\f", "\u00a0", "\x00", "\ufeff"} {
		if _, r := Read([]byte(`{`+c+`"a":1}`), nil); r == nil {
			t.Errorf("%q is white space", c)
		}
	}
	var names []string
	d.Each(func(name string, _ Value, _ bool) bool {
		names = append(names, name)
		return len(names) < 2
	})
	if strings.Join(names, " ") != "model prompt" {
		t.Errorf("asked to stop after two: %v", names)
	}
}

// The bounds of a policy are those of Read with it.
func TestAPolicyBoundsWhatIsRead(t *testing.T) {
	body := `{"model":"m","prompt":"p","metadata":{"a":"b"}}`
	for b, want := range map[Bounds]Reason{{}: 0, {Depth: 2}: 0, {Depth: 1}: TooDeep, {Names: 3}: TooMany, {Bytes: 20}: TooLarge} {
		_, r := read(t, Config{Engine: SGLang, Endpoint: Completions, Bounds: b}, body)
		if r == nil && want != 0 || r != nil && r.Reason != want {
			t.Errorf("%+v: %v", b, r)
		}
	}
	for n, ok := range map[int]bool{1: true, maxModelName: true, maxModelName + 1: false, 0: false} {
		if _, r := read(t, Config{Engine: SGLang, Endpoint: Completions}, `{"prompt":"p","model":"`+strings.Repeat("m", n)+`"}`); (r == nil) != ok {
			t.Errorf("a model name of %d bytes: %v", n, r)
		}
	}
}
