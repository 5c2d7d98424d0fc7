package main

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"
)

// judge looks for text of other tenants in everything that a client received. It knows what was planted and nothing else: no status,
// no count, no word of the gateway or of an engine has a part in its answer.
type judge struct {
	mu      sync.Mutex
	planted []string // codes and the lines that they stand in, of all tenants so far
}

// window is how many characters in a row of a planted text are proof: codes are of letters and digits drawn without repetition, and
// no other text of a run holds eight characters of one.
const window = 8

func (j *judge) plant(texts ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.planted = append(j.planted, texts...)
}

// foreign returns the longest planted text that is in what was received, "" if none is. Stale pages outlive their tenants: text of every
// tenant of the run counts.
func (j *judge) foreign(received []byte) (longest string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, view := range views(received) {
		for _, p := range j.planted {
			for i := 0; i+window <= len(p); i++ {
				if !strings.Contains(view, p[i:i+window]) {
					continue
				}
				n := window
				for i+n < len(p) && strings.Contains(view, p[i:i+n+1]) {
					n++
				}
				if n > len(longest) {
					longest = p[i : i+n]
				}
			}
		}
	}
	return longest
}

// views of what was received: the bytes, and for each place of the JSON in it (an engine may send a character an event) the strings
// that came in that place, one after the other.
func views(received []byte) []string {
	out := []string{string(received)}
	places := map[string]*strings.Builder{}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case string:
			if places[at] == nil {
				places[at] = &strings.Builder{}
			}
			places[at].WriteString(v)
		case []any:
			for _, x := range v {
				walk(at+"[]", x)
			}
		case map[string]any:
			keys := make([]string, 0, len(v))
			for k := range v {
				keys = append(keys, k)
			}
			sort.Strings(keys)
			for _, k := range keys {
				walk(at+"."+k, v[k])
			}
		}
	}
	for line := range strings.SplitSeq(string(received), "\n") {
		_, data, is := strings.Cut(line, "data:")
		if !is {
			data = line
		}
		var v any
		if json.Unmarshal([]byte(strings.TrimSpace(data)), &v) == nil {
			walk("", v)
		}
	}
	for _, b := range places {
		out = append(out, b.String())
	}
	return out
}

// bare says what a refusal holds beside an error of the public API's form, "" if nothing.
func bare(body []byte) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return "it is not one JSON object"
	}
	var e struct {
		Message, Type, Code string
		Param               *string
	}
	if len(m) != 1 || json.Unmarshal(m["error"], &e) != nil || e.Message == "" || e.Type == "" || e.Code == "" {
		return fmt.Sprintf("it is no error of the API's form: %.200s", body)
	}
	return ""
}

// code of an error, "" if the body holds none.
func code(body []byte) string {
	var m struct{ Error struct{ Code string } }
	_ = json.Unmarshal(body, &m)
	return m.Error.Code
}
