package tenant

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// # The file
//
// One key a line: its id, the SHA-256 of the key in hex, and options, parted by blanks. Lines that are empty or begin with # say
// nothing.
//
//	alice      5e88…42d8  models=recall,big concurrency=8 requests=600/m tokens=200000/m
//	alice-new  a3f1…09cc  tenant=alice expires=2027-06-30
//	bob        77be…10aa  off
//
// A key's tenant is the one of its id, unless tenant= names it: several keys of one tenant let a key be replaced. Limits, models and
// the scope belong to the tenant, and stand on any one line of it.

// maxName bounds ids and the names of tenants and scopes, in bytes.
const maxName = 64

// maxLine bounds a line.
const maxLine = 64 << 10

// Read reads keys. Errors name the line and never hold a key or its hash.
func Read(r io.Reader, secret []byte) (*Keys, error) {
	k := &Keys{byHash: map[[sha256.Size]byte]*entry{}}
	rand.Read(k.pepper[:])
	holders := map[string]*holder{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	n := 0
	for s.Scan() {
		n++
		text := strings.TrimSpace(s.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		if err := k.line(holders, n, strings.Fields(text)); err != nil {
			return nil, fmt.Errorf("tenant: line %d: %w", n, err)
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("tenant: line %d: it has more than %d bytes", n+1, maxLine)
	} else if err != nil {
		return nil, fmt.Errorf("tenant: %w", err)
	}
	if len(k.byHash) == 0 {
		return nil, errors.New("tenant: no keys")
	}
	// Two tenants never share: neither pages, nor caches, nor digests.
	of := map[string]string{}
	for i, h := range k.tenants {
		if h.label == "" {
			h.label = h.name
		}
		if other, taken := of[h.label]; taken {
			return nil, fmt.Errorf("tenant: tenants %s and %s have the same scope %s", other, h.name, h.label)
		}
		of[h.label] = h.name
		if err := h.limits.check(); err != nil {
			return nil, fmt.Errorf("tenant: tenant %s: %w", h.name, err)
		}
		h.tenant = Tenant{ID: h.name, Scope: scopeOf(secret, h.label), label: h.name, models: h.models}
		if i >= MaxLabels {
			h.tenant.label = Other
		}
	}
	return k, nil
}

// line takes one key.
func (k *Keys) line(holders map[string]*holder, n int, f []string) error {
	e := &entry{id: f[0]}
	if len(f) < 2 || !named(f[0]) || len(f[1]) != 2*len(e.hash) {
		return fmt.Errorf("a line is an id of at most %d letters, digits and -_.@, %d hex digits, and options", maxName, 2*len(e.hash))
	}
	if _, err := hex.Decode(e.hash[:], []byte(f[1])); err != nil {
		return errors.New("the hash is not hex")
	}
	if _, twice := k.byHash[k.place(e.hash)]; twice {
		return errors.New("the same key as before")
	}
	options := map[string]string{}
	for _, o := range f[2:] {
		name, value, given := strings.Cut(o, "=")
		if _, twice := options[name]; twice {
			return fmt.Errorf("%s= stands twice", word(name))
		}
		if !slices.Contains(optionNames, name) {
			return fmt.Errorf("there is no option %s; there are %s", word(name), strings.Join(optionNames, ", "))
		}
		if given == (name == "off") || given && value == "" {
			return fmt.Errorf("an option is NAME=VALUE, or the word off, not %s", word(o))
		}
		options[name] = value
	}
	owner := e.id
	if t, ok := options["tenant"]; ok {
		if !named(t) {
			return fmt.Errorf("tenant=%s: a name is at most %d letters, digits and -_.@", word(t), maxName)
		}
		owner = t
	}
	h := holders[owner]
	if h == nil {
		h = &holder{name: owner, set: map[string]int{}}
		holders[owner] = h
		k.tenants = append(k.tenants, h)
	}
	_, e.off = options["off"]
	if s, ok := options["expires"]; ok {
		var err error
		if e.expires, err = date(s); err != nil {
			return err
		}
	}
	for _, name := range optionNames {
		value, given := options[name]
		if !given || ofKey[name] {
			continue
		}
		if at, twice := h.set[name]; twice {
			return fmt.Errorf("%s= of tenant %s stands on line %d already", name, owner, at)
		}
		h.set[name] = n
		if err := h.option(name, value); err != nil {
			return fmt.Errorf("%s=%s: %w", name, word(value), err)
		}
	}
	e.of = h
	h.keys = append(h.keys, e)
	k.byHash[k.place(e.hash)] = e
	return nil
}

// optionNames in the order that messages name them.
var optionNames = []string{"tenant", "scope", "models", "concurrency", "requests", "requests_burst", "tokens", "tokens_burst", "expires", "off"}

// ofKey are the options of a key; the others are its tenant's.
var ofKey = map[string]bool{"tenant": true, "expires": true, "off": true}

// option takes an option of a tenant.
func (h *holder) option(name, value string) (err error) {
	switch name {
	case "scope":
		if h.label = value; !named(value) {
			err = fmt.Errorf("a name is at most %d letters, digits and -_.@", maxName)
		}
	case "models":
		h.models = map[string]bool{}
		for m := range strings.SplitSeq(value, ",") {
			if m == "" {
				return errors.New("a name is empty")
			}
			h.models[m] = true
		}
	default:
		err = h.limits.set(name, value)
	}
	return err
}

// date reads a day (its end, UTC) or a moment.
func date(s string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, s); err == nil {
		return t.AddDate(0, 0, 1), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("expires=%s is not a day like 2027-06-30 nor a moment like 2027-06-30T12:00:00Z", word(s))
}

// named reports whether s can be an id: what cannot harm a log, a metric or this file.
func named(s string) bool {
	return s != "" && len(s) <= maxName && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.@", r))
	}) < 0
}

// word is what a message shows of the file: not more of a line than names a mistake, in case a key stands where it should not.
func word(s string) string {
	if len(s) > 16 {
		return fmt.Sprintf("a word of %d bytes", len(s))
	}
	return fmt.Sprintf("%q", s)
}

func sorted(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }
