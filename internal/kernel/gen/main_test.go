package main

import (
	"os"
	"testing"
)

func TestCommittedKernelsAreTheGenerators(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what the generator writes: run go generate ./internal/kernel", name)
		}
	}
}
