//go:build race

package llm

// raced: the detector makes arithmetic many times slower; tests then look for races in fewer combinations.
const raced = true
