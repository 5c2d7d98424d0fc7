package sim

import (
	"bytes"

	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// lies are what a prefill that is not honest does, once an attempt, in a world of Liars.
var lies = map[string]act{
	"prefill-dies":    {may: func(l *lane) bool { return l.opened && !l.dead && !l.p.Over() }, do: (*lane).dies},
	"prefill-refuses": {may: func(l *lane) bool { return l.p.Running && !l.p.Over() }, do: func(l *lane) { l.prefillTakes(handoff.EngineDone{Code: verdict.ContextLength}) }},

	"prefill-sends-torn":       lie((*lane).unsent, func(l *lane) { l.send(tear) }),
	"prefill-sends-misplaced":  lie(func(l *lane) bool { return l.unsent() && len(l.content) > 1 }, func(l *lane) { l.send(l.misplaced) }),
	"prefill-sends-to-another": lie((*lane).unsent, func(l *lane) { l.send(l.foreign) }),
	"prefill-sends-again":      lie(func(l *lane) bool { return l.p.Sent > 0 }, (*lane).again),
	"prefill-replays":          lie(func(l *lane) bool { return l.w.heard != nil && l.w.heard.header.Attempt != l.id }, (*lane).replays),

	"prefill-says-done-and-dies":     lie((*lane).unfinished, func(l *lane) { l.says(l.statement(l.p.Sent)); l.dies() }),
	"prefill-claims-all-and-dies":    lie((*lane).unfinished, func(l *lane) { l.says(l.statement(l.p.Needed)); l.dies() }),
	"prefill-claims-all-and-goes-on": lie((*lane).unfinished, func(l *lane) { l.says(l.statement(l.p.Needed)) }),
	"closing-is-forged": lie(anything, func(l *lane) {
		f := l.statement(l.p.Sent)
		f.manifest.MACOK = false
		l.says(f)
	}),
	"prefill-ships-placeholder-as-done": lie(func(l *lane) bool { return l.p.Sent == 0 && l.p.Needed > 1 }, func(l *lane) { // the incident's
		l.placeholder(0)
		l.says(l.statement(1))
		l.dies()
	}),
	"prefill-ships-placeholder-and-refuses": lie((*lane).unfinished, func(l *lane) {
		l.placeholder(l.p.Sent)
		f := l.statement(l.p.Sent + 1)
		f.manifest.Verdict = verdict.ContextLength
		l.says(f)
		l.dies()
	}),
}

// lie is one that a prefill with a grant can tell, once.
func lie(may func(*lane) bool, do func(*lane)) act {
	return act{
		may: func(l *lane) bool {
			return l.w.o.Liars && l.opened && !l.lied && !l.dead && l.p.Granted && !l.p.Over() && len(l.tags) > 0 && may(l)
		},
		do: func(l *lane) { l.lied = true; do(l) },
	}
}

func anything(*lane) bool        { return true }
func (l *lane) unsent() bool     { return l.next < l.queued }
func (l *lane) unfinished() bool { return l.p.Sent < l.p.Needed }

// dies ends prefill without a word: the process is gone, and its pages with it.
func (l *lane) dies() {
	l.dead = true
	if !l.p.Over() {
		l.prefillTakes(handoff.AbortAsked{From: handoff.GatewayEnd, Code: verdict.ClientGone})
	}
}

// foreign is a frame to the tag of another attempt's first page.
func (l *lane) foreign(f frame) frame {
	f.header.Tag = page.Tag{Boot: decodeBoot, ID: 0, Gen: 99}
	for _, x := range l.others() {
		if len(x.tags) > 0 {
			f.header.Tag = x.tags[0]
			break
		}
	}
	return f
}

// again sends the page that went last once more.
func (l *lane) again() {
	k := l.p.Sent - 1
	l.put(frame{header: wire.PageHeader{Attempt: l.id, Tag: l.tags[k], Ordinal: k, MAC: l.macs[k]}, payload: l.content[k]})
}

// placeholder is a page that is none of the prompt, under a right MAC.
func (l *lane) placeholder(k uint32) {
	b := make([]byte, shape.Bytes())
	for i := range b {
		b[i] = 0x11
	}
	l.put(frame{header: wire.PageHeader{Attempt: l.id, Tag: l.tags[k], Ordinal: k, MAC: l.key.Sum(mac.Page, uint64(k), b)}, payload: b})
}

// statement is a closing statement that says that all is well, and that so many pages were sent.
func (l *lane) statement(pages uint32) frame {
	return frame{says: manifestFrame, manifest: handoff.ManifestSeen{Tokens: uint32(l.tokens), Pages: pages, MACOK: true, DigestOK: true, Verdict: verdict.OK},
		root: wire.RootOf(l.macs[:min(int(pages), len(l.macs))])}
}

func (l *lane) says(f frame) {
	l.put(f)
	l.put(frame{says: endFrame})
}

// replays puts a frame on the link that another attempt's prefill sent before: its bytes, its tag, its MAC.
func (l *lane) replays() {
	f := *l.w.heard
	f.header.Attempt = l.id
	l.put(f)
}

// misplaced is a frame whose content is of another page, rightly authenticated for this one.
func (l *lane) misplaced(f frame) frame {
	b := bytes.Clone(f.payload)
	for i := range b {
		b[i] ^= 0x55
	}
	if other := l.content[1-f.header.Ordinal]; other != nil {
		b = bytes.Clone(other)
	}
	f.payload = b
	f.header.MAC = l.key.Sum(mac.Page, uint64(f.header.Ordinal), b)
	l.macs[f.header.Ordinal] = f.header.MAC
	return f
}

// tear changes a byte that the MAC is of.
func tear(f frame) frame {
	f.payload = bytes.Clone(f.payload)
	f.payload[7] ^= 1
	return f
}
