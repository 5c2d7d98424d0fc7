package jsonedit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/iotest"

	"github.com/go-json-experiment/json/jsontext"
)

// members is what a parser that is none of ours sees in an object: names as text, values without white space.
func members(t *testing.T, body []byte) map[string]string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%v: %q", err, body)
	}
	out := map[string]string{}
	for k, v := range m {
		var b bytes.Buffer
		if err := json.Compact(&b, v); err != nil {
			t.Fatal(err)
		}
		out[k] = b.String()
	}
	return out
}

func TestEdits(t *testing.T) {
	for _, body := range []string{`{}`, ` { } `, `{"a":1}`, ` {"a" : 1 , "b":[1, 2] ,"c":{ } } `, `{"a":1,"b":2,"c":3,"d":4,"e":5}`, `{"\u0061":"x","b\n":null}`} {
		for seed := range uint64(300) {
			rnd := rand.New(rand.NewPCG(1, seed))
			d, r := Read([]byte(body), nil)
			if r != nil {
				t.Fatal(r)
			}
			want, original := members(t, []byte(body)), members(t, []byte(body))
			e := d.Edit()
			for range rnd.IntN(6) {
				name := []string{"a", "b", "c", "d", "e", "b\n", "new", "n\"w"}[rnd.IntN(8)]
				switch rnd.IntN(4) {
				case 0:
					e.Delete(name)
					delete(want, name)
				case 1:
					value := fmt.Sprintf(`[%d,"%s"]`, seed, bytes.Repeat([]byte{'x'}, rnd.IntN(2)*300))
					e.Set(name, []byte(value))
					want[name] = value
				case 2:
					e.SetInt(name, int64(seed))
					want[name] = fmt.Sprint(seed)
				case 3:
					if rnd.IntN(4) == 0 {
						e.Keep("a", "c", "new")
						for k := range want {
							if _, own := original[k]; own && k != "a" && k != "c" {
								delete(want, k)
							}
						}
					}
				}
			}
			b := e.Body()
			got := b.AppendTo(nil)
			if int64(len(got)) != b.Len() {
				t.Fatalf("%d bytes, Len %d", len(got), b.Len())
			}
			if m := members(t, got); !reflect.DeepEqual(m, want) {
				t.Fatalf("%s, seed %d: %s\n got %v\nwant %v", body, seed, got, m, want)
			}
			if _, r := Read(got, nil); r != nil {
				t.Fatalf("%s is not strict: %v", got, r)
			}
		}
	}
}

// Two legs, one body: neither edit sees the other, and the body itself never changes.
func TestEditsAreIndependent(t *testing.T) {
	body := []byte(`{"model":"m","prompt":"` + string(bytes.Repeat([]byte("x"), 1000)) + `","stream":true}`)
	before := bytes.Clone(body)
	d, r := Read(body, NewPolicy(Config{Engine: SGLang, Endpoint: Completions}))
	if r != nil {
		t.Fatal(r)
	}
	p := d.Edit().SetBool("stream", false).SetInt("bootstrap_room", 7).SetText("bootstrap_host", "h\"\n").Delete("stream_options")
	q := d.Edit().SetInt("bootstrap_room", 8)
	pb, qb := p.Body(), q.Body()
	p.SetInt("bootstrap_room", 9)
	if m := members(t, pb.AppendTo(nil)); m["bootstrap_room"] != "7" || m["stream"] != "false" || m["bootstrap_host"] != `"h\"\n"` {
		t.Errorf("%v", m)
	}
	if m := members(t, qb.AppendTo(nil)); m["bootstrap_room"] != "8" || m["stream"] != "true" || m["bootstrap_host"] != "" {
		t.Errorf("%v", m)
	}
	if !bytes.Equal(body, before) {
		t.Error("the body changed")
	}
	// The prompt is in the pieces as it lies in the body: no copy.
	at := bytes.Index(body, []byte("xxx"))
	body[at+500] = 'y'
	if !bytes.Contains(pb.AppendTo(nil), []byte("xyx")) || !bytes.Contains(qb.AppendTo(nil), []byte("xyx")) {
		t.Error("the prompt was copied")
	}
}

func TestSetPanicsOnWhatIsNoValue(t *testing.T) {
	d, _ := Read([]byte(`{}`), nil)
	for _, v := range []string{"", "1,2", `"a`, `{"a":1,"a":2}`, "nul", `1 `} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was taken", v)
				}
			}()
			d.Edit().Set("x", []byte(v))
		}()
	}
}

