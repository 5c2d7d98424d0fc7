package source

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// maxStreams bounds the nodes kept of one log; more is somebody else's file.
const maxStreams = 20000

// bootGap is the least time between two starts of one engine; summary lines closer than that are of two nodes.
const bootGap = 5 * time.Second

// logScan reads start-up logs in one pass: SGLang and vLLM, several nodes, ranks and boots.
type logScan struct {
	file    string // as named in sources
	node    string // name of the node if the log names none
	id      string
	streams map[string]*stream
	order   []*stream
	who     string // set by "==> file <==" and kept until the next
	lines   int
	bytes   int64
	hits    int    // lines with a fact
	cut     int    // first cut line
	open    int    // the last line, if it ends in a number and has no line end
	tail    string // the end of it
	pending bool   // a line was cut in pieces by a collector, and its last piece has not come
	pieces  []byte // what came of it
	batches int    // batch lines that were looked at for the role
}

// stream is what one writer wrote: usually one node, several if logs were put one behind the other.
type stream struct {
	who   string
	nodes []*scanNode
}

// scanNode is a node while its log is read.
type scanNode struct {
	*facts.Node
	engine   string
	args     facts.Source // where the argument list was seen
	role     string
	place    string         // host:port:node_rank of the arguments
	pools    map[string]int // summary lines seen, by rank
	poolAt   time.Time      // of the last summary line
	argsAt   time.Time      // of the start
	said     map[string]int // their pools, by rank
	caches   map[string]int // cache lines seen, by full rank
	blocks   int            // vLLM: blocks without a page size
	blocksAt facts.Source   //
	conc     float64        // vLLM: maximum concurrency
	mixed    bool
	eventTP  map[string]string // the rank whose lines are counted, by event
}

func newLogScan(file, id, node string) *logScan {
	return &logScan{file: file, id: id, node: node, streams: map[string]*stream{}}
}

// scan reads all of r.
func (s *logScan) scan(r io.Reader) error {
	err := eachLine(r, s.line)
	return err
}

func (s *logScan) line(b []byte, no int, cut, last bool) {
	if last && len(b) > 0 && (digit(b[len(b)-1]) || b[len(b)-1] == ',') {
		s.open, s.tail = no, string(b[max(0, len(b)-48):])
	}
	s.lines = no
	s.bytes += int64(len(b)) + 1
	if cut && s.cut == 0 {
		s.cut = no
	}
	if piece, more, ok := partial(b); ok || s.pending {
		if b = s.join(b, piece, more, ok); b == nil {
			return
		}
	}
	if dull(b) {
		s.batch(b)
		return
	}
	b = stripANSI(b)
	if h, ok := bytes.CutPrefix(b, []byte("==> ")); ok {
		if name, ok := bytes.CutSuffix(h, []byte(" <==")); ok {
			s.who = stem(string(name))
			return
		}
	}
	if !telling.any(b) {
		return
	}
	who, rest := carrier(b)
	if who == "" {
		who = s.who
	}
	st := s.stream(who)
	if st == nil {
		return
	}
	at := facts.Source{Name: s.file, Line: no}
	for len(rest) > 0 { // a list of answers, or a log whose line ends were lost, has several summaries in one line
		part := rest[:nextSummary(rest)]
		rest = rest[len(part):]
		if s.metric(st, part, at) || s.sglang(st, part, at) || s.vllm(st, part, at) || s.events(st, part, at) {
			s.hits++
		}
	}
}

// metric reads a line of /metrics that was put behind a log.
func (s *logScan) metric(st *stream, b []byte, at facts.Source) bool {
	end := bytes.IndexAny(b[:min(len(b), 100)], "{ ")
	switch {
	case end < 0:
		return false
	case bytes.HasPrefix(b, []byte("sglang:")):
		sglangMetric(s.current(st, "sglang").Node, string(b[len("sglang:"):end]), b, at)
	case bytes.HasPrefix(b, []byte("vllm:")):
		vllmMetric(s.current(st, "vllm").Node, string(b[len("vllm:"):end]), b, at)
	default:
		return false
	}
	return true
}

// summaries are the words of which a line has one each; a second one is another rank's or node's.
var summaries = [][]byte{[]byte("max_total_num_token"), []byte("KV cache size:")}

