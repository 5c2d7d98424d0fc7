package jsonedit

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

var blocksPolicy = NewPolicy(Config{Engine: Plain, Endpoint: AnthropicAPI})

func blocksBody(system, content string) string {
	s := `{"model":"m","max_tokens":5,`
	if system != "" {
		s += `"system":` + system + `,`
	}
	return s + `"messages":[{"role":"user","content":` + content + `}]}`
}

// Results of tools are text, which bytes bound; images, wherever they are, are not, and none is fetched.
func TestBlocksOfMessages(t *testing.T) {
	const (
		image  = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}`
		remote = `{"type":"image","source":{"type":"url","url":"http://169.254.169.254/"}}`
	)
	for name, c := range map[string]struct {
		system, content string
		texts           string
		media           int
		path            string // of a refusal
	}{
		"a string":             {``, `"a"`, "a", 0, ""},
		"text":                 {`"s"`, `[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]`, "s|a", 0, ""},
		"a system of blocks":   {`[{"type":"text","text":"s"},{"type":"text","text":"t"}]`, `"a"`, "s|t|a", 0, ""},
		"a call":               {``, `[{"type":"tool_use","id":"x","name":"f","input":{"url":"http://a/","n":[1]}}]`, "", 0, ""},
		"a result":             {``, `[{"type":"tool_result","tool_use_id":"x","is_error":false,"content":"a"}]`, "a", 0, ""},
		"a result of blocks":   {``, `[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"a"}]},{"type":"text","text":"b"}]`, "a|b", 0, ""},
		"a thought":            {``, `[{"type":"thinking","thinking":"hm","signature":"AA"},{"type":"redacted_thinking","data":"AA"}]`, "", 0, ""},
		"what a search found":  {``, `[{"type":"search_result","source":"https://a/","title":"t","content":[{"type":"text","text":"a"}]}]`, "a", 0, ""},
		"citations":            {``, `[{"type":"text","text":"a","citations":[{"type":"web","url":"https://a/"}]}]`, "a", 0, ""},
		"an image":             {``, `[` + image + `]`, "", 1, ""},
		"an image in a result": {``, `[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"a"},` + image + `]}]`, "a", 1, ""},
		"a document":           {``, `[{"type":"document","source":{"type":"content","content":[` + image + `]}}]`, "", 2, ""},
		"an address":           {``, `[` + remote + `]`, "", 0, "messages[0].content[0].source.url"},
		"an address in a result": {``, `[{"type":"tool_result","tool_use_id":"x","content":[` + remote + `]}]`, "", 0,
			"messages[0].content[0].content[0].source.url"},
		"in a document":       {``, `[{"type":"document","source":{"type":"content","content":[` + remote + `]}}]`, "", 0, "messages[0].content[0].source.content[0].source.url"},
		"in the system":       {`[` + remote + `]`, `"a"`, "", 0, "system[0].source.url"},
		"in the other way":    {``, `[{"type":"image_url","image_url":{"url":"http://a/"}}]`, "", 0, "messages[0].content[0].image_url.url"},
		"embeddings":          {``, `[{"type":"x","image_embeds":"AA"}]`, "", 0, "messages[0].content[0].image_embeds"},
		"data in the body":    {``, `[{"type":"image","source":{"type":"url","url":"data:image/png;base64,AA=="}}]`, "", 1, ""},
		"a block in a result": {``, strings.Repeat(`[{"content":`, 40) + `"a"` + strings.Repeat(`}]`, 40), "a", 0, ""},
	} {
		d, r := Read([]byte(blocksBody(c.system, c.content)), blocksPolicy)
		if r != nil || c.path != "" {
			if r == nil || r.Reason != Unsupported || r.Path != c.path {
				t.Errorf("%s: %+v, want %s", name, r, c.path)
			}
			continue
		}
		var texts []string
		for raw := range d.Prompt().Raw() {
			texts = append(texts, Unquote(raw))
		}
		if got := strings.Join(texts, "|"); got != c.texts || d.Media().Parts != c.media {
			t.Errorf("%s: texts %q, %d media; want %q, %d", name, got, d.Media().Parts, c.texts, c.media)
		}
	}
	// A result in a result has a bound: its depth is the body's.
	deep := strings.Repeat(`[{"content":`, 1000) + `"a"` + strings.Repeat(`}]`, 1000)
	if _, r := Read([]byte(blocksBody("", deep)), blocksPolicy); r == nil || r.Reason != TooDeep {
		t.Errorf("%+v", r)
	}
}

// walked is what another parser finds in contents: their texts, and whether an address is among them.
type walked struct {
	texts  []string
	remote bool
}

func (w *walked) content(v any) {
	switch v := v.(type) {
	case string:
		w.texts = append(w.texts, v)
	case []any:
		for _, p := range v {
			switch p := p.(type) {
			case string:
				w.texts = append(w.texts, p)
			case map[string]any:
				w.block(p)
			}
		}
	}
}

func (w *walked) block(p map[string]any) {
	for k, m := range p {
		switch k {
		case "text":
			if s, is := m.(string); is {
				w.texts = append(w.texts, s)
			}
		case "content":
			w.content(m)
		case "source", "image_url", "video_url":
			switch m := m.(type) {
			case string:
				w.remote = w.remote || k != "source" && !strings.HasPrefix(strings.ToLower(m), "data:")
			case map[string]any:
				w.content(m["content"])
				if s, is := m["url"].(string); is && !strings.HasPrefix(strings.ToLower(s), "data:") {
					w.remote = true
				}
			}
		}
	}
}

// Whatever a client sends for /v1/messages: what is taken has no address in it, and its texts are those that another parser finds.
func FuzzBlocks(f *testing.F) {
	f.Add(`"s"`, `[{"type":"text","text":"a"},{"type":"tool_result","content":[{"type":"text","text":"b"}]}]`)
	f.Add(`[{"type":"text","text":"\u00e9\n"}]`, `[{"type":"image","source":{"type":"url","url":"http://a/"}}]`)
	f.Add(`null`, `[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"url":"data:,x"}}]}}]`)
	f.Add(``, `[{"type":"tool_use","input":{"url":"http://a/"}},"x",{"text":1,"content":{"a":1}}]`)
	f.Add(``, `[{"\u0075rl":"http://a/","source":{"u\u0072l":"http://a/"}}]`)
	f.Fuzz(func(t *testing.T, system, content string) {
		body := []byte(blocksBody(system, content))
		d, r := Read(body, blocksPolicy)
		if r != nil {
			r.Verdict()
			return
		}
		var all struct {
			System   any
			Messages []struct{ Content any }
		}
		if err := json.Unmarshal(body, &all); err != nil {
			return // a shape that no engine takes
		}
		var w walked
		w.content(all.System)
		for _, m := range all.Messages {
			w.content(m.Content)
		}
		if w.remote {
			t.Fatalf("%s was taken", body)
		}
		var texts []string
		for raw := range d.Prompt().Raw() {
			texts = append(texts, Unquote(raw))
		}
		slices.Sort(texts)
		slices.Sort(w.texts)
		if len(all.Messages) == 1 && d.Get("messages").Kind() == Array && !slices.Equal(texts, w.texts) {
			t.Fatalf("%s: %q, not %q", body, texts, w.texts)
		}
	})
}
