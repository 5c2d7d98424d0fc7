package check

import (
	"fmt"
	"io"

	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/fit"
	"github.com/sluicekv/sluice/internal/check/source"
)

// writeFit writes the derivation for each node.
func writeFit(w io.Writer, o Options, inv source.Inventory) error {
	var shape *fit.Shape
	if o.Model != "" {
		s, err := fit.Load(o.Model)
		if err != nil {
			return usage("--model: %v", err)
		}
		shape = &s
	}
	ns := nodesOf(inv)
	if len(ns) == 0 {
		ns = []*facts.Node{{Name: "no node"}}
	}
	for _, n := range ns {
		in := fit.FromNode(n, o.Context)
		in.Shape = shape
		p := fit.Derive(in)
		fmt.Fprintf(w, "\nfit %s\n", n.Name)
		if len(p.Lines) == 0 {
			fmt.Fprintln(w, "  nothing can be derived: neither the pool nor a wanted context is known")
		}
		for _, l := range p.Lines {
			fmt.Fprintf(w, "  %s\n", l)
		}
		for _, x := range p.Options {
			mark := "too little"
			if x.Fits {
				mark = "fits"
			}
			fmt.Fprintf(w, "  %-10s %s: %s\n", mark, x.Flag, x.How)
		}
	}
	return nil
}