// nextSummary is where the second summary in b begins, len(b) if there is none.
func nextSummary(b []byte) int {
	end := len(b)
	for _, w := range summaries {
		i := bytes.Index(b, w)
		if i < 0 {
			continue
		}
		if j := bytes.Index(b[i+len(w):], w); j >= 0 {
			end = min(end, i+len(w)+j)
		}
	}
	return end
}

// dull recognises the lines that a busy engine writes all day, without looking further: batches, accesses, statistics.
func dull(b []byte) bool {
	if len(b) < 12 {
		return true
	}
	w := b[:min(len(b), 320)]
	for _, d := range everyday {
		if bytes.Contains(w, d) {
			return true
		}
	}
	return false
}

// batch takes the role from the first batch lines: only the legs of a pair count what waits for the other.
func (s *logScan) batch(b []byte) {
	const enough = 100_000
	if s.batches >= enough || !bytes.Contains(b[:min(len(b), 160)], []byte("batch")) {
		return
	}
	s.batches++
	role := ""
	switch {
	case bytes.Contains(b, []byte("bootstrap-req:")), bytes.Contains(b, []byte("#unbootstrapped-req:")):
		role = "prefill"
	case bytes.Contains(b, []byte("#prealloc-req:")), bytes.Contains(b, []byte("#transfer-req:")):
		role = "decode"
	default:
		return
	}
	who, _ := carrier(stripANSI(b))
	if who == "" {
		who = s.who
	}
	st := s.stream(who)
	if st == nil {
		return
	}
	if n := s.current(st, "sglang"); n.Text(facts.Role) == "" {
		at := facts.Source{Name: s.file, Line: s.lines}
		n.Put(facts.Role, role, at, facts.Part)
		n.Put(facts.PD, "true", at, facts.Part)
	}
}

// partial recognises a piece of a line that a collector has cut: CRI's tag P, and docker's entry without a line end.
func partial(b []byte) (piece []byte, more, ok bool) {
	if len(b) > 36 && b[4] == '-' && b[10] == 'T' {
		head := b[:min(len(b), 60)]
		for _, tag := range [...]string{" stdout ", " stderr "} {
			if i := bytes.Index(head, []byte(tag)); i > 0 && i+len(tag)+2 <= len(b) && b[i+len(tag)+1] == ' ' {
				return b[i+len(tag)+2:], b[i+len(tag)] == 'P', b[i+len(tag)] == 'P'
			}
		}
	}
	if bytes.HasPrefix(b, []byte(`{"log":"`)) && !bytes.Contains(b, []byte(`\n","`)) && bytes.Contains(b, []byte(`","stream":"`)) &&
		bytes.Contains(b, []byte(`","time":"`)) && !bytes.Contains(b, []byte(`"kubernetes"`)) && !bytes.Contains(b, []byte(`"_p"`)) && !bytes.Contains(b, []byte(`"logtag"`)) {
		if _, r, ok := unwrapJSON(b); ok {
			return r, true, true
		}
	}
	return nil, false, false
}

// join collects the pieces of a line; nil until the last one has come. ok says that b is a piece with more to follow.
func (s *logScan) join(b, piece []byte, more, ok bool) []byte {
	if !ok { // the last piece, or another line
		if piece == nil {
			if _, r, isJSON := unwrapJSON(b); isJSON && len(b) > 0 && b[0] == '{' {
				piece = r
			} else {
				piece = b
			}
		}
	}
	if room := MaxLine - len(s.pieces); room > 0 {
		s.pieces = append(s.pieces, piece[:min(len(piece), room)]...)
	}
	if ok && more {
		s.pending = true
		return nil
	}
	whole := bytes.Clone(s.pieces)
	s.pieces, s.pending = s.pieces[:0], false
	return whole
}

var everyday = [][]byte{[]byte("batch, #"), []byte("HTTP/1."), []byte("throughput: ")}

