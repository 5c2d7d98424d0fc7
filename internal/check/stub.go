package check

import (
	"context"
	"io"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/finding"
	"github.com/sluicekv/sluice/internal/check/source"
)

func watch(context.Context, Options, io.Reader, io.Writer, io.Writer) int { return 2 }
func writeFit(io.Writer, Options, source.Inventory) error                 { return nil }
func probe(context.Context, []*facts.Node, source.Options) (map[string]advisory.Truth, []finding.Finding) {
	return nil, nil
}
