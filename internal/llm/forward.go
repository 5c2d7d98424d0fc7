package llm

import (
	"math"

	"github.com/sluicekv/sluice/internal/kernel"
)

// layer takes the current rows through one block. In the last layer every row's KV is still stored, but only rows
// whose logits are wanted go on: the others' residuals are read by nobody.
func (r *CPU) layer(l int) {
	s, b := &r.step, &r.m.blocks[l]
	dim, q, kv, ff := r.m.cfg.Dim, r.m.cfg.Heads*r.m.cfg.HeadDim, r.m.cfg.KVHeads*r.m.cfg.HeadDim, r.m.cfg.FF
	s.layer, s.block = l, b
	few := l == len(r.m.blocks)-1 && len(s.outs) < s.rows

	r.normalize(b.attnNorm, l > 0, b.q.Quantized() || b.k.Quantized() || b.v.Quantized())
	n := s.rows
	toK := product{dst: r.k[:n*kv], acts: &r.hActs, mat: b.k}
	toV := product{dst: r.v[:n*kv], acts: &r.hActs, mat: b.v}
	if few {
		r.multiply(toK, toV)
		s.ropeQ, s.ropeK = false, true
		r.rows(r.jobs.store, kv*4)
		if len(s.outs) == 0 {
			return
		}
		r.compact(b.q.Quantized())
		n = s.rows
		r.multiply(product{dst: r.q[:n*q], acts: &r.hActs, mat: b.q})
		s.ropeQ, s.ropeK = true, false
		r.rows(r.jobs.store, q)
		s.reads = s.last
	} else {
		r.multiply(product{dst: r.q[:n*q], acts: &r.hActs, mat: b.q}, toK, toV)
		s.ropeQ, s.ropeK = true, true
		r.rows(r.jobs.store, q+kv*4)
		s.reads = s.all
	}

	r.attend()
	r.aActs.Set(r.a[:n*q], n, q)
	if b.o.Quantized() {
		r.rows(r.jobs.quantA, q)
	}
	r.multiply(product{dst: r.h[:n*dim], acts: &r.aActs, mat: b.o})

	r.normalize(b.ffnNorm, true, b.gate.Quantized() || b.up.Quantized())
	r.multiply(product{dst: r.gate[:n*ff], acts: &r.hActs, mat: b.gate}, product{dst: r.up[:n*ff], acts: &r.hActs, mat: b.up})
	r.gateActs.Set(r.gate[:n*ff], n, ff)
	s.quantize = b.down.Quantized()
	r.rows(r.jobs.swiglu, ff*4)
	r.multiply(product{dst: r.h[:n*dim], acts: &r.gateActs, mat: b.down})
}

// normalize adds the last product to the residual if add, and makes the next product's input of it.
func (r *CPU) normalize(w []float32, add, quantize bool) {
	s, dim := &r.step, r.m.cfg.Dim
	r.hActs.Set(r.h[:s.rows*dim], s.rows, dim)
	s.norm, s.add, s.quantize = w, add, quantize
	r.rows(r.jobs.norm, dim)
}

// compact moves the rows whose logits are wanted to the front; they are in ascending order.
func (r *CPU) compact(quantize bool) {
	s, dim, hd := &r.step, r.m.cfg.Dim, r.m.cfg.HeadDim
	for to, from := range s.outs {
		copy(r.x[to*dim:][:dim], r.x[from*dim:])
		copy(r.h[to*dim:][:dim], r.h[from*dim:])
		copy(r.turn[to*hd:][:hd], r.turn[from*hd:])
	}
	s.rows = len(s.outs)
	r.hActs.Set(r.h[:s.rows*dim], s.rows, dim)
	if quantize {
		r.hActs.Quantize(0, s.rows)
	}
}

// attend lets the rows of s.reads read their pages.
func (r *CPU) attend() {
	s, c := &r.step, r.m.cfg
	cost := 0
	for _, b := range s.reads {
		cost += b.rows * (b.pos + b.rows)
	}
	r.share(r.jobs.attend, len(s.reads)*c.KVHeads, cost*2*c.Heads*c.HeadDim)
}

