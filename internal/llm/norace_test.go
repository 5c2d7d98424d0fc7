//go:build !race

package llm

const raced = false
