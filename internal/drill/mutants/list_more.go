package main

var (
	ofWire    = []string{"wire", "transport/tcp"}
	ofEngine  = []string{"engine", "worker"}
	ofFleet   = []string{"fleet", "gateway"}
	ofKeyring = []string{"keyring", "transport/tcp", "worker"}
	ofLegs    = []string{"gateway/legs", "gateway"}
	ofGateway = []string{"gateway", "drill"}
	ofNative  = []string{"gateway/upstream/native", "gateway", "drill"}
	ofPrompt  = []string{"prompt"}
	ofTrace   = []string{"handoff/trace", "handoff/model/validate"}
)

// More guards, of what stands around the handoff: who may speak, what is computed, what the gateway lets go, what is recorded.
var moreMutants = []mutant{
	// Pools, once more.
	{"pages: sent before they are sealed", "pool/seal.go", "err == nil && s.State != page.Sealed && s.State != page.Held", "err == nil && false", ofPool},
	{"pages: sealed while they are written", "pool/seal.go", "case s.Pins > 0:\n\t\t\terr = fmt.Errorf(\"%w: %s has %d pins\", ErrPinned, tag, s.Pins)\n\t\tcase s.State != page.Reserved ||", "case s.State != page.Reserved ||", ofPool},
	{"pages: given to a lease that is fenced", "pool/lease.go", "case l.fenced || l.released: // while the pages were on their way", "case false:", ofPool},
	{"pages: one that grew may be landed in", "pool/land.go", "case ordinal >= l.granted || l.tags[ordinal] != tag:", "case ordinal >= len(l.tags) || l.tags[ordinal] != tag:", ofPool},
	{"view: the check of tags is gone", "pool/view.go", "case !l.holds(tag):\n\t\tif !guard.Off(guard.Tag) {", "case false:\n\t\tif !guard.Off(guard.Tag) {", ofPool},
	{"view: pins stay when it is refused", "pool/view.go", "\t\t\tv.unpin(l, i)\n", "", ofPool},
	{"seal: what the MAC is made of is read without a pin", "pool/seal.go", "\t\tp.slots[tag.ID] = p.slots[tag.ID].Pin(tag)\n\t\tp.count.Pins++\n", "", ofPool},
	// Frames.
	{"wire: bytes behind a frame's end", "wire/decode.go", "if r.err == nil && len(r.b) > 0 {", "if false {", ofWire},
	{"wire: any version", "wire/header.go", "case version != Version:", "case false:", ofWire},
	{"wire: any flags", "wire/header.go", "case flags != 0:", "case false:", ofWire},
	{"wire: any length", "wire/header.go", "case int64(length)-lengthOverhead > int64(MaxBody(kind)):", "case false:", ofWire},
	{"hello: pages of another shape", "wire/hello.go", "case own.Geometry != peer.Geometry:", "case false:", ofWire},
	{"hello: another model", "wire/hello.go", "case own.Model != peer.Model:", "case false:", ofWire},
	{"echo: ids alone", "wire/echo.go", "if math.Float32bits(e.Logits[i]) != math.Float32bits(own.Logits[i]) {", "if false {", ofWire},
	// Who may speak.
	{"keyring: a name of another's", "keyring/fleet.go", "case n.Name != h.Name || n.Role != h.Role:", "case false:", ofKeyring},
	{"keyring: any role", "keyring/fleet.go", "if !slices.Contains(roles, n.Role) {", "if false {", ofKeyring},
	{"keyring: prefill signs plans", "keyring/fleet.go", "return ok && n.Role == wire.RoleGateway", "return ok && n.Role <= wire.RoleDecode", ofKeyring},
	{"link: any prefill may send for an attempt", "worker/inbound.go", "return string(in.conn.PeerKey()) == string(key[:]) && uint64(in.conn.Peer().Boot) == boot", "return true", ofWorker},
	{"link: another boot of the same prefill", "worker/inbound.go", "&& uint64(in.conn.Peer().Boot) == boot", "", ofWorker},
	{"link: strays without end", "worker/inbound.go", "if in.strays++; in.strays > in.w.cfg.Limits.Strays {", "if in.strays++; false {", ofWorker},
	{"abort: of any gateway's", "worker/control.go", "if d, _, _ := c.w.table.find(id); d != nil && d.control() == c {\n\t\treturn d", "if d, _, _ := c.w.table.find(id); d != nil {\n\t\treturn d", ofWorker},
	{"abort: without its MAC, to decode", "worker/decode.go", "if !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.AbortFromPrefill,", "if false && !mac.Equal(a.key.Sum(mac.AbortFromPrefill,", ofWorker},
	{"abort: without its MAC, to prefill", "worker/prefill.go", "if !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.AbortFromDecode,", "if false && !mac.Equal(a.key.Sum(mac.AbortFromDecode,", ofWorker},
	{"plan: a refused one is not numbered", "worker/control.go", "c.seq = max(c.seq, p.Seq)", "if v.IsZero() {\n\t\t\tc.seq = max(c.seq, p.Seq)\n\t\t}", ofWorker},
	{"plan: seq is not kept", "worker/control.go", "\t\tc.seq = max(c.seq, p.Seq)\n", "", ofWorker},
	// What a worker believes and says.
	{"prompt: ids outside the vocabulary", "worker/prefill.go", "if id < 0 || int(id) >= a.w.vocab {", "if id < 0 && false {", ofWorker},
	{"prompt: digest of the ids is not compared", "worker/prefill.go", "&& a.digester.Sum() == a.plan.Digest", "", ofWorker},
	{"manifest: the plan's digest, not what was computed", "worker/prefill.go", "m.Digest = a.computed.Sum()", "m.Digest = a.plan.Digest", append([]string{"worker"}, "engine", "drill")},
	{"manifest: digest is not compared", "worker/decode.go", "DigestOK: f.Digest == a.plan.Digest,", "DigestOK: true,", ofWorker},
	{"manifest: root is not compared", "worker/decode.go", "RootOK:   f.Root == wire.RootOf(here),", "RootOK:   true,", ofWorker},
	{"manifest: MAC is not compared", "worker/decode.go", "MACOK:    mac.Equal(a.key.Sum(mac.Manifest, 0, wire.Authenticated(f)), mac.Tag(f.MAC)),", "MACOK:    true,", ofWorker},
	{"echo: not compared", "worker/decode.go", "handoff.EchoCompared{Agrees: err == nil}", "handoff.EchoCompared{Agrees: true}", ofWorker},
	{"outcome: decode claims what was planned", "worker/decode.go", "o.Verdict, o.Completion = a.verdict, a.machine.Emitted", "o.Verdict, o.Completion = a.verdict, a.plan.MaxTokens", ofWorker},
	{"outcome: prefill claims what was planned", "worker/prefill.go", "o.Verdict, o.Computed = a.verdict, a.machine.Computed", "o.Verdict, o.Computed = a.verdict, a.machine.Planned", ofWorker},
	{"outcome: prefill's refusal becomes a success", "worker/prefill.go", "m := wire.Manifest{Attempt: a.id, Tokens: a.machine.Computed, Pages: sent, Root: wire.RootOf(a.macs[:sent]), Echo: a.echo, Verdict: v}", "v = verdict.Served(verdict.Prefill)\n\tm := wire.Manifest{Attempt: a.id, Tokens: a.machine.Computed, Pages: sent, Root: wire.RootOf(a.macs[:sent]), Echo: a.echo, Verdict: v}", ofWorker},
	{"deadline: no timer at decode", "worker/decode.go", "a.timer = time.AfterFunc(p.Budget, func() { a.step(handoff.DeadlinePassed{}, because{}) })", "a.timer = time.AfterFunc(time.Hour, func() { a.step(handoff.DeadlinePassed{}, because{}) })", ofWorker},
	{"deadline: no timer at prefill", "worker/prefill.go", "a.timer = time.AfterFunc(p.Budget, func() { a.step(handoff.DeadlinePassed{}, because{}) })", "a.timer = time.AfterFunc(time.Hour, func() { a.step(handoff.DeadlinePassed{}, because{}) })", ofWorker},
	// Engines.
	{"engine: a dead ticket computes, at prefill", "engine/prefill.go", "if p.at > 0 || !p.Ticket.Valid() {", "if false {", ofEngine},
	{"engine: a dead ticket computes, at decode", "engine/decode.go", "if begun || !t.Valid() {", "if false {", ofEngine},
	{"engine: a token too many", "engine/decode.go", "if s.out == s.max {", "if s.out > s.max {", ofEngine},
	{"engine: the echo is skipped", "engine/decode.go", "if v := s.Sink.Echo(own); !v.IsZero() {\n\t\t\treturn ending{v: v}\n\t\t}", "_ = own", ofEngine},
	{"engine: what was computed is not digested", "engine/prefill.go", "\t\tp.Computed.Add(p.Tokens[p.at : p.at+p.take])\n", "", ofEngine},
	{"engine: pages are sealed that are not full", "engine/prefill.go", "until := p.at / e.cfg.PageTokens\n", "until := (p.at + e.cfg.PageTokens - 1) / e.cfg.PageTokens\n", ofEngine},
	// What the gateway lets go.
	{"legs: counts need not be the plan's", "gateway/legs/table.go", "if n >= 0 && n != m.expect.PromptTokens {", "if n >= 0 && false {", ofLegs},
	{"legs: pages need not agree", "gateway/legs/table.go", "if p.Pages != d.Pages {", "if false {", ofLegs},
	{"legs: digests need not agree", "gateway/legs/table.go", "if pv, dv := of(p), of(d); pv != want || dv != want {", "if pv, dv := of(p), of(d); false && pv != dv {", ofLegs},
	{"legs: a leg may contradict itself", "gateway/legs/machine.go", "if !note(&m.legs[l]) {", "if note(&m.legs[l]); false {", ofLegs},
	{"legs: a leg may speak after its end", "gateway/legs/machine.go", "if m.legs[l].ended {\n\t\treturn verdict.Of(verdict.ProtocolViolation", "if false {\n\t\treturn verdict.Of(verdict.ProtocolViolation", ofLegs},
	{"legs: a stream that just ends is well", "gateway/legs/table.go", "case d.finish == NoFinish && d.ended:", "case false:", ofLegs},
	{"legs: completion need not be counted", "gateway/legs/table.go", "if d.ended && d.completion != m.content {", "if false {", ofLegs},
	{"legs: usage is what was planned", "gateway/legs/machine.go", "prompt = m.legs[Decode].prompt\n\tif prompt < 0 {", "prompt = m.expect.PromptTokens\n\tif prompt < 0 {", ofLegs},
	{"legs: silent about usage, and ended", "gateway/legs/table.go", "if m.legs[l].ended && n < 0 {", "if n < 0 && false {", append([]string{"gateway/legs"}, "gateway/lyingtable")},
	{"native: more tokens than were asked for", "gateway/upstream/native/hear.go", "if int64(r.machine.Output)+int64(n) > int64(r.plan.MaxTokens) {", "if false {", ofNative},
	{"native: a peer chooses the status", "gateway/upstream/native/hear.go", "\tv.Status = v.Code.About().Status\n", "", ofNative},
	{"native: the seal's digest is not compared", "gateway/upstream/native/hear.go", "DigestOK: f.Digest == r.plan.Digest}, \"a seal out of place\")", "DigestOK: true}, \"a seal out of place\")", ofNative},
	{"native: prefill's digest is not compared", "gateway/upstream/native/hear.go", "DigestOK: f.Digest == r.plan.Digest, Code: f.Verdict.Code}", "DigestOK: true, Code: f.Verdict.Code}", ofNative},
	{"native: pages that decode seals are not told", "gateway/upstream/native/hear.go", "Pages: f.Written + f.Held, Digest: f.Digest", "Pages: r.report.Reserved, Digest: f.Digest", ofNative},
	{"retry: without end", "gateway/attempt.go", "return v, v.Code.About().Retry && x.tries == 1 && ctx.Err() == nil", "return v, v.Code.About().Retry && ctx.Err() == nil", ofGateway},
	{"retry: whatever it was", "gateway/attempt.go", "return v, v.Code.About().Retry && x.tries == 1", "return v, x.tries == 1", ofGateway},
	{"retry: under the same attempt", "gateway/walk.go", "\tx.attempt = attempt.New()\n", "\tif x.attempt.IsZero() {\n\t\tx.attempt = attempt.New()\n\t}\n", ofGateway},
	{"record: none of a request that was refused", "gateway/finish.go", "\tx.g.ring.Put(x.rec)\n\tx.g.write(x.rec)\n", "", ofGateway},
	{"record: counts of what was planned", "gateway/finish.go", "r.Tokens.PrefillComputed, r.Tokens.DecodeSealed, r.Tokens.Completion = rep.PrefillComputed, rep.DecodeSealed, rep.Completion", "r.Tokens.PrefillComputed, r.Tokens.DecodeSealed, r.Tokens.Completion = r.Tokens.Planned, r.Tokens.Planned, rep.Completion", ofGateway},
	{"tenant: one scope for everybody", "gateway/tenant/tenant.go", "\tm.Write([]byte(label))\n", "\t_ = label\n", append([]string{"gateway/tenant"}, "gateway")},
	{"refused: the rest of a body is not read", "gateway/finish.go", "if unread && control.Flush() == nil {", "if unread && control.Flush() != nil {", []string{"gateway"}},
	{"usage: beside the finish, lost", "gateway/upstream/web/decode.go", "append(r.owed, doneEvent...)", "doneEvent", []string{"gateway/upstream/web"}},
	// The one road to OK.
	{"OK: by an abort", "handoff/event.go", "func no(c verdict.Code) bool { return c.Known() && c != verdict.OK }", "func no(c verdict.Code) bool { return c.Known() }", ofHandoff},
	{"OK: of decode, before it served", "handoff/decode.go", "c == verdict.OK && d.State != DecodeServing", "false", ofHandoff},
	{"OK: of prefill, before decode was told", "handoff/prefill.go", "c == verdict.OK && !p.Closed", "false", ofHandoff},
	{"OK: of the gateway, before it released", "handoff/gateway.go", "c == verdict.OK && g.State != GatewayReleasing", "false", ofHandoff},
	{"pages: the oldest that waits is passed", "engine/decode.go", "\tif older {\n\t\treturn pool.ErrPoolFull\n\t}\n", "\t_ = older\n", ofEngine},
	// Fleets.
	{"fleet: a pair of two versions", "fleet/board.go", "if p.class != d.class {\n\t\treturn false\n\t}\n\tif len(b.resting)", "if len(b.resting)", ofFleet},
	{"fleet: a pair that rests is used", "fleet/board.go", "return !resting || !now.Before(r.until)", "return true || !resting || !now.Before(r.until)", ofFleet},
	{"fleet: everybody may rest", "fleet/board.go", "if serving <= 0 || resting+1 > max(1, int(b.rests.MaxShare*float64(compatible))) {", "if serving < -99999 {", ofFleet},
	{"fleet: another model", "fleet/driver.go", "case h.Model != f.cfg.Fingerprint:", "case false:", ofFleet},
	{"fleet: a pool smaller than its context", "fleet/driver.go", "case facts.Usable() < facts.Context && !guard.Off(guard.Admission):", "case false:", ofFleet},
	{"fleet: one number for all plans", "fleet/session.go", "\ts.seq++\n", "", ofFleet},
	{"fleet: a draining worker is used", "fleet/board.go", "w.state == Up && !w.draining && w.limit.Tokens > 0", "w.state == Up && w.limit.Tokens > 0", ofFleet},
	// Limits and prompts.
	{"limit: of the completion, unchecked", "admission/ticket.go", "case int64(p.PromptTokens)+int64(p.MaxTokens)-1 > int64(l.Tokens):", "case false:", ofPlans},
	{"limit: the pool is not looked at", "capacity/capacity.go", "if u := f.Usable(); u < l.Tokens {", "if u := f.Usable(); false {", []string{"capacity"}},
	{"limit: the reserve is not taken off", "capacity/capacity.go", "return max((f.PoolTokens-f.Reserved)/page*page, 0)", "return max(f.PoolTokens/page*page, 0)", []string{"capacity"}},
	{"limit: a start with too small a pool", "capacity/capacity.go", "if u >= f.Context {", "if true {", []string{"capacity"}},
	{"limit: decode's alone", "capacity/capacity.go", "if d.Tokens < p.Tokens {\n\t\treturn d\n\t}\n\treturn p", "_ = p\n\treturn d", []string{"capacity"}},
	{"prompt: control tokens in content", "prompt/chat.go", "if e.added.secret.touches(c.core) {", "if c.core == \"\" && false {", ofPrompt},
	{"prompt: not UTF-8", "prompt/encoder.go", "if utf8.ValidString(s) {", "if true {", ofPrompt},
	{"prompt: an id outside the vocabulary", "prompt/encoder.go", "if id < 0 || int(id) >= e.Vocab() {", "if id < 0 && false {", ofPrompt},
	{"digest: without the scope", "admission/digest.go", "\th.Write(s[:])\n", "", ofPlans},
	// Evidence.
	{"trace: a line is not tied to the one before", "handoff/trace/ndjson.go", "crc32.Update(crc32.Checksum(p[:], castagnoli), castagnoli, b[from:])", "crc32.Checksum(b[from:], castagnoli)", ofTrace},
	{"trace: the rate is not tied", "handoff/trace/write.go", "\tc.sum = crc32.Checksum(b[from:], castagnoli)\n", "\t_ = crc32.Checksum(b[from:], castagnoli)\n", ofTrace},
	{"trace: a cut file is whole", "handoff/trace/read.go", "case !ended:", "case false:", ofTrace},
}

func init() { mutants = append(mutants, moreMutants...) }
