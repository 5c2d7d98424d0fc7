package jsonedit

import (
	"strings"
	"testing"
)

const formed = `{"id":"a","choices":[{"index":0,"delta":{"content":" x"},"finish_reason":null}],"usage":{"completion_tokens":1}}`

func placesOf(t testing.TB, body, text, count string) (Form, []Place) {
	d, no := Read([]byte(body), nil)
	if no != nil {
		t.Fatal(no)
	}
	a, b := strings.Index(body, text), strings.LastIndex(body, count)
	return d.Form(Place{From: a, To: a + len(text), Text: true}, Place{From: b, To: b + len(count)}), make([]Place, 2)
}

func TestForm(t *testing.T) {
	f, at := placesOf(t, formed, `" x"`, "1")
	like := func(text, count string) string {
		return strings.Replace(strings.Replace(formed, `" x"`, text, 1), ":1}", ":"+count+"}", 1)
	}
	for body, want := range map[string]bool{
		formed:                               true,
		like(`""`, "0"):                      true,
		like(`"\"\u00e9é\n"`, "12345"):       true,
		like(`" x"`, "01"):                   false,
		like(`" x"`, "-1"):                   false,
		like(`" x"`, "1.0"):                  false,
		like(`" x"`, "1e3"):                  false,
		like(`" x"`, ""):                     false,
		like(`" x"`, "1234567890123456789"):  false,
		like("\"\xff\"", "1"):                false,
		like("\"a\nb\"", "1"):                false,
		like(`"\ud800"`, "1"):                false,
		like(`"\x"`, "1"):                    false,
		like(`null`, "1"):                    false,
		like(`"a","content":"b"`, "1"):       false,
		like(`" x`, "1"):                     false,
		formed + " ":                         false,
		formed[:len(formed)-1]:               false,
		"":                                   false,
		strings.Replace(formed, "a", "b", 1): false,
	} {
		if f.Match([]byte(body), at) != want {
			t.Errorf("%q: %v", body, !want)
		}
	}
	body := like(`"two words"`, "42")
	if !f.Match([]byte(body), at) || body[at[0].From:at[0].To] != `"two words"` || body[at[1].From:at[1].To] != "42" {
		t.Errorf("places %v", at)
	}
}

// What has the form is what Read accepts, with the same members.
func FuzzForm(f *testing.F) {
	f.Add(`" y"`, "12", "")
	f.Add(`"é\u0041"`, "0", "}")
	f.Fuzz(func(t *testing.T, text, count, more string) {
		form, at := placesOf(t, formed, `" x"`, "1")
		body := strings.Replace(strings.Replace(formed, `" x"`, text, 1), ":1}", ":"+count+"}", 1) + more
		if !form.Match([]byte(body), at) {
			return
		}
		d, no := Read([]byte(body), nil)
		if no != nil {
			t.Fatalf("%q has the form, and is refused: %v", body, no.Reason)
		}
		if n, ok := d.Get("usage").Get("completion_tokens").Int(); !ok || body[at[1].From:at[1].To] != count || n < 0 {
			t.Fatalf("%q: %v", body, at)
		}
		c := Value{}
		d.Get("choices").Each(func(_ []byte, v Value) bool { c = v; return true })
		if got := string(c.Get("delta").Get("content").Raw()); got != body[at[0].From:at[0].To] {
			t.Fatalf("%q: content %q, place %q", body, got, body[at[0].From:at[0].To])
		}
	})
}
