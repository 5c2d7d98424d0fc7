//go:build race

package prompt

// racing: the race detector makes everything many times slower, so times are not looked at.
const racing = true
