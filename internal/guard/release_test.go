//go:build !unsafe_guards

package guard

import "testing"

func TestNothingIsOff(t *testing.T) {
	if Unsafe || Off(All) || Off(0) {
		t.Fatal("a guard is off in the release build")
	}
}
