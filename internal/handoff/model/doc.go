// Package model is the handoff protocol written a second time, to be explored and to judge with.
//
// It imports nothing of the code it judges (a lint rule and a test say so): its machines, its leases and its digests are its own. Two
// things are done with them.
//
// They are explored. A world puts machines, pages, links, faults and everybody's freedom to be slow together, and package check walks every
// state of it: no byte that another request wrote, or that nobody wrote, is read; there is one verdict at each end, and no reply
// where any layer said no; no free page is where a copy goes; and whatever happened, everything can still come to rest with all
// pages free. Every guard is a switch and every fault is one. The tests assert both directions: with all guards in their places
// every fault at once breaks nothing; each guard that carries weight, taken out, gives a shortest story of what goes wrong (testdata);
// each that is there for depth, taken out, changes nothing, because another stands behind it.
//
// They judge. Package validate takes the events that drivers record in production, in tests and in drills, and takes the same steps in
// the model: the value after each must be the same, to the bit.
//
// # Reading order
//
//	words.go                            guards, faults, codes, steps: the vocabulary
//	decode.go prefill.go gateway.go     the three machines, as implemented
//	lease.go                            what a pool knows of an attempt's pages
//	transfer.go transfer_steps.go       the first target: a receiver that gates (TCP)
//	onesided.go                         the second: none (RDMA, shared memory); revoke, verify once, read
//	hold.go                             the gateway between the two legs: hold, let go, swallow, settle
//	settle.go                           the gateway in front of engines that are not ours
//	source.go resend.go retry.go restart.go prefix.go chunks.go ranks.go retract.go echo.go
//	                                    one aspect each, in few states
//	worlds.go                           all of them, by name
//
// prefix, chunks, ranks and retract are ahead of the code: sluice holds no prefixes, sends one closing statement an attempt, has
// one sender an attempt, and ends a reply that it has no page for. They are here so that whoever builds these finds the traps marked.
//
// # What this is not
//
// A proof. Worlds are bounded: two or three attempts, up to four pages, two pages a prompt, one lie a prefill. Authentication
// codes are perfect here, and content is who wrote it. What the model cannot see is said where it cannot (echo.go).
package model