// telling are the pieces of which each line with a fact has at least one. They are the ones that the readers of lines
// look for; a piece that is missing here is a line that is never read.
var telling = newAutomaton(append([]string{
	"max_total_num_token", "server_args", "#tokens:", "_layer_tokens=", "memory calculation", "KV pool holds ", "chunk cache for decode server",
	"Load weight", "Using KV cache dtype: ", "hybrid_swa=True", "hybrid_ssm=True", "Memory pool end", "fired up and ready", "sglang", "SGLang",
	"KV cache size:", " blocks: ", "non-default args", "args: Namespace(", "Overriding num_gpu_blocks", "max seq len (", "engine (v",
	"vLLM API server version", "█", "max model len ", "reduced from ", "vailable KV cache memory:", "data type to store kv cache",
	"attention block size to ", "startup complete", "Starting vLLM server on", "Development endpoints are enabled", "/collective_rpc, Methods: ",
	"/v1/models, Methods: ", "Initializing NIXL ", "NIXL compatibility check passed", "vllm", "aximum concurrency for ", "KV Transfer metrics:", "anary", "max_seq_len=",
}, eventWords()...))

func eventWords() (ws []string) {
	for _, e := range sglangEvents {
		ws = append(ws, e.needle)
	}
	for _, e := range vllmEvents {
		ws = append(ws, e.needle)
	}
	return ws
}

func (s *logScan) stream(who string) *stream {
	st := s.streams[who]
	if st == nil {
		if len(s.streams) >= maxStreams {
			return nil
		}
		st = &stream{who: who}
		s.streams[who] = st
		s.order = append(s.order, st)
	}
	return st
}

// current is the node that a line of st is about; it is made if there is none.
func (s *logScan) current(st *stream, engine string) *scanNode {
	if len(st.nodes) == 0 {
		return s.begin(st, engine)
	}
	n := st.nodes[len(st.nodes)-1]
	if n.engine == "" {
		n.engine = engine
	}
	return n
}

func (s *logScan) begin(st *stream, engine string) *scanNode {
	name := s.node
	if st.who != "" {
		name = st.who
	}
	n := &scanNode{Node: &facts.Node{Name: name}, engine: engine, pools: map[string]int{}, said: map[string]int{}, caches: map[string]int{}}
	st.nodes = append(st.nodes, n)
	return n
}

// newBoot forgets what the last start said, keeping its numbers for the report.
func (s *logScan) newBoot(n *scanNode, at facts.Source) {
	pool := n.Int(facts.Pool)
	n.Boots = append(n.Boots, facts.Boot{At: n.args, Pool: pool, Context: n.Int(facts.Context), Version: n.Text(facts.Version)})
	n.Facts, n.Starts, n.Events, n.Whole = nil, false, nil, false
	n.pools, n.said, n.caches = map[string]int{}, map[string]int{}, map[string]int{}
	n.blocks, n.conc, n.poolAt = 0, 0, time.Time{}
	n.args = at
	n.MinVer, n.MaxVer = "", ""
}

// opening is called at an argument list: it finds or makes the node that starts here. place tells nodes apart.
func (s *logScan) opening(st *stream, engine, role, place string, t time.Time, at facts.Source) *scanNode {
	for i := len(st.nodes) - 1; i >= 0; i-- {
		n := st.nodes[i]
		switch {
		case n.args == (facts.Source{}) && i == len(st.nodes)-1 && n.pools[""] == 0 && len(n.pools) == 0:
			// Lines before the arguments (a version, a banner) belong to this start.
			n.args, n.argsAt, n.role, n.place, n.engine = at, t, role, place, engine
			return n
		case n.engine == engine && n.role == role && n.place == place && !n.before(t):
			s.newBoot(n, at)
			n.argsAt = t
			st.nodes = append(append(st.nodes[:i], st.nodes[i+1:]...), n) // it is the one that writes now
			return n
		}
	}
	n := s.begin(st, engine)
	n.args, n.argsAt, n.role, n.place = at, t, role, place
	return n
}

// before reports whether a start at t cannot be of the node that said its pool at last: time does not go back. Logs of
// nodes alike that were put one behind the other show it. The very same time tells nothing: it is a log that was copied.
func (n *scanNode) before(t time.Time) bool {
	return !t.IsZero() && !n.poolAt.IsZero() && n.poolAt.Sub(t) > bootGap && !t.Equal(n.argsAt)
}

