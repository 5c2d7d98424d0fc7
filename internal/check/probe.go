package check

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/finding"
	"github.com/sluicekv/sluice/internal/check/source"
)

// probeWait bounds one probe: a refusal takes milliseconds, an engine that waits for its peer takes minutes.
const probeWait = 20 * time.Second

// probe asks each live worker whose limit is known for one request that is over the limit, with one token of output. An
// engine that is right refuses it at once. What decode says is not looked at: its text may be another request's.
func probe(ctx context.Context, nodes []*facts.Node, o source.Options) (map[string]advisory.Truth, []finding.Finding) {
	out := map[string]advisory.Truth{}
	var fs []finding.Finding
	client := source.Client(o)
	defer client.CloseIdleConnections()
	p := prober{client, o}
	for _, n := range nodes {
		if !n.Live || len(n.Facts) == 0 || ctx.Err() != nil {
			continue
		}
		cf := n.Capacity(0)
		if cf.PoolTokens == 0 || cf.Context == 0 || cf.Role == capacity.Decode || cf.Engine != capacity.SGLang && cf.Engine != capacity.VLLM {
			continue
		}
		var decode *facts.Node
		if cf.Role == capacity.Prefill && cf.Engine == capacity.SGLang {
			for _, d := range nodes {
				if d.Live && d.Text(facts.Role) == "decode" && d.Group() == n.Group() {
					decode = d
					break
				}
			}
			if decode == nil {
				fs = append(fs, finding.New(finding.ProbeUnclear, finding.Low, n.Name, n.ID, "name a live decode worker of the same model too", "a prefill worker is asked together with a decode worker, and none was given"))
				continue
			}
		}
		t, f := p.ask(ctx, n, decode, cf)
		if t != advisory.Unknown {
			out[n.Name] = t
		}
		fs = append(fs, f)
	}
	return out, fs
}

type prober struct {
	client *http.Client
	o      source.Options
}

// ask sends the over-limit request to n (and to decode, when the legs work together) and judges n's answer.
func (p prober) ask(ctx context.Context, n, decode *facts.Node, cf capacity.Facts) (advisory.Truth, finding.Finding) {
	// Over the pool when the pool is the smaller, so that only the check in question can refuse; else over the context.
	tokens := cf.Context + 1
	over := "context"
	if cf.PoolTokens < cf.Context-1 {
		tokens, over = cf.PoolTokens, "pool"
	}
	unclear := func(format string, a ...any) (advisory.Truth, finding.Finding) {
		return advisory.Unknown, finding.New(finding.ProbeUnclear, finding.Low, n.Name, n.ID, "", "a prompt of %s tokens, over the %s: "+format, append([]any{finding.Thousands(tokens), over}, a...)...)
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	ids := strings.Repeat("10,", tokens)
	ids = "[" + ids[:len(ids)-1] + "]"
	path, body := "/generate", `{"input_ids":`+ids+`,"stream":false,"sampling_params":{"max_new_tokens":1,"temperature":0}`
	rid := randomID()
	switch {
	case cf.Engine == capacity.VLLM:
		model, _ := json.Marshal(n.Text(facts.Served))
		path, body = "/v1/completions", `{"model":`+string(model)+`,"prompt":`+ids+`,"max_tokens":1,"temperature":0`
	case decode != nil:
		u, err := url.Parse(n.ID)
		if err != nil {
			return unclear("%v", err)
		}
		host, _ := json.Marshal(u.Hostname())
		body += `,"rid":"` + rid + `","bootstrap_host":` + string(host) + `,"bootstrap_port":` + strconv.Itoa(n.Int(facts.BootstrapPort)) + `,"bootstrap_room":` + strconv.FormatUint(room(), 10)
	}
	body += "}"
	done := make(chan struct{})
	if decode != nil {
		dctx, stop := context.WithCancel(ctx)
		defer func() {
			// Decode may have reserved pages for a prompt that will never come: tell it, and do not wait for its answer.
			p.post(context.WithoutCancel(ctx), decode.ID, "/abort_request", `{"rid":"`+rid+`"}`, 2*time.Second)
			stop()
			<-done
		}()
		go func() {
			defer close(done)
			p.post(dctx, decode.ID, path, body, probeWait)
		}()
	}
	status, count, err := p.count(ctx, n.ID, path, body)
	switch {
	case err != nil:
		return unclear("no answer: %v", err)
	case status >= 400 && status < 500 && status != http.StatusUnauthorized && status != http.StatusForbidden && status != http.StatusNotFound:
		return advisory.False, finding.New(finding.ProbeSafe, finding.Info, n.Name, n.ID, "", "a prompt of %s tokens, over the %s, was refused with HTTP %d", finding.Thousands(tokens), over, status)
	case status == http.StatusOK && count >= 0 && count < tokens:
		return advisory.True, finding.New(finding.ProbeAffected, finding.High, n.Name, n.ID, "take the pair out of use, upgrade, and set the context no larger than the pool",
			"a prompt of %s tokens, over the %s, was answered HTTP 200 with prompt_tokens %s: the leg has not computed what it reports", finding.Thousands(tokens), over, finding.Thousands(count))
	case status == http.StatusOK && count >= tokens:
		return unclear("was taken whole: the limits that were read are not the engine's")
	}
	return unclear("HTTP %d", status)
}

// count posts and reads how many prompt tokens the answer claims; -1 if it does not say.
func (p prober) count(ctx context.Context, base, path, body string) (status, count int, err error) {
	resp, err := p.do(ctx, base, path, body)
	if err != nil {
		return 0, -1, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return resp.StatusCode, -1, err
	}
	var a struct {
		Meta struct {
			Prompt *int `json:"prompt_tokens"`
		} `json:"meta_info"`
		Usage struct {
			Prompt *int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(b, &a) == nil {
		for _, c := range []*int{a.Meta.Prompt, a.Usage.Prompt} {
			if c != nil {
				return resp.StatusCode, *c, nil
			}
		}
	}
	return resp.StatusCode, -1, nil
}

// post sends a request whose answer nobody reads.
func (p prober) post(ctx context.Context, base, path, body string, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	resp, err := p.do(ctx, base, path, body)
	if err != nil {
		return
	}
	resp.Body.Close()
}

func (p prober) do(ctx context.Context, base, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sluice-check")
	if p.o.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+p.o.APIKey)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	return resp, nil
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:])
	return "sluice-probe-" + hex.EncodeToString(b[:])
}

// room is a bootstrap room: 63 random bits, used once.
func room() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:]) >> 1
}
