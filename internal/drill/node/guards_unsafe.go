//go:build unsafe_guards

package node

import "github.com/sluicekv/sluice/internal/guard"

// without takes guards out of this process.
func without(list string) error {
	g, err := guard.Parse(list)
	if err != nil {
		return err
	}
	guard.Disable(g)
	return nil
}
