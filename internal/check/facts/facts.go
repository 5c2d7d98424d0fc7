// Package facts holds what was learnt about each node, every fact with where it came from.
//
// A node is one engine process group as an operator counts them: all ranks of one server. Facts are kept as text, as they
// were read; Get says which one counts when several say something, and Disagreements says where they contradict.
// Pure: no clock, no socket, no logger.
package facts

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// Source is where a fact was read: a file with its line, a URL, a flag of this program.
type Source struct {
	Name string
	Line int // 1-based; 0 when the source has no lines
}

func (s Source) String() string {
	if s.Line == 0 {
		return s.Name
	}
	return s.Name + ":" + strconv.Itoa(s.Line)
}

// Weight ranks how directly a source speaks of a fact. The heaviest counts; equal ones are compared.
type Weight uint8

const (
	Guessed Weight = 10 // from a file's name, or from a default of the engine
	Asked   Weight = 20 // a launch command or a manifest: what somebody wants
	Args    Weight = 40 // the engine's own list of arguments
	Part    Weight = 50 // one rank's line about one cache
	Total   Weight = 70 // a line about all of it
	Said    Weight = 80 // the engine's own statement of the number: its summary line, an endpoint, a gauge
	Pinned  Weight = 90 // by hand: a flag of this program, the gateway's fleet.yaml
)

// Fact is one observation.
type Fact struct {
	Key    Key
	Value  string
	At     Source
	Weight Weight
	Rank   string // "DP1", "" for the node
}

// Int is the fact as a whole number; false if it is none.
func (f Fact) Int() (int, bool) {
	n, err := strconv.Atoi(f.Value)
	return n, err == nil
}

// Event is something an engine logged or counted: how often, and where first and last.
type Event struct {
	Count       int
	First, Last Source
	Largest     int // the largest number that the lines named (tokens of a refused prompt)
}

// Boot is one start of a node within one source.
type Boot struct {
	At      Source
	Pool    int
	Context int
	Version string
}

// Note is a plain sentence about a source that a reader must know (a cut line, an answer that was no JSON).
type Note struct {
	At   Source
	Text string
	// Blind says that facts may be missing because of it: the check cannot be called complete.
	Blind bool
}

// Node is what is known of one node.
type Node struct {
	Name     string
	ID       string // unique: sources with the same ID are about the same node
	Facts    []Fact
	Events   map[string]*Event
	Boots    []Boot // in order; the last is the one that Facts describe
	Notes    []Note
	Starts   bool // the engine says that it is up
	Live     bool // asked over the network
	Manifest bool // from a launch command or a manifest alone
	Launch   bool // a command, or an image by itself, that starts an engine was seen
	Whole    bool // a whole list of arguments was seen: what is not in it has its default
	MinVer   string
	MaxVer   string // exclusive; what the format of the lines allows when no version is named
}

// Put records a fact. Empty values are not facts.
func (n *Node) Put(k Key, v string, at Source, w Weight) { n.PutRank(k, v, at, w, "") }

// PutRank records what one rank says.
func (n *Node) PutRank(k Key, v string, at Source, w Weight, rank string) {
	if v == "" {
		return
	}
	n.Facts = append(n.Facts, Fact{k, v, at, w, rank})
}

// Event counts one occurrence of kind.
func (n *Node) Event(kind string, at Source, number int) {
	if n.Events == nil {
		n.Events = map[string]*Event{}
	}
	e := n.Events[kind]
	if e == nil {
		e = &Event{First: at}
		n.Events[kind] = e
	}
	e.Count++
	e.Last = at
	e.Largest = max(e.Largest, number)
}

// AddEvent records a counter that already stands at count.
func (n *Node) AddEvent(kind string, at Source, count int) {
	n.Event(kind, at, 0)
	n.Events[kind].Count += count - 1
}

// Note records a sentence.
func (n *Node) Note(at Source, blind bool, format string, a ...any) {
	n.Notes = append(n.Notes, Note{at, fmt.Sprintf(format, a...), blind})
}

