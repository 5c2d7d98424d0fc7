package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/sluicekv/sluice/bench/peer"
)

// colors of the gateways in the chart; ours is the one that stands out.
var colors = map[string]string{peer.SMG: "#9aa7b1", peer.SGLangRouter: "#c4ccd2", peer.VLLMRouter: "#7d8b97", peer.Sluice: "#d1495b"}

// writeChart draws processor time for each load and gateway as bars on a logarithmic scale, a panel for each engine, as one SVG.
func writeChart(path string, rows []row) error {
	const (
		left, barHeight, gap, panelGap, width = 190, 9, 8, 46, 860
		scaleWidth                            = width - left - 90
	)
	var engines []string
	low, high := math.Inf(1), 0.0
	for _, r := range rows {
		if r.Gateway == "direct" || r.CPU <= 0 {
			continue
		}
		if !slices.Contains(engines, r.Engine) {
			engines = append(engines, r.Engine)
		}
		low, high = min(low, r.CPU), max(high, r.CPU)
	}
	if len(engines) == 0 {
		return fmt.Errorf("there is nothing to draw")
	}
	low = math.Pow(10, math.Floor(math.Log10(low)))
	x := func(v float64) float64 { return scaleWidth * math.Log10(v/low) / math.Log10(high/low) }
	var b strings.Builder
	y := 40
	for _, e := range engines {
		fmt.Fprintf(&b, `<text x="8" y="%d" class="h">%s</text>`, y, e)
		seen := map[string]bool{}
		at := left
		for _, r := range rows {
			if r.Engine == e && r.Gateway != "direct" && !seen[r.Gateway] {
				seen[r.Gateway] = true
				fmt.Fprintf(&b, `<rect x="%d" y="%d" width="9" height="9" fill="%s"/><text x="%d" y="%d">%s</text>`, at, y-9, colors[r.Gateway], at+13, y, r.Gateway)
				at += 110
			}
		}
		y += 10
		last := ""
		for _, r := range rows {
			if r.Engine != e || r.Gateway == "direct" || r.CPU <= 0 {
				continue
			}
			if name := (load{r.Size, r.At, r.Stream}).String(); name != last {
				y += gap
				fmt.Fprintf(&b, `<text x="%d" y="%d" class="r">%s</text>`, left-8, y+barHeight, name)
				last = name
			}
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d" class="v">%.3g</text>`,
				left, y, max(x(r.CPU), 1), barHeight-1, colors[r.Gateway], left+x(r.CPU)+4, y+barHeight-1, r.CPU)
			y += barHeight
		}
		y += panelGap
	}
	svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11"><style>text{fill:#333}.h{font-size:15px;font-weight:bold}.r{text-anchor:end}.v{font-size:8.5px;fill:#666}</style><rect width="100%%" height="100%%" fill="#fff"/><text x="8" y="18">Processor time of the gateway, ms a request (shorter is better; logarithmic)</text>%s</svg>`+"\n",
		width, y, b.String())
	return os.WriteFile(path, []byte(svg), 0o644)
}
