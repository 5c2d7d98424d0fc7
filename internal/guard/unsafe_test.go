//go:build unsafe_guards

package guard

import "testing"

func TestDisable(t *testing.T) {
	t.Cleanup(func() { Disable(0) })
	if !Unsafe || Off(All) || Disabled() != 0 {
		t.Fatal("a guard is off before it was taken out")
	}
	Disable(MAC | Zero)
	if !Off(MAC) || !Off(Zero) || !Off(MAC|Tag) || Off(Tag) || Off(All&^(MAC|Zero)) || Disabled() != MAC|Zero {
		t.Fatalf("%s are off", Disabled())
	}
	Disable(Tag)
	if Off(MAC) || !Off(Tag) {
		t.Fatal("Disable adds to what was off before")
	}
}
