package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// keep notes a result, for report and for later steps.
func (b *bed) keep(name string, v any) {
	t, err := json.MarshalIndent(v, "", " ")
	if err == nil {
		err = os.WriteFile(b.path("results", name), append(t, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the result cannot be kept:", err)
	}
}

// forget removes what runs before have left.
func (b *bed) forget() {
	found, _ := filepath.Glob(b.path("results", "*.json"))
	for _, f := range found {
		if filepath.Base(f) != "pair.json" {
			_ = os.Remove(f)
		}
	}
}

// capture keeps what the legs answered, for tests that replay it.
func (b *bed) capture(name string, size int, planted string, out [2]answer) {
	type leg struct {
		Status int    `json:"status"`
		Body   string `json:"body"`
	}
	b.keep("body_"+strings.NewReplacer(",", "", " ", "_").Replace(name)+".json", struct {
		Prompt  int    `json:"prompt_bytes"`
		Foreign string `json:"foreign,omitempty"`
		Prefill leg    `json:"prefill"`
		Decode  leg    `json:"decode"`
	}{size, planted, leg{out[0].status, string(out[0].body)}, leg{out[1].status, string(out[1].body)}})
}

// load reads a step's result.
func load[T any](b *bed, step string) (v T, ok bool) {
	t, err := os.ReadFile(b.path("results", step+".json"))
	return v, err == nil && json.Unmarshal(t, &v) == nil
}

// Between these lines docs/e2e.md holds what report prints.
const begin, end = "<!-- e2e-sglang: begin -->\n", "<!-- e2e-sglang: end -->"

func (b *bed) report(context.Context) error {
	text := fmt.Sprintf("Run from %s to %s (UTC).\n\n", b.began.UTC().Format("2006-01-02 15:04"), time.Now().UTC().Format("15:04")) + b.results()
	for _, f := range b.failed {
		text += fmt.Sprintf("\n**Failed**: %s\n", strings.Join(strings.Fields(f), " "))
	}
	fmt.Print(text)
	if !b.write {
		return nil
	}
	const file = "docs/e2e.md"
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, is := bytes.Cut(rest, []byte(end))
	if !ok || !is {
		return errors.New(file + " has lost the lines that the results stand between")
	}
	return os.WriteFile(file, []byte(string(before)+begin+text+end+string(after)), 0o644)
}

func ms(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }

func (f found) about() string {
	s := fmt.Sprintf("`%s`, %s, SGLang %s, %v", f.Command, f.When, f.Release, f.Took.Round(time.Second))
	if f.Memory > 0 {
		s += fmt.Sprintf(", both engines %.1f GB", float64(f.Memory)/1e9)
	}
	return s
}

func counts(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%s: %d", k, m[k])
	}
	if len(keys) == 0 {
		return "none"
	}
	return strings.Join(keys, ", ")
}

// results is the section of docs/e2e.md.
func (b *bed) results() string {
	var o strings.Builder
	fmt.Fprintln(&o, "| way | control: A's code in B's reply, straight at the legs | foreign text through the gateway | B was answered | incidents | prompts that fit, served right |")
	fmt.Fprintln(&o, "| --- | --- | --- | --- | --- | --- |")
	var abouts []string
	for _, w := range ways {
		f, ok := load[found](b, w.name)
		if !ok {
			fmt.Fprintf(&o, "| %s | not run | | | | |\n", w.title)
			continue
		}
		fmt.Fprintf(&o, "| %s | %d of %d, up to %d characters in a row | %d of %d | %s | %s | %d of %d, and %d of A's, the control's among them |\n",
			f.Title, f.ControlLeaks, f.Controls, f.Longest, f.Leaks, f.Trials, counts(f.Statuses), counts(f.Incidents), f.Fits, f.Trials, f.Donors)
		abouts = append(abouts, f.about()+faults(f))
		if f.Detail != "" && w.code != "" {
			abouts = append(abouts, "an incident says: "+f.Detail)
		}
		if len(f.Canaries) > 0 {
			abouts = append(abouts, fmt.Sprintf("each incident ejected the pair; canaries on it afterwards: %s", counts(f.Canaries)))
		}
	}
	list(&o, abouts)

	if m, ok := load[mixed](b, "honest"); ok {
		fmt.Fprintf(&o, "\nHonest requests: %d of %d right, incidents: %s.\n\n| kind | right |\n| --- | --- |\n", m.Right, m.Trials, counts(m.Incidents))
		kinds := make([]string, 0, len(m.Kinds))
		for k := range m.Kinds {
			kinds = append(kinds, k)
		}
		sort.Strings(kinds)
		for _, k := range kinds {
			fmt.Fprintf(&o, "| %s | %d of %d |\n", k, m.Kinds[k][0], m.Kinds[k][1])
		}
		list(&o, []string{m.about() + faults(m.found)})
	}

	if e, ok := load[edges](b, "edge"); ok {
		fmt.Fprintf(&o, "\nAround prefill's pool of %d tokens (page %d), straight at the legs, and what the gateway does with it:\n\n| prompt tokens | prefill says | decode says | text | the gateway |\n| --- | --- | --- | --- | --- |\n", prefillPool, pageSize)
		for _, x := range e.Near {
			text, door := "right", "lets it pass"
			if !x.Right {
				text = "**not the right one**"
			}
			if !x.Limit {
				door = "refuses it"
			}
			says := func(status, tokens int) string {
				if tokens < 0 {
					return fmt.Sprintf("%d", status)
				}
				return fmt.Sprintf("%d, %d tokens", status, tokens)
			}
			if x.Decode != http.StatusOK {
				text = fmt.Sprintf("none, after %v", x.Took.Round(time.Second))
			}
			fmt.Fprintf(&o, "| %d | %s | %s | %s | %s |\n", x.Tokens, says(x.Prefill, x.Says[0]), says(x.Decode, x.Says[1]), text, door)
		}
		list(&o, []string{e.about() + faults(e.found)})
	}

	if r, ok := load[refused](b, "refusal"); ok {
		fmt.Fprintf(&o, "\nA prompt that prefill refuses by its status (admission is told a larger pool). Decode waits for pages at most %v here, 300 s by default:\n\n", waitKV)
		fmt.Fprintln(&o, "| asked for | straight: the client waits | decode holds it | gateway: the client waits | decode holds it | the client gets |\n| --- | --- | --- | --- | --- | --- |")
		for _, c := range r.Cases {
			fmt.Fprintf(&o, "| %s | %s, then %d | %s | %s | %s | %d %s |\n", c.API, ms(c.Straight), c.Decodes, ms(c.HeldBefore), ms(c.Door), ms(c.Held), c.Status, c.Code)
		}
		list(&o, []string{r.about() + faults(r.found), fmt.Sprintf("after 40 more of them %d of %d prompts that fit are served right; incidents: %s: %s", r.Fits, len(r.Cases), counts(r.Incidents), r.Detail)})
	}
	return o.String()
}

func faults(f found) string {
	if len(f.Faults) == 0 {
		return ""
	}
	return fmt.Sprintf("; **%d faults**, the first: %s", len(f.Faults), f.Faults[0])
}

func list(o *strings.Builder, items []string) {
	if len(items) > 0 {
		fmt.Fprintf(o, "\n* %s\n", strings.Join(items, "\n* "))
	}
}
