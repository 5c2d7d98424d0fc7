// Package config fills settings from a flag, the environment and a strict YAML file, in that order of precedence.
//
// There is one list of settings a command: its flags. The environment variable of --decode-kv-tokens is
// SLUICE_DECODE_KV_TOKENS, its YAML key decode_kv_tokens. An unknown key is an error that names its line and the nearest
// known key; nothing is applied from a file that has one.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins every environment variable.
const EnvPrefix = "SLUICE_"

// MaxFile bounds a config file, in bytes.
const MaxFile = 4 << 20

// Section reads a key whose value is more than a scalar, or a list of scalars (models:).
type Section func(node *yaml.Node) error

// Error is a mistake in a file, with its place.
type Error struct {
	File string
	Line int
	Msg  string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg) }

// EnvName is the environment variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// KeyName is the YAML key of a flag.
func KeyName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// Load fills the flags that were not given on the command line: from the environment, else from file (if not ""). Flags
// named in skip (config itself) are neither. All mistakes of a file are reported together.
func Load(fs *pflag.FlagSet, file string, sections map[string]Section, skip ...string) error {
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, s := range append(skip, "help") {
		given[s] = true
	}
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if given[f.Name] {
			return
		}
		v, ok := os.LookupEnv(EnvName(f.Name))
		if !ok {
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", EnvName(f.Name), err))
		}
		given[f.Name] = true
	})
	if file != "" {
		errs = append(errs, loadFile(fs, file, sections, given, skip))
	}
	return errors.Join(errs...)
}

func loadFile(fs *pflag.FlagSet, file string, sections map[string]Section, given map[string]bool, skip []string) error {
	root, err := Parse(file)
	if err != nil || root == nil {
		return err
	}
	return loadNode(fs, file, root, sections, given, skip)
}

func loadNode(fs *pflag.FlagSet, file string, root *yaml.Node, sections map[string]Section, given map[string]bool, skip []string) error {
	flags := map[string]string{} // key -> flag name
	fs.VisitAll(func(f *pflag.Flag) { flags[KeyName(f.Name)] = f.Name })
	for _, s := range append(skip, "help") {
		delete(flags, KeyName(s))
	}
	var errs []error
	fail := func(n *yaml.Node, format string, args ...any) {
		errs = append(errs, &Error{file, n.Line, fmt.Sprintf(format, args...)})
	}
	type setting struct {
		node *yaml.Node
		flag string
		vals []string
	}
	var set []setting
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if line, dup := seen[k.Value]; dup {
			fail(k, "%q is set twice (first on line %d)", k.Value, line)
			continue
		}
		seen[k.Value] = k.Line
		if read, ok := sections[k.Value]; ok {
			if err := read(v); err != nil {
				errs = append(errs, placed(file, v, err))
			}
			continue
		}
		name, ok := flags[k.Value]
		if !ok {
			fail(k, "unknown key %q%s", k.Value, nearest(k.Value, flags, sections))
			continue
		}
		vals, err := scalars(v)
		if err != nil {
			fail(v, "%s: %v", k.Value, err)
			continue
		}
		set = append(set, setting{v, name, vals})
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, s := range set {
		if given[s.flag] {
			continue
		}
		for _, v := range s.vals {
			if err := fs.Set(s.flag, v); err != nil {
				fail(s.node, "%s: %v", KeyName(s.flag), err)
			}
		}
	}
	return errors.Join(errs...)
}

// Parse reads a YAML file of one document whose top is a mapping. An empty file is nil.
func Parse(file string) (*yaml.Node, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1)) // a device or a pipe has no size to ask for
	if err != nil {
		return nil, err
	}
	return ParseBytes(file, b)
}

// ParseBytes is Parse of bytes that were read already; file is for messages.
func ParseBytes(file string, b []byte) (*yaml.Node, error) {
	if len(b) > MaxFile {
		return nil, fmt.Errorf("%s: a config file has at most %d bytes", file, MaxFile)
	}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if err.Error() == "EOF" {
			return nil, nil
		}
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		return nil, &Error{file, more.Line, "more than one document"}
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, &Error{file, root.Line, "the top of the file must be a mapping of keys to values"}
	}
	return root, nil
}

func scalars(n *yaml.Node) ([]string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return nil, errors.New("no value")
		}
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		var out []string
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode || c.Tag == "!!null" {
				return nil, errors.New("must be a value or a list of values")
			}
			out = append(out, c.Value)
		}
		return out, nil
	}
	return nil, errors.New("must be a value or a list of values")
}

// placed gives every Error in err its file; an error without a place gets the node's.
func placed(file string, n *yaml.Node, err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, placed(file, n, e))
		}
		return errors.Join(errs...)
	}
	var e *Error
	if errors.As(err, &e) {
		if e.File == "" {
			e.File = file
		}
		return err
	}
	return &Error{file, n.Line, err.Error()}
}

// nearest suggests the known key with the smallest edit distance, if one is close.
func nearest(key string, flags map[string]string, sections map[string]Section) string {
	var known []string
	for k := range flags {
		known = append(known, k)
	}
	for k := range sections {
		known = append(known, k)
	}
	return Suggest(key, known)
}

// Suggest returns `; did you mean "x"?` for the closest of known, or "".
func Suggest(key string, known []string) string {
	sort.Strings(known)
	best, at := len(key)/2+1, ""
	for _, k := range known {
		if d := distance(strings.ReplaceAll(key, "-", "_"), k); d < best {
			best, at = d, k
		}
	}
	if at == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", at)
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diag
			if a[i-1] != b[j-1] {
				cost++
			}
			diag = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
