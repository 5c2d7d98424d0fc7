package worker

import (
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

func TestAPairAnswersFromTheTransferredPages(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	c := d.call(needle("QX7-PLUM-44", 300), tokens(11)).run()
	p, dec := c.end()
	if p.Verdict.Code != verdict.OK || dec.Verdict.Code != verdict.OK {
		t.Fatalf("prefill: %v\ndecode: %v", p.Verdict, dec.Verdict)
	}
	if got := c.text(); got != "QX7-PLUM-44" {
		t.Errorf("the reply is %q", got)
	}
	r.clean()
}
