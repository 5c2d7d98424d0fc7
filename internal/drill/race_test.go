//go:build race

package drill

func init() { fromOutside = false }
