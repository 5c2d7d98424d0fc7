package llm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/page"
)

// ErrRefused is wrapped by every refusal of a model that cannot be run; the text says why.
var ErrRefused = errors.New("llm: this model cannot be run")

// Config is the shape of a model.
type Config struct {
	Name    string // as the file gives it; may be empty
	Dim     int    // width of the residual
	Layers  int
	Heads   int // query heads
	KVHeads int
	HeadDim int
	FF      int // width of the feed-forward part
	Vocab   int
	Context int     // tokens that the model was made for
	EOS     []int32 // the tokens that end a reply, ascending; at least one
}

// Model is weights, packed for the kernels, and what else the forward pass needs. It is read-only after Load and shared
// by any number of Runners; the file may be closed.
type Model struct {
	cfg         Config
	epsilon     float32
	freqs       []float64 // radians a position, for each pair of a head's dims
	embed       *kernel.Mat
	blocks      []block
	outNorm     []float32
	output      *kernel.Mat // embed, when tied
	bytes       int64
	fingerprint [32]byte
}

// block is one layer's weights. Rows of a matrix are its outputs.
type block struct {
	attnNorm, ffnNorm []float32   // [Dim]
	q, k, v, o        *kernel.Mat // [Heads*HeadDim x Dim], [KVHeads*HeadDim x Dim] twice, [Dim x Heads*HeadDim]
	gate, up, down    *kernel.Mat // [FF x Dim] twice, [Dim x FF]
}

// families know how to read a file of their architecture: the checked shape, and the wish list of tensors.
var families = map[string]func(*reading) *Model{"llama": readLlama}

// Load checks a file, and only then takes memory and packs its weights. It refuses, with the reason, what it could not
// run exactly: ErrRefused. Other errors come from reading the file.
func Load(f *gguf.File) (*Model, error) {
	r, m, err := read(f)
	if err != nil {
		return nil, err
	}
	var bytes atomic.Int64
	var next atomic.Int32
	errs := make([]error, min(len(r.wishes), runtime.GOMAXPROCS(0)))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= len(r.wishes) {
					return
				}
				var size int
				size, errs[i] = r.wishes[n].load(f)
				bytes.Add(int64(size))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if m.output == nil {
		m.output = m.embed
	}
	m.bytes = bytes.Load()
	m.fingerprint, err = f.Fingerprint()
	return m, err
}

// EstimateBytes says how much memory Load would take for the weights, at most. It refuses what Load refuses.
func EstimateBytes(f *gguf.File) (int64, error) {
	r, _, err := read(f)
	if err != nil {
		return 0, err
	}
	n := int64(0)
	for _, w := range r.wishes {
		n += w.bytes()
	}
	return n, nil
}

func read(f *gguf.File) (*reading, *Model, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	family, ok := families[arch]
	if !ok {
		var names []string
		for n := range families {
			names = append(names, n)
		}
		slices.Sort(names)
		return nil, nil, fmt.Errorf("%w: its architecture is %q; %s can be run", ErrRefused, arch, strings.Join(names, ", "))
	}
	r := &reading{f: f, arch: arch, taken: map[string]bool{}}
	m := family(r)
	r.leftovers()
	if r.err != nil {
		return nil, nil, r.err
	}
	return r, m, nil
}

// Config returns the shape.
func (m *Model) Config() Config {
	c := m.cfg
	c.EOS = slices.Clone(c.EOS)
	return c
}

// WeightBytes is the memory that the weights take.
func (m *Model) WeightBytes() int64 { return m.bytes }

// Fingerprint of the file that the model came from.
func (m *Model) Fingerprint() [32]byte { return m.fingerprint }

// Geometry of the pages that hold this model's KV.
func (m *Model) Geometry(pageTokens int) page.Geometry { return m.cfg.geometry(pageTokens) }

func (c Config) geometry(pageTokens int) page.Geometry {
	return page.Geometry{
		Tokens: uint32(pageTokens), Layers: uint32(c.Layers), KVHeads: uint32(c.KVHeads), HeadDim: uint32(c.HeadDim),
		Layout: page.LayoutPairs16,
	}
}
