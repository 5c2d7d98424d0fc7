// Package vllm is a fake vLLM 0.32 worker: one leg over the NixlConnector or the MooncakeConnector, or a plain server.
//
// Over NIXL prefill answers first and hands out transfer parameters; the decode leg brings them, and decode reads the blocks that
// they name. A fake takes only parameters that a prefill of its fleet gave out, byte for byte, once, for the same prompt and under the
// same request id; everything else is a violation and gets the engine's 500. Over Mooncake both legs run at once and meet by the
// transfer id that the gateway made; prefill's answer carries nothing, and pages move only if it finished by length.
//
// Bodies, statuses and pages have the keys and types, in the order, of answers of the released package (testdata of this
// package); texts of errors are its own.
package vllm
