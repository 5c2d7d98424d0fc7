//go:build !race

package prompt

const racing = false