// Get returns the fact that counts: the heaviest; of equal ones the smallest pool and the largest context (the worse
// case), else the last.
func (n *Node) Get(k Key) (Fact, bool) {
	var best Fact
	found := false
	for _, f := range n.Facts {
		if f.Key != k {
			continue
		}
		if !found || f.Weight > best.Weight || f.Weight == best.Weight && counts(k, f, best) {
			best, found = f, true
		}
	}
	return best, found
}

func counts(k Key, f, best Fact) bool {
	a, okA := f.Int()
	b, okB := best.Int()
	switch {
	case !okA || !okB:
		return true
	case k == Pool || k == SWAPool:
		return a < b
	case k == Context:
		return a > b
	}
	return true
}

// Text is the value of k, or "".
func (n *Node) Text(k Key) string {
	f, _ := n.Get(k)
	return f.Value
}

// Int is the number of k, or 0.
func (n *Node) Int(k Key) int {
	f, _ := n.Get(k)
	i, _ := f.Int()
	return i
}

// Bool is the value of a yes-or-no fact; known is false when nothing said either.
func (n *Node) Bool(k Key) (yes, known bool) {
	f, ok := n.Get(k)
	if !ok {
		return false, false
	}
	switch strings.ToLower(f.Value) {
	case "true", "1", "yes", "on":
		return true, true
	case "false", "0", "no", "off", "none", "null":
		return false, true
	}
	return false, false
}

// At is where the fact that counts was read.
func (n *Node) At(k Key) Source {
	f, _ := n.Get(k)
	return f.At
}

// Disagreement is one fact on which two sources differ.
type Disagreement struct {
	Key  Key
	A, B Fact // A is the one that counts
}

// Disagreements lists the facts that two sources state differently. Ranks of one source are not sources of their own,
// and what was asked for is compared with what is.
func (n *Node) Disagreements() (ds []Disagreement) {
	for _, k := range Compared {
		best, ok := n.Get(k)
		if !ok || best.Weight <= Guessed {
			continue
		}
		for _, f := range n.Facts {
			// A summary line and a cache's own line may differ honestly (draft pools, sliding windows): only statements of the
			// same fact count.
			// SGLang's context is its argument's, so a log that differs with itself there has a broken line.
			self := f.At.Name == best.At.Name && (k != Context || f.Weight != Args || f.At.Line == best.At.Line || n.Text(Engine) != "sglang")
			if f.Key != k || self || f.Weight <= Guessed || f.Weight == Part || Same(k, f.Value, best.Value) {
				continue
			}
			ds = append(ds, Disagreement{k, best, f})
			break
		}
	}
	return ds
}

// RankValues returns the values that the ranks of a node give for k, by rank; nil if fewer than two ranks spoke or all
// agree. Only the heaviest statements count.
func (n *Node) RankValues(k Key) map[string]Fact {
	best, ok := n.Get(k)
	if !ok {
		return nil
	}
	m := map[string]Fact{}
	differ := false
	for _, f := range n.Facts {
		if f.Key == k && f.Weight == best.Weight && f.At.Name == best.At.Name {
			m[f.Rank] = f
			differ = differ || f.Value != best.Value
		}
	}
	if len(m) < 2 || !differ {
		return nil
	}
	return m
}

// Sources lists where the facts came from, "file:line key=value", in the order of keys.
func (n *Node) Sources() []string {
	var out []string
	for _, k := range Shown {
		if f, ok := n.Get(k); ok {
			out = append(out, fmt.Sprintf("%s %s=%s", f.At, k, f.Value))
		}
	}
	if len(out) == 0 {
		seen := map[string]bool{}
		for _, f := range n.Facts {
			if !seen[f.At.Name] {
				seen[f.At.Name] = true
				out = append(out, f.At.Name)
			}
		}
		sort.Strings(out)
	}
	return out
}
