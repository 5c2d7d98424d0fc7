package kernel

import (
	"fmt"
	"math"
	"unsafe"
)

// Tile is the run of absolute positions that attention takes at a time.
const Tile = 64

// skipBelow: a tile whose best score is this far below a row's best so far adds less than one part in 10^24, and is skipped.
const skipBelow = 60

// AttnScratch is what one thread needs during Attend. The zero value is ready; it is not for two threads at once.
type AttnScratch struct {
	q      []float32 // the queries of one KV head, scaled: [row][head of the group][HeadDim]
	rows   []attnRow // of the same order
	s      [maxTriple][Tile]float32
	chunks tileChunks
}

// attnRow is the running softmax of one query of one head.
type attnRow struct {
	max, sum float32
	count    int      // keys visible in the row's newest tile
	o        *float32 // [HeadDim], not yet divided by sum
}

// maxTriple is the number of queries that share each key and value loaded.
const maxTriple = 3

// tileChunks are the addresses of a tile: groups of 16 keys, as K [HeadDim/2][16][2] and V [16][HeadDim].
type tileChunks struct {
	k, v [Tile / 16]unsafe.Pointer
}

// Attend computes causal attention of rows queries, at positions pos0 to pos0+rows-1, for query heads head0 to head1: each
// reads K and V of layer at positions 0 to its own. q and o are [rows][heads][HeadDim]; query head h reads KV head
// h/(heads/KVHeads). pages[i] holds positions i*Tokens to (i+1)*Tokens-1; K and V of every position up to the last query's
// must have been stored. Slots after it are not read into any result, whatever they hold. Threads share a call by rows or by heads.
//
// Per query and head the operations are fixed: scaled query times key, even dims and odd dims in one chain each; tiles of
// 64 absolute positions from the newest to the oldest, an online softmax over each; values added key by key in order.
func Attend(o, q []float32, pages []Page, sh Shape, layer, heads, pos0, rows, head0, head1 int, scr *AttnScratch) {
	sh.check()
	hd := sh.HeadDim
	switch {
	case heads <= 0 || heads%sh.KVHeads != 0 || head0 < 0 || head1 < head0 || head1 > heads:
		panic(fmt.Sprintf("kernel: attend with heads %d to %d of %d over %d KV heads", head0, head1, heads, sh.KVHeads))
	case layer < 0 || layer >= sh.Layers:
		panic(fmt.Sprintf("kernel: attend in layer %d of %d", layer, sh.Layers))
	case pos0 < 0 || len(pages)*sh.Tokens < pos0+rows:
		panic(fmt.Sprintf("kernel: attend to positions %d to %d over %d pages of %d", pos0, pos0+rows, len(pages), sh.Tokens))
	case len(q) != rows*heads*hd || len(o) != rows*heads*hd:
		panic(fmt.Sprintf("kernel: attend %d queries and %d outputs for %d rows of %d heads of %d", len(q), len(o), rows, heads, hd))
	}
	used := (pos0 + rows + sh.Tokens - 1) / sh.Tokens
	for i, p := range pages[:used] {
		if p.base == nil {
			panic(fmt.Sprintf("kernel: attend over page %d of %d, which is not there", i, len(pages)))
		}
	}
	group := heads / sh.KVHeads
	for rows > 0 {
		// Rows whose newest tile is the same go together.
		n := min(rows, Tile-pos0%Tile)
		for h := head0; h < head1; {
			end := min(head1, (h/group+1)*group)
			attendBlock(o, q, pages, sh, layer, h/group, heads, h, end, pos0, n, scr)
			h = end
		}
		o, q = o[n*heads*hd:], q[n*heads*hd:]
		pos0, rows = pos0+n, rows-n
	}
}

// attendBlock does rows of one tile for query heads [h0, h1) of one KV head.
func attendBlock(o, q []float32, pages []Page, sh Shape, layer, kvHead, heads, h0, h1, pos0, rows int, scr *AttnScratch) {
	hd := sh.HeadDim
	scr.begin(o, q, hd, heads, h0, h1, pos0, rows)
	kOff := sh.kBlock(layer, kvHead)
	newest := pos0 / Tile
	for t := newest; t >= 0; t-- {
		keys := Tile
		if t == newest {
			keys = (pos0+rows-1)%Tile + 1
		}
		for c := 0; c*16 < keys; c++ {
			pos := t*Tile + c*16
			slot := pos % sh.Tokens
			k := unsafe.Add(pages[pos/sh.Tokens].base, kOff)
			scr.chunks.k[c] = unsafe.Add(k, slot*hd*2)
			scr.chunks.v[c] = unsafe.Add(k, (sh.Tokens+slot)*hd*2)
		}
		for i := 0; i < len(scr.rows); i += maxTriple {
			scr.attendTile(i, min(maxTriple, len(scr.rows)-i), hd, t == newest)
		}
	}
	for i := range scr.rows {
		r := &scr.rows[i]
		inv := 1 / r.sum
		out := unsafe.Slice(r.o, hd)
		for d := range out {
			out[d] *= inv
		}
		r.o = nil
	}
}

