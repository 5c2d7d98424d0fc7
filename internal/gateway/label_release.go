//go:build !unsafe_guards

package gateway

// unsafeLabel marks replies of builds that can take guards out: not this one.
func unsafeLabel() string { return "" }
