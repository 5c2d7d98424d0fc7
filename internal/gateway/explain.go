package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluicekv/sluice/internal/gateway/legs"
)

// ExplainGuards prints what each guard compares, on which engine, at what cost and in which mode, and what stays unseen.
func ExplainGuards(w io.Writer, modes Modes) error {
	if err := modes.check(); err != nil {
		return err
	}
	if err := legs.Explain(w); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nGUARDS AND THEIR MODES")
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "GUARD\tMODE\tENGINES\tWHAT\tCOST")
	for _, g := range beside {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", g[0], g.mode(modes), g[1], g[2], g[3])
	}
	for n := range modal.All {
		fmt.Fprintf(tw, "%s\t%s\t%s\t(above)\t%s\n", n, modes.Of(n.String()), strings.Join(comparing(n), ", "), n.Cost())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "A mode is observe or enforce (--mode, or the file's guards section); "+strings.Join(slices.Sorted(maps.Keys(optional)), " and ")+" can be off too, and have their own default.")
	fmt.Fprintln(w, "What they cost in time is printed by: go test -run none -bench Cost ./internal/gateway/... ./internal/jsonedit")
	fmt.Fprintln(w, "\nWhat the engines could still do unseen:")
	for _, r := range residual {
		fmt.Fprintf(w, "  %-14s %s\n", r[0], r[1])
	}
	return nil
}

// beyond the legs: guard, engines, what it compares, what it costs.
type beyond [4]string

var beside = []beyond{
	{guardAdmission, "all but native", "before any leg is asked: tokens of the prompt and of max_tokens <= the limit of a pair; by bytes, ids or tokenizer.json if they decide, else by the engine's /tokenize",
		"a look at the prompt's bytes; near the limit a count, here or at an engine"},
	{"control", "all but native", "fields, headers and paths that pair legs, name memory or part caches never come from a client, in any spelling, wherever an engine unpacks them",
		"one strict pass over the body, which is needed anyway"},
	{guardPlausibility, "two legs", "prefill's answer takes at least an eighth of the time that this pair's prefill, to itself, ever took for a token that it did not have cached",
		"one comparison a reply"},
}

// mode of a guard beyond the legs: control has none to choose.
func (b beyond) mode(m Modes) string {
	if b[0] == "control" {
		return "always enforced"
	}
	return m.Of(b[0]).String()
}

// comparing are the engines whose replies must agree in n.
func comparing(n legs.Need) (names []string) {
	for e := legs.VLLMNixl; e <= legs.Plain; e++ {
		if e.Compares(n) {
			names = append(names, e.String())
		}
	}
	return names
}

// residual is what no guard here can see: it happens inside an engine that then says that all is well.
var residual = [][2]string{
	{"all", "a transfer that fails or is overwritten inside an engine, while both legs say the right counts"},
	{"all", "text that is wrong for another reason than another request's pages: weights, sampling, quantisation"},
	{"sglang", "decode's prompt_tokens are of decode's own copy of the prompt: equal counts prove what was asked for, not what was read"},
	{"vllm-*", "a first token that is as likely after another's prompt as after one's own; with the guard first-token off, whatever decode attended to"},
	{"vllm-*", "equal counts do not prove equal prompts; that is why a handle is used once, at once, by the attempt that got it"},
	{"vllm-nixl", "a decode that outlasts prefill's lease, where prefill's /metrics cannot be read or hold.lease is not less than the lease"},
	{"vllm-mooncake", "prefill says nothing about what it wrote: its count is all there is to compare"},
	{"plain", "one leg: nothing to compare with but the rules of the wire"},
	{"all", "a stream whose engine says its count only at the end, and that is longer than hold.bytes, begins before the comparison"},
}

// Log of the gateway.
func (g *Gateway) Log() *slog.Logger { return g.log }
