package keyring

import (
	"testing"

	"github.com/sluicekv/sluice/internal/wire"
)

func TestDerivedKeysAreTheSeedsAndNobodyElses(t *testing.T) {
	nodes := []Node{{"prefill", wire.RolePrefill}, {"decode", wire.RoleDecode}}
	a, one := Derived([32]byte{1}, nodes...)
	_, two := Derived([32]byte{1}, nodes...)
	_, other := Derived([32]byte{2}, nodes...)
	if one["decode"].Key() != two["decode"].Key() {
		t.Error("two processes with one seed do not agree")
	}
	if one["decode"].Key() == other["decode"].Key() || one["decode"].Key() == one["prefill"].Key() {
		t.Error("two keys are equal")
	}
	if r, ok := a.Role(one["prefill"].Public()); !ok || r != wire.RolePrefill {
		t.Error("the fleet does not know its own")
	}
	if _, ok := a.Role(other["prefill"].Public()); ok {
		t.Error("the fleet knows another seed's")
	}
}