// begin scales the queries and clears the outputs.
func (a *AttnScratch) begin(o, q []float32, hd, heads, h0, h1, pos0, rows int) {
	n := rows * (h1 - h0)
	if cap(a.q) < n*hd {
		a.q = make([]float32, n*hd)
	}
	if cap(a.rows) < n {
		a.rows = make([]attnRow, n)
	}
	a.q, a.rows = a.q[:n*hd], a.rows[:n]
	scale := float32(1 / math.Sqrt(float64(hd)))
	i := 0
	for r := range rows {
		for h := h0; h < h1; h++ {
			at := (r*heads + h) * hd
			for d, v := range q[at:][:hd] {
				a.q[i*hd+d] = v * scale
			}
			out := o[at:][:hd]
			clear(out)
			a.rows[i] = attnRow{max: float32(math.Inf(-1)), count: (pos0+r)%Tile + 1, o: &out[0]}
			i++
		}
	}
}

// attendTile adds one tile to queries i to i+n of the block.
func (a *AttnScratch) attendTile(i, n, hd int, newest bool) {
	rows := a.rows[i : i+n]
	keys := Tile
	if newest {
		keys = rows[n-1].count // rows are in order of position: the last sees most
	}
	a.scores(i, n, hd, keys)
	// Rows that need this tile, gathered so that equals share the loads of V.
	var use [maxTriple]valueRow
	n = 0
	for j := range rows {
		r := &rows[j]
		count := Tile
		if newest {
			count = r.count
		}
		corr, ok := r.softmax(&a.s[j], count)
		if ok {
			use[n] = valueRow{p: &a.s[j][0], o: r.o, corr: corr, count: int32(count)}
			n++
		}
	}
	for u := 0; u < n; {
		e := u + 1
		for e < n && use[e].count == use[u].count {
			e++
		}
		a.addValues(use[u:e], hd)
		u = e
	}
}

// valueRow is one row of a tile's weights and where its values go; the assembly reads it.
type valueRow struct {
	p, o  *float32 // weights [count], output [HeadDim]
	corr  float32  // what the output is multiplied by first
	count int32
}

// scores of n queries against the first keys of the tile, into a.s. Whole groups of 16 are computed; the caller counts.
func (a *AttnScratch) scores(i, n, hd, keys int) {
	if !avx2 {
		for j := range n {
			scoresGo(&a.s[j], a.q[(i+j)*hd:][:hd], &a.chunks.k, keys)
		}
		return
	}
	s, q, k, groups := &a.s[0][0], &a.q[i*hd:][:n*hd][0], &a.chunks.k[0], (keys+15)/16
	switch n {
	case 1:
		scoresx1(s, q, hd*4, k, groups, hd/2)
	case 2:
		scoresx2(s, q, hd*4, k, groups, hd/2)
	case 3:
		scoresx3(s, q, hd*4, k, groups, hd/2)
	}
}

// softmax turns the first count scores into weights exp(s-max), updates the running maximum and sum, and says what the
// earlier sum must be multiplied by; or says that the tile is too far below to count.
func (r *attnRow) softmax(s *[Tile]float32, count int) (corr float32, ok bool) {
	if !avx2 {
		return softmaxGo(r, s, count)
	}
	for j := count; j < Tile; j++ { // whatever an unwritten slot gave is gone before anything reads it
		s[j] = negInf
	}
	ok = softmaxAVX2(&s[0], r, &corr)
	return corr, ok
}

var negInf = float32(math.Inf(-1))

// addValues does o = o*corr + p V for up to three rows with the same count of keys.
func (a *AttnScratch) addValues(rows []valueRow, hd int) {
	v, count := &a.chunks.v, int(rows[0].count)
	if !avx2 {
		for _, r := range rows {
			addValuesGo(unsafe.Slice(r.o, hd), unsafe.Slice(r.p, count), r.corr, v)
		}
		return
	}
	switch len(rows) {
	case 1:
		valuesx1(&rows[0], &v[0], count, hd)
	case 2:
		valuesx2(&rows[0], &v[0], count, hd)
	case 3:
		valuesx3(&rows[0], &v[0], count, hd)
	}
}

func scoresGo(s *[Tile]float32, q []float32, k *[Tile / 16]unsafe.Pointer, keys int) {
	for c := 0; c*16 < keys; c++ {
		group := unsafe.Slice((*[16][2]uint16)(k[c]), len(q)/2)
		var even, odd [16]float32
		for i := range group {
			q0, q1 := q[2*i], q[2*i+1]
			for j, h := range &group[i] {
				even[j] += float32(q0 * f16to(h[0]))
				odd[j] += float32(q1 * f16to(h[1]))
			}
		}
		for j := range even {
			s[c*16+j] = even[j] + odd[j]
		}
	}
}

func softmaxGo(r *attnRow, s *[Tile]float32, count int) (corr float32, ok bool) {
	top := s[0]
	for _, v := range s[1:count] {
		top = max(top, v)
	}
	if top < r.max-skipBelow {
		return 0, false
	}
	top = max(top, r.max)
	var lanes [8]float32
	for j := range s {
		if j < count {
			s[j] = expGo(s[j] - top)
		} else {
			s[j] = 0
		}
		lanes[j%8] += s[j]
	}
	corr = expGo(r.max - top)
	r.max, r.sum = top, float32(r.sum*corr)+sumLanes(&lanes)
	return corr, true
}

// sumLanes adds eight partial sums in the order that halving a vector register gives.
func sumLanes(l *[8]float32) float32 {
	return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

func addValuesGo(o, p []float32, corr float32, v *[Tile / 16]unsafe.Pointer) {
	for d := range o {
		o[d] *= corr
	}
	for j, w := range p {
		row := unsafe.Slice((*uint16)(v[j/16]), 16*len(o))[j%16*len(o):][:len(o)]
		for d, h := range row {
			o[d] += float32(w * f16to(h))
		}
	}
}
