package main

import (
	"fmt"
	"net"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// identity loads a node's keys from dir. Without a dir, processes that all listen on loopback share the keys of this
// user and machine, made at first use; anything else needs a fleet's keys.
func identity(dir, name string, role wire.Role, listens ...string) (keyring.Identity, *keyring.Fleet, error) {
	if dir != "" {
		id, fleet, err := keyring.Load(dir, name)
		if err == nil && id.Role != role {
			err = fmt.Errorf("the key of %s in %s is for another role", name, dir)
		}
		return id, fleet, err
	}
	for _, a := range listens {
		if a != "" && !onLoopback(a) {
			return keyring.Identity{}, nil, exitError{3, fmt.Errorf("listening on %s needs the keys of a fleet: make them with `sluice keys --dir DIR`, and pass --keys DIR", a)}
		}
	}
	return keyring.Default(keyring.Node{Name: name, Role: role})
}

// onLoopback reports whether an address can be reached from this machine alone.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
