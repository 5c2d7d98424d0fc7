package main

// mutant is one patch. file is under internal; packages too, the most specific first.
type mutant struct {
	name, file, old, new string
	packages             []string
}

var (
	ofPool    = []string{"pool", "handoff/sim", "worker"}
	ofPage    = []string{"page", "pool"}
	ofHandoff = []string{"handoff", "handoff/model/validate", "worker"}
	ofPlans   = []string{"admission", "worker"}
	ofWorker  = []string{"worker"}
	ofMAC     = []string{"mac", "pool"}
)

var mutants = []mutant{
	// Where bytes land.
	{"gate: a fenced lease is open", "pool/land.go", "case l.fenced || l.sealed:\n\t\treturn ErrFenced\n\tcase ordinal", "case false:\n\t\treturn ErrFenced\n\tcase ordinal", ofPool},
	{"gate: tag unchecked", "pool/land.go", "case ordinal >= l.granted || l.tags[ordinal] != tag:", "case ordinal >= l.granted:", ofPool},
	{"gate: a tag twice", "pool/land.go", "case l.spent[ordinal] || l.p.slots[tag.ID].Written && l.p.slots[tag.ID].Gen == tag.Gen:", "case false:", ofPool},
	{"mac: skipped", "pool/land.go", "ordinal), dst, frame), m) {\n\t\tgood = false\n", "ordinal), dst, frame), m) && false {\n\t\tgood = false\n", ofPool},
	{"mac: a bad page is not scrubbed", "pool/land.go", "good = false\n\t\tclearBytes(dst)", "good = false", ofPool},
	{"fence: an overtaken copy is well", "pool/land.go", "if err == nil {\n\t\t\terr = ErrFenced\n\t\t}", "_ = err", ofPool},
	// How pages come back.
	{"pin: pages go under their pins", "pool/release.go", "for n < len(tags) && p.slots[tags[n].ID].Pins == 0 {", "for n < len(tags) {", ofPool},
	{"zero: skipped on release", "pool/release.go", "clearBytes(p.arena.run(run[0].ID, len(run)))", "_ = run", ofPool},
	{"fence: forgotten by the lease", "pool/release.go", "\tl.fenced = true\n", "", ofPool},
	{"zero: unverified at grant", "pool/lease.go", "if guard.Off(guard.Zero) {\n\t\treturn nil\n\t}\n\tfor run", "if true {\n\t\treturn nil\n\t}\n\tfor run", ofPool},
	{"verdict: a dead ticket gets pages", "pool/lease.go", "if !t.Valid() {", "if false {", ofPool},
	{"generation: reused after a free", "page/slot.go", "return Slot{Gen: s.Gen}\n", "return Slot{}\n", ofPage},
	{"pin: a pinned page is scrubbed", "page/slot.go", "if s.State != Fenced || s.Pins != 0 || at.Gen != s.Gen {", "if s.State != Fenced || at.Gen != s.Gen {", ofPage},
	{"generation: any may land", "page/slot.go", "if s.State != Reserved || s.Pins != 0 || s.Written || at.Gen != s.Gen {\n\t\tillegal(\"land\"", "if s.State != Reserved || s.Pins != 0 || s.Written {\n\t\tillegal(\"land\"", ofPage},
	// What is read.
	{"view: of a fenced lease", "pool/view.go", "\tif l.fenced {\n\t\treturn ErrFenced\n\t}\n\tif n > len(l.tags)", "\tif n > len(l.tags)", ofPool},
	{"view: of pages that are not sealed", "pool/view.go", "case !write && !(own && s.Written) && !s.State.Final():", "case false:", ofPool},
	{"view: writes a sealed page", "pool/view.go", "case write && !own && s.State != page.Tail:", "case false:", ofPool},
	{"pin: a view has none", "pool/view.go", "if v.pinned {\n\t\t*s = s.Pin(tag)\n\t}", "_ = s", ofPool},
	{"count: the pool seals what did not land", "pool/seal.go", "if written < n {", "if false {", ofPool},
	{"gate: open after the seal", "pool/seal.go", "\tl.sealed = true\n", "", ofPool},
	// What decode believes.
	{"count: tokens unchecked", "handoff/decode.go", "if e.Tokens != d.Planned || e.Pages != d.Written ||", "if e.Pages != d.Written ||", ofHandoff},
	{"count: pages unchecked", "handoff/decode.go", "|| e.Pages != d.Written || d.Written+d.Held != d.Needed {", "{", ofHandoff},
	{"digest: unchecked by decode", "handoff/decode.go", "if !e.DigestOK {", "if false {", ofHandoff},
	{"root: unchecked", "handoff/decode.go", "if !guard.Off(guard.MAC) && !e.RootOK {", "if false {", ofHandoff},
	{"mac: any manifest", "handoff/decode.go", "if !guard.Off(guard.MAC) && !e.MACOK {\n\t\treturn d.end(verdict.MACMismatch, verdict.Seal, Self)\n\t}\n\tif", "if", ofHandoff},
	{"mac: any end", "handoff/decode.go", "case !guard.Off(guard.MAC) && !e.MACOK:", "case false:", ofHandoff},
	{"verdict: decode does not hear prefill's", "handoff/decode.go", "if !guard.Off(guard.Verdict) && e.Verdict != verdict.OK {", "if false {", ofHandoff},
	{"verdict: set twice", "handoff/decode.go", "case d.Over():\n\t\treturn d, Effects{}\n\tcase !no(e.Code):", "case !no(e.Code):", ofHandoff},
	{"echo: skipped", "handoff/decode.go", "if !guard.Off(guard.Echo) && !e.Agrees {", "if false {", ofHandoff},
	{"barrier: settled with a copy under way", "handoff/decode.go", "!d.Drained || d.Landing != 0 ||", "!d.Drained ||", ofHandoff},
	{"barrier: settled before the pages are back", "handoff/decode.go", "d.State != DecodeFencing || !d.Drained || d.Landing", "d.State != DecodeFencing || d.Landing", ofHandoff},
	{"fence: forgotten by the machine", "handoff/decode.go", "d.Fenced = true\n\t\tout.add(Fence{})", "d.Fenced = true", ofHandoff},
	{"gate: open without a grant", "handoff/decode.go", "open := d.State == DecodeGranted && e.Ordinal", "open := e.Ordinal", ofHandoff},
	{"grant: given twice", "handoff/decode.go", "case DecodeReserved:\n\t\td.State = DecodeGranted", "case DecodeReserved, DecodeGranted:\n\t\td.State = DecodeGranted", ofHandoff},
	{"seal: without an end", "handoff/decode.go", "case d.State != DecodeClosing: // without a manifest, or the second", "case false:", ofHandoff},
	// What prefill sends.
	{"resend: on one grant", "handoff/prefill.go", "if e.Ordinal != p.Sent+p.Writing || e.Ordinal >= p.Queued {", "if false {", ofHandoff},
	{"grant: taken twice", "handoff/prefill.go", "case p.Granted:\n\t\treturn", "case false:\n\t\treturn", ofHandoff},
	{"closing: before the last page", "handoff/prefill.go", "p.Sent != p.Needed || p.Closed {", "p.Closed {", ofHandoff},
	{"verdict: prefill keeps its no to itself", "handoff/prefill.go", "if c != verdict.OK && from != DecodeLeg {", "if false && from != DecodeLeg {", ofHandoff},
	{"digest: unchecked by prefill", "handoff/prefill.go", "if !e.DigestOK {", "if false {", ofHandoff},
	// What the gateway lets go.
	{"hold: removed", "handoff/gateway.go", "case g.Prefill.Code == verdict.None:\n\t\t\treturn g, Effects{}\n", "", ofHandoff},
	{"hold: digests need not agree", "handoff/gateway.go", "!g.Prefill.DigestOK || !g.Sealed.DigestOK:", "false:", ofHandoff},
	{"swallow: removed", "handoff/gateway.go", "return g, effects(SwallowOutput{})", "return g, effects(PassOutput{})", ofHandoff},
	{"settle: prefill is not waited for", "handoff/gateway.go", "!g.DecodeSettled || g.PrefillAsked && !g.PrefillSettled {", "!g.DecodeSettled {", ofHandoff},
	{"count: completion unchecked", "handoff/gateway.go", "if g.Completion != g.Output {", "if false {", ofHandoff},
	// Who may ask.
	{"boot: unchecked", "admission/ticket.go", "case own.Boot != here.Boot:", "case false:", ofPlans},
	{"model: unchecked", "admission/ticket.go", "case p.Model != here.Model:", "case false:", ofPlans},
	{"session: unchecked", "admission/ticket.go", "case p.Session != here.Session:", "case false:", ofPlans},
	{"seq: unchecked", "admission/ticket.go", "case p.Seq <= here.LastSeq:", "case false:", ofPlans},
	{"limit: unchecked", "admission/ticket.go", "case int64(p.PromptTokens) > int64(l.Tokens):", "case false:", ofPlans},
	{"signature: unchecked", "admission/codec.go", "if !ed25519.Verify(pub, signedMessage(body), rest[ed25519.PublicKeySize:]) {", "if false {", ofPlans},
	{"signer: anybody", "admission/codec.go", "if !keys.Gateway(pub) {", "if false {", ofPlans},
	{"verdict: a cell takes a second", "verdict/verdict.go", "if old.Code == v.Code {\n\t\treturn false", "if true {\n\t\treturn false", []string{"verdict"}},
	// Keys.
	{"mac: one nonce for all ordinals", "mac/mac.go", "binary.LittleEndian.PutUint64(n[4:], ordinal)", "_, _ = binary.LittleEndian, ordinal", ofMAC},
	{"mac: one nonce for all kinds", "mac/mac.go", "\tn[0] = byte(kind)\n", "\t_ = kind\n", ofMAC},
	{"mac: any grant", "worker/prefill.go", "case !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.Grant,", "case false && !mac.Equal(a.key.Sum(mac.Grant,", ofWorker},
	{"boot: any grant", "worker/prefill.go", "case g.Boot != a.plan.Decode.Boot:", "case false:", ofWorker},
	{"mac: any attach", "worker/decode.go", "if !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.Attach,", "if false && !mac.Equal(a.key.Sum(mac.Attach,", ofWorker},
	{"attempt: made twice", "worker/table.go", "if _, ok := t.settled[id]; ok {", "if false {", ofWorker},
}
