package advisory

import "testing"

func TestEmbeddedDatabaseIsWhole(t *testing.T) {
	es, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	if len(es) < 60 {
		t.Fatalf("%d entries", len(es))
	}
}
