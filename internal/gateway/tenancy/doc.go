// Package tenancy holds tests alone: what of tenants and of keys is on the wire, on both sides of the gateway, before fake workers of
// each engine behind TLS. Keys of workers never reach a client, keys of clients never a worker, and neither a log.
package tenancy
