// Package guardmodes holds tests alone: each guard of the gateway in each of its modes, before fake workers that lie with other
// tenants' text. What a client got and what the workers were sent is what they assert on.
package guardmodes
