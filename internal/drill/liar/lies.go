// Package liar is a prefill worker that lies.
//
// It speaks the wire honestly up to the grant, computes real pages with the real model, and then misbehaves as told. It exists so that
// drills can show, on content, which guard meets which lie. Nothing but package drill imports it, a drill makes its own fleet and keys
// for it, and no other worker can be told to lie.
package liar

import "fmt"

// Lie is one way to misbehave.
type Lie string

const (
	// Placeholder is the incident: prefill refuses the prompt in a field (the manifest's verdict), computes a placeholder of one token
	// instead, ships its one page, and tells the gateway that all went well.
	Placeholder Lie = "placeholder"
	// Overstated is Placeholder by a worker that says its pool is as large as decode's, so that no limit stops the prompt.
	Overstated Lie = "placeholder-overstated-pool"
	// Silent is Overstated without the honest field: every message says success, with the plan's own counts.
	Silent Lie = "placeholder-silent"
	// Short ships the first pages only and says that was all of them.
	Short Lie = "stop-after-k"
	// WrongTag sends a page under a tag that the grant does not have: the one of another request's page.
	WrongTag Lie = "wrong-tag"
	// WrongOrdinal sends two pages under each other's ordinals.
	WrongOrdinal Lie = "wrong-ordinal"
	// Permuted ships every page with its layers in each other's place, and MACs to match: the right bytes in the wrong place.
	Permuted Lie = "permuted-layers"
	// OtherAttempt ships the pages of an attempt served before, with the MACs that they had there.
	OtherAttempt Lie = "another-attempts-pages"
	// Flipped changes bytes of a page after its MAC was made.
	Flipped Lie = "flipped-bytes"
	// Late keeps its pages back until the attempt was aborted and its pages belong to another request.
	Late Lie = "late-writes-after-abort"
	// NoManifest ends without a closing statement, TwoManifests makes it twice.
	NoManifest   Lie = "no-manifest"
	TwoManifests Lie = "two-manifests"

	// OtherManifest closes with the counts, digest, root and echo of an attempt served before.
	OtherManifest Lie = "another-attempts-manifest"
	// Replayed sends the frames of an attempt served before once more, and is honest then.
	Replayed Lie = "replayed-attempt"
	// Guessed attaches under ids that it made up, and sends pages for them, and is honest then.
	Guessed Lie = "guessed-attempts"
	// Doubled sends every page twice.
	Doubled Lie = "every-page-twice"
	// ManifestFirst says that all is sent before anything is.
	ManifestFirst Lie = "closing-before-pages"
	// HalfPages ships pages of half the size, with MACs to match.
	HalfPages Lie = "half-pages"
	// SwappedKV ships every page with K and V in each other's place, and MACs to match: a wrong mapping of ranks.
	SwappedKV Lie = "swapped-k-and-v"
	// OtherShape says in its hello that its pages have another shape, OtherDType that its model is another.
	OtherShape Lie = "other-page-shape"
	OtherDType Lie = "other-dtype"

	// RefusedInEngine and RefusedInManifest lie about the pool alone: the prompt is over it, and they say so, from the engine by an abort
	// and an outcome, or in the closing statement and nowhere else.
	RefusedInEngine   Lie = "refused-in-engine"
	RefusedInManifest Lie = "refused-in-manifest"
)

// Lies in the order in which a drill tells them.
func Lies() []Lie {
	return []Lie{Placeholder, Overstated, Silent, Short, WrongTag, WrongOrdinal, Permuted, OtherAttempt, Flipped, Late, NoManifest, TwoManifests}
}

// More are the lies that the matrix of fault classes tells beside those of the incident.
func More() []Lie {
	return []Lie{OtherManifest, Replayed, Guessed, Doubled, ManifestFirst, HalfPages, SwappedKV, OtherShape, OtherDType, RefusedInEngine, RefusedInManifest}
}

// Parse finds a lie by name.
func Parse(s string) (Lie, error) {
	for _, l := range append(Lies(), More()...) {
		if string(l) == s {
			return l, nil
		}
	}
	return "", fmt.Errorf("liar: no lie is named %q; there are %v", s, Lies())
}

// Long reports whether the lie is about a prompt that is over the liar's pool.
func (l Lie) Long() bool { return l.placeholder() || l == RefusedInEngine || l == RefusedInManifest }

// Reuses reports whether the lie needs an attempt that the liar served honestly before.
func (l Lie) Reuses() bool { return l == OtherAttempt || l == OtherManifest || l == Replayed }

// Harmless reports whether the lie is none of the request's business that meets it: it is served, and the gate turns the rest away.
func (l Lie) Harmless() bool { return l == Late || l == Guessed || l == Replayed }

// Stranger reports whether the lie shows when the workers meet, before there is an attempt between them.
func (l Lie) Stranger() bool { return l == OtherShape || l == OtherDType }

// overstates reports whether the lie needs a worker that names a pool larger than its own.
func (l Lie) overstates() bool { return l != Placeholder }

// placeholder reports whether the prompt is replaced by one token.
func (l Lie) placeholder() bool { return l == Placeholder || l == Overstated || l == Silent }