func TestReader(t *testing.T) {
	body := []byte(`{"a":1,"b":` + string(bytes.Repeat([]byte("1"), 5000)) + `,"c":3}`)
	d, r := Read(body, nil)
	if r != nil {
		t.Fatal(r)
	}
	b := d.Edit().SetInt("a", 5).SetInt("z", 6).Delete("c").Body()
	want := b.AppendTo(nil)
	if err := iotest.TestReader(b.NewReader(), want); err != nil {
		t.Error(err)
	}
	for _, read := range []func(io.Reader) ([]byte, error){
		io.ReadAll,
		func(r io.Reader) ([]byte, error) { return io.ReadAll(iotest.OneByteReader(r)) },
		func(r io.Reader) ([]byte, error) {
			var w bytes.Buffer
			_, err := r.(io.WriterTo).WriteTo(&w)
			return w.Bytes(), err
		},
		func(r io.Reader) ([]byte, error) { // half read, the rest written
			half := make([]byte, 100)
			io.ReadFull(r, half)
			var w bytes.Buffer
			_, err := r.(io.WriterTo).WriteTo(&w)
			return append(half, w.Bytes()...), err
		},
	} {
		if got, err := read(b.NewReader()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	// A writer that takes less: what was taken is not written again.
	rd := b.NewReader()
	var w bytes.Buffer
	for {
		n, err := rd.WriteTo(&limited{&w, 7})
		if n == 0 || err == nil {
			break
		}
	}
	if !bytes.Equal(w.Bytes(), want) {
		t.Error("short writes")
	}
}

type limited struct {
	w io.Writer
	n int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.n)
	l.n -= n
	n, _ = l.w.Write(p[:n])
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// strict is what an independent strict parser says.
func strict(body []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(body))
	v, err := dec.ReadValue()
	if err != nil || v.Kind() != '{' {
		return false
	}
	_, err = dec.ReadToken()
	return err == io.EOF
}

// Read takes a body exactly if a strict parser of other people does, and the edited body means, to a third parser, what was meant
// and nothing else.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1,"b":"x\u00e9\n","a\u0062":[true,null,{"c":-1.5e+3}]}`, `{"messages":[{"content":[{"type":"text","text":"é太😀"}]}],"rid":1}`,
		"{\"a\":\"\xed\xa0\x80\"}", `{"a":"\ud83d\ude00\ud800"}`, `{"prompt":[1,2,[3]],"\u0070rompt":2}`, `{"a":01}`, ` {"a":{"b":1,"b":2}} `,
		"{\"a\":\"привет, мир и ещё \xd0\"}", "{\"a\":\"0123456789012345678901234567890123456789012345678901234567890123456789\\n\\t\\\"\\\\x\"}"} {
		f.Add([]byte(s), "a", int64(3), true)
	}
	policies := map[Engine]*Policy{}
	for _, e := range engines {
		policies[e] = NewPolicy(Config{Engine: e, Endpoint: Completions, Unknown: PassUnknown})
	}
	f.Fuzz(func(t *testing.T, body []byte, name string, n int64, remove bool) {
		before := bytes.Clone(body)
		d, r := Read(body, nil)
		if ok := strict(body); (r == nil) != ok && !(ok && (r.Reason == TooDeep || r.Reason == TooMany)) {
			t.Fatalf("strict parser: %v, here: %v", ok, r)
		}
		for e, p := range policies {
			d, r := Read(body, p)
			if r != nil {
				r.Verdict()
				continue
			}
			for k := range members(t, d.Edit().Body().AppendTo(nil)) {
				if IsControl([]byte(k)) {
					t.Fatalf("%s: %q passed", e, k)
				}
			}
		}
		if r != nil {
			if r.Reason == 0 || r.Offset < 0 || r.Offset > len(body) || len(r.Path) > maxPath {
				t.Fatalf("%+v", r)
			}
			r.Verdict()
			return
		}
		want := members(t, body)
		for k, v := range want {
			if got := string(compact(t, d.Get(k).Raw())); got != v {
				t.Fatalf("%q is %s, not %s", k, got, v)
			}
		}
		e := d.Edit()
		if !jsonName(name) {
			return
		}
		if remove {
			e.Delete(name)
			delete(want, name)
			e.SetInt("other", n)
			want["other"] = fmt.Sprint(n)
		} else {
			e.SetInt(name, n)
			want[name] = fmt.Sprint(n)
		}
		b := e.Body()
		got := b.AppendTo(nil)
		if int64(len(got)) != b.Len() || !strict(got) {
			t.Fatalf("%q, Len %d", got, b.Len())
		}
		if m := members(t, got); !reflect.DeepEqual(m, want) {
			t.Fatalf("%q became %q: %v, not %v", body, got, m, want)
		}
		if !bytes.Equal(body, before) {
			t.Fatal("the body changed")
		}
	})
}

func compact(t *testing.T, raw []byte) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jsonName(s string) bool {
	_, err := jsontext.AppendQuote(nil, s)
	return err == nil
}
