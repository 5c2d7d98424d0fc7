// Package node is one process of a drill's fleet: a worker, a liar or a gateway that its parent starts, arms with faults and kills.
//
// A node is useless to anybody else. Its keys are derived from a seed that the parent makes for one drill (keyring.Derived), so it
// cannot hold the key of a fleet that serves, and no such fleet knows its. It listens on loopback, or on the addresses that are set
// aside for network tests (198.18.0.0/15) inside a network namespace, and ends when its standard input does.
//
// The parent talks to it in lines of JSON: the first line in is a Config, every later one a Command; every line out is a
// Reply. Each step of its machines and pool goes as one record into a pipe that all nodes share: a write of 48 bytes to a
// pipe is atomic, and is done before what the step asks for is performed, so the order in the pipe is an order of the whole fleet.
package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// Kinds of nodes, which are also their names.
const (
	Prefill = "prefill"
	Decode  = "decode"
	Liar    = "liar"
	Gateway = "gateway"
)

// Config of a node.
type Config struct {
	Kind       string   `json:"kind"`
	Seed       [32]byte `json:"seed"`
	Listen     string   `json:"listen"`               // host:port; port 0: any
	Data       string   `json:"data,omitzero"`        // decode
	Advertise  string   `json:"advertise,omitzero"`   // decode
	Without    string   `json:"without,omitzero"`     // guards that are taken out; an unsafe build's only
	PageTokens int      `json:"page_tokens,omitzero"` // workers; 0: PageTokens
	KVTokens   int      `json:"kv_tokens,omitzero"`   // workers
	PageWait   int      `json:"page_wait,omitzero"`   // workers: milliseconds that a request may wait for pages; 0: the default
	Claims     int      `json:"claims,omitzero"`      // liar
	Context    int      `json:"context,omitzero"`     // workers
	Lie        string   `json:"lie,omitzero"`         // liar
	Template   string   `json:"template,omitzero"`    // the model's chat template; empty: the built-in's
	Prefills   []string `json:"prefills,omitzero"`    // gateway: control addresses, of the honest prefill and then of the liar
	Decode     string   `json:"decode,omitzero"`      // gateway: control address
	Deadline   int      `json:"deadline,omitzero"`    // gateway: milliseconds
	Settle     int      `json:"settle,omitzero"`      // gateway: milliseconds
	Silence    int      `json:"silence,omitzero"`     // gateway: milliseconds
	Records    string   `json:"records,omitzero"`     // gateway: a file
	Log        string   `json:"log,omitzero"`         // a file
	TraceFile  string   `json:"trace_file,omitzero"`  // a second recorder, into a file
}

// Command to a node.
type Command struct {
	ID    int    `json:"id"`
	Do    string `json:"do"`
	Lie   string `json:"lie,omitzero"`
	Arm   Arm    `json:"arm,omitzero"`
	Rules []Rule `json:"rules,omitzero"`
}

// What a node can be told to do.
const (
	DoStats   = "stats"   // how many pages are free, and what was counted
	DoTell    = "tell"    // liar: which lie
	DoHolding = "holding" // liar: wait until writes are kept back
	DoLoose   = "loose"   // liar: let them go
	DoArm     = "arm"     // signal yourself at a step
	DoRules   = "rules"   // lose and double frames
	DoScan    = "scan"    // worker: bytes in its free pages that are not zero, in Fired
	DoFired   = "fired"   // how often rules met a frame
	DoDrain   = "drain"   // gateway: take no more requests
	DoClose   = "close"   // end well
)

// Arm is a step at which a node sends itself a signal, inside the critical section that performs the step.
type Arm struct {
	Machine string `json:"machine,omitzero"`
	Step    string `json:"step,omitzero"`
	Nth     int    `json:"nth,omitzero"`
	Signal  int    `json:"signal,omitzero"`
}

// Rule is what happens to some frames of a node's links.
type Rule struct {
	Kind  string `json:"kind"`
	Data  bool   `json:"data,omitzero"` // of data links; else of control links
	Out   bool   `json:"out,omitzero"`
	Times int    `json:"times"`          // 0: lost, 2: doubled
	Skip  int    `json:"skip,omitzero"`  // frames that pass first
	Most  int    `json:"most,omitzero"`  // frames that it acts on; 0: all
	Claim int    `json:"claim,omitzero"` // facts: tokens that they say fit
	Delay int    `json:"delay,omitzero"` // milliseconds that the frame, and what is behind it, waits
	Ahead string `json:"ahead,omitzero"` // a kind of frame of the same attempt that goes before it: an acknowledgement that comes too early
}

// Reply of a node.
type Reply struct {
	ID    int    `json:"id"` // of the command; 0: the node is up
	Error string `json:"error,omitzero"`
	Addr  string `json:"addr,omitzero"`
	Data  string `json:"data,omitzero"` // decode: the data socket; gateway: the admin listener
	Boot  uint64 `json:"boot,omitzero"`
	Stats Stats  `json:"stats,omitzero"`
	Fired int    `json:"fired,omitzero"`
}

// Stats of a node.
type Stats struct {
	Free, Total  int
	Pins         int
	Settled      uint64
	PagesRefused uint64
	LateFrames   uint64
	StrayFrames  uint64
	LinksBroken  uint64
	Active       int
	TraceLost    uint64 // writes that the disk did not take
	RecordsLost  uint64
	LogLost      uint64
	Verdicts     map[string]uint64 `json:",omitempty"` // of settled attempts and refused plans, by code
}

// nodes of every drill.
func nodes() []keyring.Node {
	return []keyring.Node{{Name: Prefill, Role: wire.RolePrefill}, {Name: Liar, Role: wire.RolePrefill}, {Name: Decode, Role: wire.RoleDecode}, {Name: Gateway, Role: wire.RoleGateway}}
}

// testNet is set aside for tests of networks (RFC 2544): no host on the Internet has such an address.
var testNet = netip.MustParsePrefix("198.18.0.0/15")

// ErrAddress is returned for an address that a drill may not listen on, or dial.
var ErrAddress = errors.New("drill: a node listens on loopback, or on 198.18.0.0/15 in a network namespace")

func (c Config) validate() error {
	for _, a := range append([]string{c.Listen, c.Data, c.Advertise, c.Decode}, c.Prefills...) {
		if a == "" {
			continue
		}
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrAddress, err)
		}
		ip, err := netip.ParseAddr(host)
		if err != nil || !ip.IsLoopback() && !testNet.Contains(ip) {
			return fmt.Errorf("%w, not on %s", ErrAddress, host)
		}
	}
	if c.Seed == ([32]byte{}) {
		return errors.New("drill: a node without a seed")
	}
	return nil
}
