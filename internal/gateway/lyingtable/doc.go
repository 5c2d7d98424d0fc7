// Package lyingtable holds no code: its tests put workers that lie, in each way that is known, on each engine, behind a gateway of
// their own, and look at the bytes that a client gets.
package lyingtable
