package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// runFake runs the command in this process until stop is called, which returns its error.
func runFake(t *testing.T, args ...string) (lines *bufio.Scanner, stop func() error) {
	t.Helper()
	cmd := newFakeCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	r, w := io.Pipe()
	cmd.SetOut(w)
	cmd.SetArgs(args)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.Close()
		done <- err
	}()
	t.Cleanup(cancel)
	return bufio.NewScanner(r), func() error {
		cancel()
		go io.Copy(io.Discard, r)
		return <-done
	}
}

var fakeURL = regexp.MustCompile(`role: (\w+), url: "(http://[^"]+)"`)

func TestFakeCommandServesAndCounts(t *testing.T) {
	for _, engine := range []string{"sglang", "vllm"} {
		lines, stop := runFake(t, engine, "--prefill", "127.0.0.1:0", "--bootstrap", "127.0.0.1:0", "--decode", "127.0.0.1:0", "--pairs", "2",
			"--control", "127.0.0.1:0", "--pin")
		urls := map[string]string{}
		control := ""
		for control == "" && lines.Scan() {
			if m := fakeURL.FindStringSubmatch(lines.Text()); m != nil {
				urls[m[1]] = m[2]
			}
			if _, at, ok := strings.Cut(lines.Text(), "# control: "); ok {
				control = at
			}
		}
		if urls["prefill"] == "" || urls["decode"] == "" {
			t.Fatal(urls)
		}
		ask := func() int {
			resp, err := http.Post(urls["decode"]+"/v1/completions", "application/json", strings.NewReader(`{"model":"recall","prompt":"a","rid":"x"}`))
			if err != nil {
				return 0
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		post := func(path string, v url.Values) int {
			resp, err := http.Post(control+path+"?"+v.Encode(), "", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		ask()
		for path, v := range map[string]url.Values{"/lie": {"tell": {"decode:unavailable"}}, "/honest": nil, "/restart": {"worker": {"prefill-0"}, "pool": {"256"}},
			"/freeze": {"worker": {"decode-0"}}, "/thaw": nil} {
			if s := post(path, v); s != 200 {
				t.Errorf("%s: %d", path, s)
			}
		}
		if post("/lie", url.Values{"tell": {"decode:nothing"}}) != 400 || post("/kill", url.Values{"worker": {"nobody"}}) != 404 {
			t.Error("nonsense was taken")
		}
		var state struct {
			Workers    []struct{ Name string }
			Violations []struct{ Rule string }
		}
		resp, err := http.Get(control + "/state")
		if err != nil {
			t.Fatal(err)
		}
		json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		if len(state.Workers) != 4 || len(state.Violations) == 0 {
			t.Errorf("%+v", state)
		}
		var exit exitError
		if err := stop(); !errors.As(err, &exit) || exit.code != 1 {
			t.Errorf("%s: %v", engine, err)
		}
	}
	lines, stop := runFake(t, "vllm", "--plain", "--decode", "127.0.0.1:0", "--lie", "both:unavailable,times=1")
	for lines.Scan() {
		if m := fakeURL.FindStringSubmatch(lines.Text()); m != nil {
			for _, want := range []int{503, 200} {
				resp, err := http.Post(m[2]+"/v1/completions", "application/json", strings.NewReader(`{"model":"recall","prompt":"a"}`))
				if err != nil || resp.StatusCode != want {
					t.Errorf("%v %v, want %d", resp.StatusCode, err, want)
				}
				resp.Body.Close()
			}
			break
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestFakeCommandRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"vllm", "--connector", "none"}, {"sglang", "--lie", "x"}, {"sglang", "--prefill", "nowhere"}, {"sglang", "--no-such"}} {
		_, stop := runFake(t, args...)
		var exit exitError
		if err := stop(); !errors.As(err, &exit) || exit.code != 3 {
			t.Errorf("%v: %v", args, err)
		}
	}
	lines, stop := runFake(t, "lies")
	text := ""
	for lines.Scan() {
		text += lines.Text() + "\n"
	}
	if err := stop(); err != nil || !strings.Contains(text, "placeholder") || !strings.Contains(text, "the incident") {
		t.Error(err, text)
	}
}
