package gateway

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/sluicekv/sluice/internal/gateway/legs"
)

// ExplainGuards prints what each guard compares, on which engine and at what cost, and what stays unseen.
func ExplainGuards(w io.Writer) error {
	if err := legs.Explain(w); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nBefore any leg is asked, on every engine:")
	fmt.Fprintln(w, "  admission     tokens of the prompt and of max_tokens <= the limit of a pair; by bytes if they decide, else by the engine's /tokenize")
	fmt.Fprintln(w, "  control       fields that pair legs, name memory or part caches never come from a client (always enforced)")
	fmt.Fprintln(w, "Beside the legs:")
	fmt.Fprintln(w, "  plausibility  prefill's answer takes at least an eighth of the time per token that this pair ever took (observes unless told otherwise)")
	fmt.Fprintln(w, "\nGuards that can observe (--mode, or the file's guards section):")
	for _, g := range Guards() {
		fmt.Fprintln(w, "  "+g)
	}
	fmt.Fprintln(w, "\nWhat the engines could still do unseen:")
	for _, r := range residual {
		fmt.Fprintf(w, "  %-14s %s\n", r[0], r[1])
	}
	return nil
}

// residual is what no guard here can see: it happens inside an engine that then says that all is well.
var residual = [][2]string{
	{"all", "a transfer that fails or is overwritten inside an engine, while both legs say the right counts"},
	{"all", "text that is wrong for another reason than another request's pages: weights, sampling, quantisation"},
	{"sglang", "decode's prompt_tokens are of decode's own copy of the prompt: equal counts prove what was asked for, not what was read"},
	{"vllm-*", "a first token that is as likely after another's prompt as after one's own; with the guard first-token off, whatever decode attended to"},
	{"vllm-*", "equal counts do not prove equal prompts; that is why a handle is used once, at once, by the attempt that got it"},
	{"vllm-nixl", "a decode that stands still until prefill's lease is over reads what is another's by then: prefill's counter of late reads shows it, where its /metrics can be read and hold.lease is less than the lease"},
	{"vllm-mooncake", "prefill says nothing about what it wrote: its count is all there is to compare"},
	{"plain", "one leg: nothing to compare with but the rules of the wire"},
	{"all", "a stream whose engine says its count only at the end, and that is longer than hold.bytes, begins before the comparison"},
}

// Log of the gateway.
func (g *Gateway) Log() *slog.Logger { return g.log }
