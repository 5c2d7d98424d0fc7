// Package handoff is the protocol as pure machines: what may happen to an attempt at each of its three ends, and in which order.
//
// Decode, Prefill and Gateway are comparable values. Step takes an event and returns the next value and the effects that the driver
// must perform, in order. There is no map, slice, pointer, clock, socket or logger inside: time-outs, lost peers and the
// pool's answers are events. The attempt's machine counts pages; which page is which is the business of page.Slot and of
// the pool.
//
// # Order of operations
//
// Decode, when all goes well:
//
//	PagesReserved   -> SendReserved                      pages are leased and zero; no grant names them
//	Attached        -> SendGrant                         the grant is live
//	PageArrived     -> LandPage      -> PageLanded       the gate, then MAC and copy in one pass, under a pin
//	ManifestSeen                                         verdict, counts, digest and root agree, or the attempt ends
//	EndSeen         -> Seal          -> SealDone         nothing of the attempt follows on the link
//	SealDone        -> StartDecode   -> EchoCompared     the last position, computed from the pages
//	EchoCompared    -> SendSealed
//	TokenReady      -> Emit
//	EngineDone      -> SetVerdict, SendOutcome, Fence, ReleaseLease -> LeaseDrained
//	LeaseDrained    -> SendSettled
//
// Prefill, when all goes well:
//
//	PromptSeen      -> ReservePages  -> PagesReserved    the prompt is whole, and is the plan's
//	PagesReserved   -> StartPrefill
//	GrantSeen                                            may come before or after any of these
//	PagesSealed     -> QueuePages                        once granted
//	PageTaken       -> WritePage     -> PageSent         each ordinal once, in order
//	EngineDone
//	PageSent        -> SendClosing   -> ClosingSent      after the last page: manifest, end
//	ClosingSent     -> SetVerdict, SendOutcome, Fence, ReleaseLease -> LeaseDrained -> SendSettled
//
// Gateway, when all goes well: SendPlan to decode; ReservedSeen; SendPlan to prefill; SealedSeen and PrefillEnded in either
// order; when both are in and agree, ReleaseHeld; OutputSeen -> PassOutput; DecodeEnded -> SetVerdict; LegSettled twice -> Finish.
//
// # How it ends
//
// An attempt has one verdict at each end, set once. Whatever sets it (an answer that does not agree, a peer's abort, a lost peer,
// the deadline, the end of the reply) goes through one function, end, which says so to the others, then fences, then
// releases: acknowledged, or timed out then fenced, then free; never acknowledged-or-timed-out, then free. An event that
// comes later finds the verdict and changes nothing but what is still owed: a page frame is refused, a token goes nowhere, and the
// answers that are still out (the pool's copy, the seal, the engine) are waited for before the attempt is settled.
//
// # Who is wrong
//
// What a peer can cause is a transition, in every state. What only our own driver can cause (an answer that was not asked for, a
// second drain) panics with the event and the state.
//
// # Guards
//
// Here live the guards verdict and count (manifestSeen, prefillEnded), echo (echoCompared), hold (reconcile), fence (revoke),
// the state half of the gate (pageArrived: is there a live grant), and the comparison of mac's results (manifestSeen, endSeen). The
// other half of the gate and of mac is in pool, where bytes land.
//
// # Lock order
//
// A driver holds one attempt's lock for a step and for the trace event of that step, and for nothing else: effects are performed
// outside it, so the machine is asked again (PageTaken, PageLanded) wherever the answer may have changed meanwhile.
package handoff
