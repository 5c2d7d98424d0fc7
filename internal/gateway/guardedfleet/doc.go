// Package guardedfleet tests the gateway before fleets of fakes that change: workers that restart, lie, leave, come back.
package guardedfleet
