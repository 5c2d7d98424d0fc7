// Package shm is a one-sided transport between two processes of one machine: prefill writes straight into the pages that decode will
// read, through a shared mapping, and decode copies nothing. It stands for RDMA and NVLink, where no code of the receiver runs
// where bytes land, so that no gate can stand there.
//
// What stands in for the gate is an order, the one that the model's one-sided target holds with (package handoff/model):
//
//	revoke, and know that it is done · verify the MACs, once, of the bytes that will be read · read
//
// and when an attempt ends in any other way: revoke, and know that it is done, then free. A Window is the memory of one grant: a memfd of
// its own, which the sender gets over a Unix socket, and which is never used again for anything else.
//
// # What a revocation is
//
// Revoke seals the memfd against writing (F_SEAL_WRITE). The kernel grants that only while nobody has it mapped for writing and no
// input or output is under way into its pages; from then on write(2) and a new writable mapping are EPERM, for everybody, for
// ever. So success is a proof that nothing can land any more, it does not rest on the sender's word, and the bytes stay where they are.
// A sender that has unmapped, and a process that is dead, are both such that it succeeds.
//
// While the sender still maps it, Revoke is ErrMapped: nothing is known. Past the bound decode calls Fence: the memfd is cut to length 0,
// the sender's next store is SIGBUS and its next system call into the mapping EFAULT. The bytes are gone, too, so the attempt is refused.
// A hostile sender can seal the memfd itself against both; then the memory is in quarantine: nobody but the sender can reach it, its bytes
// count against the Room until the sender's connection is known to be gone, and it never becomes another grant's.
//
// # What it is not
//
// No worker uses it by default. It knows pages and MACs, no attempts and no verdicts, and takes no clock: how long to wait is the caller's.
// Lock order: Room.mu is a leaf.
package shm