// summary is called at a line that states pool and context of one rank; it settles which node the line is about.
func (s *logScan) summary(st *stream, engine, rank string, pool int, t time.Time, at facts.Source) *scanNode {
	n := s.current(st, engine)
	if n.pools[rank] == 0 {
		return n
	}
	// A rank says this once a start. Far apart, or with "ready" in between, it is another start of the same node; close
	// together, or with nothing that tells, it is another node.
	if n.said[rank] == pool && (t.IsZero() && !n.Starts || !t.IsZero() && t.Equal(n.poolAt)) {
		return n // the same line twice, as when a stream and a file are collected together
	}
	near := !t.IsZero() && !n.poolAt.IsZero() && t.Sub(n.poolAt).Abs() < bootGap
	if near || t.IsZero() && !n.Starts {
		for i := len(st.nodes) - 2; i >= 0; i-- { // two nodes write into one stream and one still waits for its line
			if o := st.nodes[i]; len(o.pools) == 0 && o.engine == engine {
				o.mixed, n.mixed = true, true
				return o
			}
		}
		return s.begin(st, engine)
	}
	args, whole := n.args, n.Whole
	var keep []facts.Fact
	for _, f := range n.Facts {
		if f.Weight == facts.Args {
			keep = append(keep, f)
		}
	}
	s.newBoot(n, at)
	n.args, n.Facts, n.Whole = args, keep, whole
	return n
}

// finish turns the scan into nodes.
func (s *logScan) finish() (nodes []*facts.Node) {
	for _, st := range s.order {
		for i, n := range st.nodes {
			s.settle(n)
			if len(n.Facts) == 0 && len(n.Events) == 0 {
				continue
			}
			n.ID = s.id
			if st.who != "" {
				n.ID += "\x00" + st.who
			}
			if len(st.nodes) > 1 {
				n.ID += fmt.Sprintf("\x00%d", i)
				suffix := n.Text(facts.Role)
				if suffix == "" || suffix == "both" || s.sameRole(st, suffix) > 1 {
					suffix = strings.TrimPrefix(suffix+"#"+strconv.Itoa(i+1), "both")
				}
				n.Name += "/" + strings.TrimPrefix(suffix, "#")
			}
			nodes = append(nodes, n.Node)
		}
	}
	for _, n := range nodes {
		s.openEnd(n)
	}
	if s.cut > 0 {
		for _, n := range nodes {
			n.Note(facts.Source{Name: s.file, Line: s.cut}, false, "a line is longer than %d MiB; the rest of it was passed over", MaxLine>>20)
		}
	}
	return nodes
}

// openEnd drops a context that was read from the very end of a log without a line end: it may be the beginning of a
// larger one, and a small one passes. The arguments say which; without them it stays and the check cannot pass.
func (s *logScan) openEnd(n *facts.Node) {
	if s.open == 0 {
		return
	}
	for i, f := range n.Facts {
		if f.Key != facts.Context || f.At.Line != s.open || !strings.HasSuffix(strings.ReplaceAll(strings.TrimRight(s.tail, ","), ",", ""), f.Value) {
			continue
		}
		for _, o := range n.Facts {
			if o.Key == facts.Context && o.At.Line != s.open {
				if o.Value != f.Value && strings.HasPrefix(o.Value, f.Value) {
					n.Facts = append(n.Facts[:i:i], n.Facts[i+1:]...)
				}
				return
			}
		}
		n.Note(f.At, true, "the last line has no line end: its last number, a context of %s, may be cut; give the whole log", f.Value)
		return
	}
}

func (s *logScan) sameRole(st *stream, role string) (k int) {
	for _, n := range st.nodes {
		if n.Text(facts.Role) == role {
			k++
		}
	}
	return k
}

// settle derives what only all lines together say.
func (s *logScan) settle(n *scanNode) {
	if n.engine != "" {
		n.Put(facts.Engine, n.engine, s.first(n), facts.Args)
	}
	if n.blocks > 0 {
		s.settleBlocks(n)
	}
	if n.mixed {
		n.Note(n.args, true, "lines of two nodes are mixed in one stream and nothing tells them apart; log each node to its own file or keep the pod prefix")
	}
}

func (s *logScan) first(n *scanNode) facts.Source {
	if n.args != (facts.Source{}) {
		return n.args
	}
	if len(n.Facts) > 0 {
		return n.Facts[0].At
	}
	return facts.Source{Name: s.file}
}
