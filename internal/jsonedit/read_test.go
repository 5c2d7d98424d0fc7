package jsonedit

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestRefusesWhatParsersReadDifferently(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
	for name, c := range map[string]struct {
		body   string
		reason Reason
		path   string
		offset int
	}{
		"empty":                    {"", EndsEarly, "", 0},
		"space":                    {" \n", EndsEarly, "", 2},
		"array":                    {"[]", NotObject, "", 0},
		"text":                     {`"a"`, NotObject, "", 0},
		"bad text":                 {`"a`, EndsEarly, "", 2},
		"nothing":                  {`nul`, EndsEarly, "", 3},
		"byte order mark":          {"\xef\xbb\xbf{}", NotJSON, "", 0},
		"utf-16":                   {"{\x00}\x00", NotJSON, "", 1},
		"trailing object":          {`{"a":1}{"a":2}`, Trailing, "", 7},
		"trailing text":            {`{} x`, Trailing, "", 3},
		"trailing nul":             {"{}\x00", Trailing, "", 2},
		"duplicate":                {`{"a":1,"b":2,"a":3}`, Duplicate, "a", 13},
		"duplicate, escaped":       {`{"rid":1,"r\u0069d":2}`, Duplicate, "rid", 9},
		"duplicate, both escaped":  {`{"\u0061":1,"\u0061":2}`, Duplicate, "a", 12},
		"duplicate, deep":          {`{"m":[{"x":{"k":1,"k":2}}]}`, Duplicate, "m[0].x.k", 18},
		"duplicate, null":          {`{"a":null,"a":1}`, Duplicate, "a", 10},
		"duplicate, empty name":    {`{"":1,"":2}`, Duplicate, "", 6},
		"unclosed":                 {`{"a":1`, EndsEarly, "", 6},
		"comma at the end":         {`{"a":1,}`, NotJSON, "", 7},
		"comma in an array":        {`{"a":[1,]}`, NotJSON, "a[1]", 8},
		"two commas":               {`{"a":1,,"b":2}`, NotJSON, "", 7},
		"no colon":                 {`{"a" 1}`, NotJSON, "", 5},
		"comment":                  {`{"a":1/**/}`, NotJSON, "", 6},
		"single quotes":            {`{'a':1}`, NotJSON, "", 1},
		"NaN":                      {`{"a":NaN}`, NotJSON, "a", 5},
		"infinity":                 {`{"a":-Infinity}`, NotJSON, "a", 6},
		"leading zero":             {`{"a":01}`, NotJSON, "", 6},
		"leading zero in a list":   {`{"prompt":[1,01,2]}`, NotJSON, "prompt", 14},
		"plus":                     {`{"a":+1}`, NotJSON, "a", 5},
		"no digits":                {`{"a":1.}`, NotJSON, "a", 7},
		"no exponent":              {`{"a":1e+}`, NotJSON, "a", 8},
		"True":                     {`{"a":True}`, NotJSON, "a", 5},
		"truer":                    {`{"a":truer}`, NotJSON, "", 9},
		"raw newline in a string":  {"{\"a\":\"x\ny\"}", NotJSON, "a", 7},
		"raw tab in a name":        {"{\"a\t\":1}", NotJSON, "", 3},
		"unknown escape":           {`{"a":"\x41"}`, NotJSON, "a", 6},
		"short hex":                {`{"a":"\u12"}`, NotJSON, "a", 6},
		"cut hex":                  {`{"a":"\u12`, EndsEarly, "a", 10},
		"lone high surrogate":      {`{"a":"\ud800"}`, NotUTF8, "a", 6},
		"lone low surrogate":       {`{"a":"\udc00"}`, NotUTF8, "a", 6},
		"two high surrogates":      {`{"a":"\ud800\ud800"}`, NotUTF8, "a", 6},
		"two low surrogates":       {`{"a":"\udc00\udc00"}`, NotUTF8, "a", 6},
		"surrogate in a name":      {`{"\ud800":1}`, NotUTF8, "", 2},
		"bad byte":                 {"{\"a\":\"x\xff\"}", NotUTF8, "a", 7},
		"cut character":            {"{\"a\":\"x\xe5\xa4\"}", NotUTF8, "a", 7},
		"spelled too long":         {"{\"a\":\"\xc0\xaf  abcdefgh\"}", NotUTF8, "a", 6},
		"too long, three bytes":    {"{\"a\":\"\xe0\x80\xaf abcdefgh\"}", NotUTF8, "a", 6},
		"surrogate as bytes":       {"{\"a\":\"\xed\xa0\x80 abcdefgh\"}", NotUTF8, "a", 6},
		"beyond Unicode":           {"{\"a\":\"\xf4\x90\x80\x80 abcdefgh\"}", NotUTF8, "a", 6},
		"bad byte between strings": {"{\"a\":1,\xff\"b\":2}", NotJSON, "", 7},
		"other space":              {"{\"a\":\v1}", NotJSON, "a", 5},
		"deep":                     {deep, TooDeep, strings.TrimSuffix(strings.Repeat("a.", 128), ".")[:maxPath], 640},
		"deep lists":               {`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, TooDeep, "", -1},
		"names":                    {`{` + manyNames(DefaultNames+1) + `}`, TooMany, "", -1},
		"a key between":            {`{"a":{"b":1,"c":2},"b":1,"c":{"a":1},"c":1}`, Duplicate, "c", 37},
	} {
		_, r := Read([]byte(c.body), nil)
		switch {
		case r == nil:
			t.Errorf("%s: taken", name)
		case r.Reason != c.reason || c.offset >= 0 && (r.Path != c.path || r.Offset != c.offset):
			t.Errorf("%s: %v at %q, byte %d; want %v at %q, byte %d", name, r.Reason, r.Path, r.Offset, c.reason, c.path, c.offset)
		case r.Verdict().OK() || r.Verdict().Reason == "":
			t.Errorf("%s: verdict %v", name, r.Verdict())
		}
	}
}

// Every lead byte with every second byte, and the edges of the third and fourth, amid what the quick paths go over.
func TestUTF8IsWhatTheStandardLibrarySays(t *testing.T) {
	edges := []byte{0x7f, 0x80, 0xbf, 0xc0}
	buf := make([]byte, 0, 64)
	for lead := 0x80; lead < 0x100; lead++ {
		for second := 0x20; second < 0x100; second++ {
			if second == '"' || second == '\\' {
				continue
			}
			for _, third := range edges {
				for _, around := range [][2]string{{"", "abcdefgh"}, {"太", "太太太"}, {"太太", "太太абвг"}, {"太太太", "太太абвг"}, {"абв", ""}, {"😀", "x"}} {
					for _, fourth := range append(edges, 0) {
						buf = append(append(buf[:0], around[0]...), byte(lead), byte(second), third, fourth)
						if fourth == 0 {
							buf = buf[:len(buf)-1]
						}
						buf = append(buf, around[1]...)
						end, bad := foreign(buf, 0)
						good := utf8.Valid(buf[:end])
						if bad {
							// What comes at end is no character, as far as anyone can see.
							r, n := utf8.DecodeRune(buf[end:])
							good = good && r == utf8.RuneError && n == 1
						}
						if !good {
							t.Fatalf("% x: end %d, bad %v", buf, end, bad)
						}
					}
				}
			}
		}
	}
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + itoa(i) + `":1`)
	}
	return b.String()
}

func itoa(n int) string { return strings.TrimLeft(strings.Trim(element(n), "[]"), " ") }

func TestManyNamesAreComparedWhole(t *testing.T) {
	names := manyNames(5000)
	if _, r := Read([]byte(`{`+names+`}`), nil); r != nil {
		t.Fatal(r)
	}
	// The first, one in the middle and the last name again; and inside an object beside others that are as large.
	for _, again := range []string{`"a0":1`, `"xe2500":1`, `"\u0061` + `0":1`} {
		name := strings.TrimPrefix(strings.Split(again, `":`)[0], `"`)
		if !strings.Contains(names, `"`+strings.ReplaceAll(name, `\u0061`, "a")+`"`) {
			t.Fatalf("%q is not among the names", name)
		}
		body := `{"z":{` + names + `},"y":{` + names + `,` + again + `}}`
		if _, r := Read([]byte(body), nil); r == nil || r.Reason != Duplicate {
			t.Errorf("%s: %v", again, r)
		}
	}
}

func TestReadsValues(t *testing.T) {
	d, r := Read([]byte(` {"s":"a\u00e9\n\"\ud83d\ude00","n":-12,"f":1.5e3,"b":true,"z":null,"o":{"x":[1,{"y":2}],"w":""},"l":[1,2,3], "big":12345678901234567890 } `), nil)
	if r != nil {
		t.Fatal(r)
	}
	if s, ok := d.Get("s").Text(); string(s) != "aé\n\"😀" || !ok {
		t.Errorf("s: %q", s)
	}
	if n, ok := d.Get("n").Int(); n != -12 || !ok {
		t.Errorf("n: %d", n)
	}
	if _, ok := d.Get("f").Int(); ok {
		t.Error("f is an integer")
	}
	if _, ok := d.Get("big").Int(); ok {
		t.Error("big fits")
	}
	if f, ok := d.Get("f").Float(); f != 1500 || !ok {
		t.Errorf("f: %g", f)
	}
	if b, ok := d.Get("b").Bool(); !b || !ok {
		t.Error("b")
	}
	if v := d.Get("z"); v.Said() || v.Kind() != Null {
		t.Error("z")
	}
	if v := d.Get("none"); v.Said() || v.Kind() != Absent {
		t.Error("none")
	}
	if n, _ := d.Get("o").Get("x").Raw(), 0; string(n) != `[1,{"y":2}]` {
		t.Errorf("o.x: %s", n)
	}
	if s, ok := d.Get("o").Get("w").Text(); s == nil || len(s) != 0 || !ok {
		t.Error("o.w")
	}
	var got []string
	d.Get("l").Each(func(_ []byte, v Value) bool {
		got = append(got, string(v.Raw()))
		return len(got) < 2
	})
	if strings.Join(got, " ") != "1 2" {
		t.Errorf("l: %q", got)
	}
	got = nil
	d.Each(func(name string, _ Value, _ bool) bool { got = append(got, name); return true })
	if strings.Join(got, " ") != "s n f b z o l big" {
		t.Errorf("members: %q", got)
	}
}

func TestFindsThePromptsText(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		shape Shape
		n     int
		ids   int
		text  string
		media Media
	}{
		"text":        {`{"prompt":"a\nb"}`, Text, 1, 0, `a\nb`, Media{}},
		"ids":         {`{"prompt":[1, 2,30 ,4]}`, IDs, 1, 4, "", Media{}},
		"one id":      {`{"prompt":[ 1 ]}`, IDs, 1, 1, "", Media{}},
		"no ids":      {`{"prompt":[]}`, IDs, 1, 0, "", Media{}},
		"texts":       {`{"prompt":["a","b"]}`, Texts, 2, 0, `a|b`, Media{}},
		"lists":       {`{"prompt":[[1,2],[3],[]]}`, IDLists, 3, 3, "", Media{}},
		"neither":     {`{"prompt":7}`, NoPrompt, 0, 0, "", Media{}},
		"chat":        {`{"messages":[{"role":"system","content":"a"},{"content":"b","role":"user"},{"role":"assistant","content":null}]}`, Messages, 3, 0, "a|b", Media{}},
		"parts":       {`{"messages":[{"content":[{"type":"text","text":"a"},{"text":"b","type":"text"}],"role":"user"}]}`, Messages, 1, 0, "a|b", Media{}},
		"image":       {`{"messages":[{"content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]}`, Messages, 1, 0, "a", Media{Parts: 1}},
		"remote":      {`{"messages":[{"content":[{"type":"image_url","image_url":{"detail":"low","url":"http://10.0.0.1/x"}}]}]}`, Messages, 1, 0, "", Media{1, 1}},
		"remote text": {`{"messages":[{"content":[{"type":"audio_url","audio_url":"file:///etc/passwd"},{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}]}]}`, Messages, 1, 0, "", Media{2, 1}},
		"odd scheme":  {`{"messages":[{"content":[{"image_url":{"url":" data:x"}},{"image_url":{"url":"DATA:x"}},{"image_url":{"url":"\u0064ata:x"}}]}]}`, Messages, 1, 0, "", Media{3, 2}},
		"not content": {`{"messages":[{"role":"user","url":"http://x"}],"tools":[{"content":"x"}]}`, Messages, 1, 0, "", Media{}},
	} {
		d, r := Read([]byte(c.body), nil)
		if r != nil {
			t.Fatal(name, r)
		}
		var text []string
		n := 0
		for raw := range d.Prompt().Raw() {
			text = append(text, string(raw))
			n += len(raw)
		}
		p := d.Prompt()
		if p.Shape != c.shape || p.N != c.n || p.IDs != c.ids || strings.Join(text, "|") != c.text || p.Bytes != n || d.Media() != c.media {
			t.Errorf("%s: shape %d, %d prompts, %d ids, %q, %d bytes, %v", name, p.Shape, p.N, p.IDs, text, p.Bytes, d.Media())
		}
	}
}

