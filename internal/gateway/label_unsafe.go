//go:build unsafe_guards

package gateway

import "github.com/sluicekv/sluice/internal/guard"

// unsafeLabel marks replies of builds that can take guards out.
func unsafeLabel() string {
	if off := guard.Disabled().String(); off != "" {
		return "guards off: " + off
	}
	return "guards off: none"
}