// logits applies the output matrix to what is left of the rows.
func (r *CPU) logits(batch []Chunk) error {
	s, c := &r.step, r.m.cfg
	if len(s.outs) == 0 {
		return nil
	}
	n := s.rows
	r.normalize(r.m.outNorm, true, false)
	var bad []int
	for from := 0; from < n; from += logitRows {
		s.rows = min(logitRows, n-from)
		r.hActs.Set(r.h[from*c.Dim:][:s.rows*c.Dim], s.rows, c.Dim)
		if r.m.output.Quantized() {
			r.hActs.Quantize(0, s.rows)
		}
		stage := r.stage[:s.rows*c.Vocab]
		r.multiply(product{dst: stage, acts: &r.hActs, mat: r.m.output})
		for i := range s.rows {
			chunk := s.dst[from+i]
			row := stage[i*c.Vocab:][:c.Vocab]
			copy(batch[chunk].Logits, row)
			if !finite(row) {
				bad = append(bad, chunk)
			}
		}
	}
	if bad != nil {
		return &ChunkError{bad, ErrNotFinite}
	}
	return nil
}

func finite(x []float32) bool {
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&0x7fffffff)
	}
	return top < 0x7f800000
}

// The jobs.

func (r *CPU) doEmbed(_, item int) {
	s, dim, hd := &r.step, r.m.cfg.Dim, r.m.cfg.HeadDim
	from, to := s.span(item)
	for i := from; i < to; i++ {
		r.m.embed.Row(r.x[i*dim:][:dim], int(s.tokens[i]))
		kernel.RopeTable(r.turn[i*hd:][:hd], s.pos[i], r.m.freqs)
	}
}

func (r *CPU) doNorm(_, item int) {
	s, dim := &r.step, r.m.cfg.Dim
	from, to := s.span(item)
	x, h := r.x[from*dim:to*dim], r.h[from*dim:to*dim]
	if s.add {
		kernel.Add(x, h)
	}
	kernel.RMSNorm(h, x, s.norm, r.m.epsilon)
	if s.quantize {
		r.hActs.Quantize(from, to)
	}
}

func (r *CPU) doStore(_, item int) {
	s, hd := &r.step, r.m.cfg.HeadDim
	q, kv := r.m.cfg.Heads*hd, r.m.cfg.KVHeads*hd
	from, to := s.span(item)
	for i := from; i < to; i++ {
		turn := r.turn[i*hd:][:hd]
		if s.ropeQ {
			kernel.Rope(r.q[i*q:][:q], hd, turn)
		}
		if s.ropeK {
			k := r.k[i*kv:][:kv]
			kernel.Rope(k, hd, turn)
			kernel.StoreKV(s.slots[i], s.shapes[i], s.layer, k, r.v[i*kv:][:kv])
		}
	}
}

func (r *CPU) doAttend(thread, item int) {
	s, c := &r.step, r.m.cfg
	b := &s.reads[item/c.KVHeads]
	group := c.Heads / c.KVHeads
	head, width := item%c.KVHeads*group, c.Heads*c.HeadDim
	o, q := r.a[b.row*width:][:b.rows*width], r.q[b.row*width:][:b.rows*width]
	kernel.Attend(o, q, b.pages, b.shape, s.layer, c.Heads, b.pos, b.rows, head, head+group, &r.attScratch[thread])
}

func (r *CPU) doQuantA(_, item int) {
	from, to := r.step.span(item)
	r.aActs.Quantize(from, to)
}

func (r *CPU) doSwiGLU(_, item int) {
	from, to := r.step.span(item)
	ff := r.m.cfg.FF
	g := r.gate[from*ff : to*ff]
	kernel.SiLUMul(g, g, r.up[from*ff:to*ff])
	if r.step.quantize {
		r.gateActs.Quantize(from, to)
	}
}
