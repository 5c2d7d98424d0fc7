//go:build !linux || race

package gateway

const canMap = false

func mapped(int) ([]byte, error)        { panic("gateway: bodies are on the heap here") }
func remap([]byte, int) ([]byte, error) { panic("gateway: bodies are on the heap here") }
func unmap([]byte)                      { panic("gateway: bodies are on the heap here") }
