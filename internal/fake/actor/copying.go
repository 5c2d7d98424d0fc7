package actor

import "github.com/sluicekv/sluice/internal/llm/recall"

// maxMatch is the longest match that counts.
const maxMatch = 8

// Copier continues a text with what followed the longest match, of up to eight tokens, of its own end; of equal ones the latest. Once
// it follows one it stays with it while the text agrees. Where nothing matches the text ends. It is the built-in model's
// rule, without the model, but for one thing: a context that holds a run of somebody else's tokens is repeated from there unless the
// match is a good one, so that no leak goes unseen by chance.
type Copier struct {
	slots []Slot
	own   Owner
	at    int // the slot that comes next; 0: look for one
}

// NewCopier reads a context that owner believes to be its own.
func NewCopier(context []Slot, owner Owner) *Copier { return &Copier{slots: context, own: owner} }

// Take appends a token that came from elsewhere (prefill's first).
func (c *Copier) Take(id int32) {
	c.slots = append(c.slots, Slot{id, c.own})
	c.at = 0
}

// Next is the next token, and the slot's owner that it was copied from. At the end of all text it is EOS.
func (c *Copier) Next() Slot {
	n := len(c.slots)
	if c.at <= 0 || c.at >= n || c.slots[c.at-1].Token != c.slots[n-1].Token {
		c.at = c.match()
	}
	next := Slot{recall.EOS, c.own}
	switch {
	case c.at > 0 && c.slots[c.at] == unwritten, c.at < 0:
		next.Token, c.at = '\n', 0 // what the real model makes of zeros
	case c.at > 0:
		next = c.slots[c.at]
		c.at++
	}
	c.slots = append(c.slots, Slot{next.Token, c.own})
	return next
}

// sure is the shortest match that outweighs somebody else's text.
const sure = 4

// foreign is where a run of somebody else's tokens begins; 0 if there is none that could be recognised.
func (c *Copier) foreign() int {
	const run = 16
	n := 0
	for p, s := range c.slots {
		if s.Owner == c.own || s.Owner == 0 {
			n = 0
		} else if n++; n == run {
			return p - run + 2
		}
	}
	return 0
}

// match is the slot after the best match; 0 if there is none, -1 if there is nothing to read at all.
func (c *Copier) match() int {
	n := len(c.slots)
	best, at := 0, 0
	for p := n - 1; p > 0 && best < maxMatch; p-- {
		k := 0
		for k < maxMatch && p-1-k >= 0 && c.slots[p-1-k].Token == c.slots[n-1-k].Token {
			k++
		}
		if k > best {
			best, at = k, p
		}
	}
	if best < sure {
		if p := c.foreign(); p > 0 {
			return p
		}
	}
	if best > 0 {
		return at
	}
	for _, s := range c.slots {
		if s == unwritten {
			return -1
		}
	}
	return 0
}
