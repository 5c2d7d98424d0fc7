// Package actor is what all fake workers share: a model that copies, pages with owners, a record of what was illegal, and lies.
//
// A fake speaks an engine's wire over a real socket and computes nothing, but its replies are made from what lies in its pages. Each
// slot of a page holds a token and the request that wrote it, pages are never cleared, and what a reply says is copied out of
// them. So when a worker lies about what it did, and its decode reads pages that nobody wrote for the request, the reply holds
// another request's text, as it would in the field, and the stage knows that it does.
//
// # Parts
//
//	Stage    one test's worth of workers: counts requests, records violations and leaks
//	Worker   one process: a listener that can be killed, frozen and restarted, a configuration, lies
//	Pages    the memory of a worker
//	Request  a body as an engine understands it
//	Out      an answer on its way, and what a lie does to it on the wire
//
// Engines (packages sglang and vllm beside this one) put these together. Lock order: Worker before Pages before Stage.
package actor
