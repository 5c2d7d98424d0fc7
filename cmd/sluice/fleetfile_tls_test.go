package main

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/certs"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
)

// A worker's own files stand over its model's.
func TestTLSOfWorkers(t *testing.T) {
	ms, err := readFleet(t, `
- name: m
  engine: plain
  salt_as: cache_salt
  tls: {ca_file: ca.pem, cert_file: c.pem, key_file: k.pem}
  workers:
    - {url: "https://a:1"}
    - {url: "https://b:1", tls: {ca_file: other.pem, server_name: b.example}}
`)
	if err != nil {
		t.Fatal(err)
	}
	g, err := ms[0].guarded()
	if err != nil {
		t.Fatal(err)
	}
	ws := g.Fleet.Workers
	if g.SaltAs != "cache_salt" || g.Fleet.TLS != (certs.ClientFiles{CA: "ca.pem", Cert: "c.pem", Key: "k.pem"}) || ws[0].TLS != (certs.ClientFiles{}) || ws[1].TLS != (certs.ClientFiles{CA: "other.pem", ServerName: "b.example"}) {
		t.Errorf("%+v %+v", g.Fleet.TLS, ws)
	}
	// Files that are not there are an error when the gateway starts, and name the worker.
	if _, err := foreign.New(g.Fleet); err == nil || !strings.Contains(err.Error(), "model m: certs: open") && !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
	for text, want := range map[string]string{
		`[{name: m, engine: plain, workers: [{url: "http://h:1", tls: {ca_file: x}}]}]`:                                                                      "tls is for https://",
		`[{name: m, engine: plain, workers: [{url: "https://h:1", tls: {cert_file: x}}]}]`:                                                                   "go together",
		`[{name: m, engine: plain, tls: {key_file: x}, workers: [{url: "https://h:1"}]}]`:                                                                    "go together",
		`[{name: m, engine: plain, tls: {insecure: true}, workers: [{url: "https://h:1"}]}]`:                                                                 "insecure",
		`[{name: m, engine: plain, salt_as: user, workers: [{url: "http://h:1"}]}]`:                                                                          "cache_salt or extra_key",
		`[{name: m, engine: sglang, messages: true, workers: [{role: prefill, url: "http://h:1", pool_tokens: 99}, {role: decode, url: "http://h:2"}]}]`:     "messages: is for plain workers",
		`[{name: m, engine: native, messages: true, workers: [{role: prefill, url: "sluice://h:1"}, {role: decode, url: "sluice://h:2"}]}]`:                  "messages: is for plain workers",
		`[{name: m, engine: sglang, salt_as: extra_key, workers: [{role: prefill, url: "http://h:1", pool_tokens: 99}, {role: decode, url: "http://h:2"}]}]`: "is for plain workers",
	} {
		if _, err := readFleet(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
