//go:build !unix

package h1

// quiet cannot be asked here: a connection that has ended shows it when it is used.
func (c *conn) quiet() bool { return true }
