package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// modelFile is an open model: its file, and the name that the API knows it by.
type modelFile struct {
	*gguf.File
	name string
}

// openModel opens the built-in model or a GGUF file. minMatch is recall's.
func openModel(model string, minMatch int) (modelFile, error) {
	if model == "recall" {
		f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: minMatch}))
		return modelFile{f, "recall"}, err
	}
	if !strings.HasSuffix(strings.ToLower(model), ".gguf") {
		return modelFile{}, exitError{3, fmt.Errorf("--model %q: must be a .gguf file, or recall (the built-in model)", model)}
	}
	f, err := gguf.Open(model)
	if err != nil {
		return modelFile{}, err
	}
	name := strings.TrimSuffix(filepath.Base(model), filepath.Ext(model))
	return modelFile{f, name}, nil
}