func TestBounds(t *testing.T) {
	body := []byte(`{"a":{"b":{"c":1}}}`)
	for _, c := range []struct {
		b    Bounds
		want Reason
	}{
		{Bounds{}, 0}, {Bounds{Depth: 3}, 0}, {Bounds{Depth: 2}, TooDeep}, {Bounds{Names: 3}, 0}, {Bounds{Names: 2}, TooMany},
		{Bounds{Bytes: len(body)}, 0}, {Bounds{Bytes: len(body) - 1}, TooLarge},
	} {
		var got Reason
		if _, r := ReadBounded(body, nil, c.b); r != nil {
			got = r.Reason
		}
		if got != c.want {
			t.Errorf("%+v: %v", c.b, got)
		}
	}
}

// What costs more than its share when it is done naively: names, escapes, quotes, nesting, refusals far inside.
func TestTimeIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("times")
	}
	shapes := map[string]func(n int) string{
		"names": func(n int) string { return `{` + manyNames(n/16) + `}` },
		"equal hashes": func(n int) string {
			return `{"a":[` + strings.TrimSuffix(strings.Repeat(`{"ab":1,"cb":2},`, n/16), ",") + `]}`
		},
		"backslashes":  func(n int) string { return `{"a":"` + strings.Repeat(`\\`, n/2) + `"}` },
		"quotes":       func(n int) string { return `{"a":"` + strings.Repeat(`\"`, n/2) + `"}` },
		"mixed":        func(n int) string { return `{"a":"` + strings.Repeat("é\\n\xe5\xa4\xaa", n/7) + `"}` },
		"strings":      func(n int) string { return `{"prompt":[` + strings.Repeat(`"",`, n/3) + `""]}` },
		"never closed": func(n int) string { return `{"a":[` + strings.Repeat(`[],`, n/3) },
		"carrier":      func(n int) string { return `{"extra_body":[` + strings.Repeat(`{"a":1},`, n/8) + `1]}` },
	}
	p := NewPolicy(Config{Engine: SGLang, Endpoint: Completions})
	for name, shape := range shapes {
		small, large := []byte(shape(64<<10)), []byte(shape(8*64<<10))
		var ratio float64
		for range 5 {
			if ratio = quickest(large, p).Seconds() / max(quickest(small, p), time.Microsecond).Seconds(); ratio < 24 {
				break
			}
		}
		if ratio >= 24 {
			t.Errorf("%s: eight times the body takes %.1f times as long", name, ratio)
		}
	}
}

func quickest(body []byte, p *Policy) time.Duration {
	best := time.Hour
	for range 4 {
		best = min(best, worked(func() { ReadBounded(body, p, Bounds{Names: 1 << 20}) }))
	}
	return best
}
