package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Strict decodes a node into a struct (or a slice or map of them) whose fields have yaml tags. An unknown or repeated key is
// an Error with its line and the nearest known key; so is a value of the wrong type.
func Strict(n *yaml.Node, into any) error {
	if err := errors.Join(unknown(n, reflect.TypeOf(into).Elem())...); err != nil {
		return err
	}
	if err := n.Decode(into); err != nil {
		var te *yaml.TypeError
		if errors.As(err, &te) && len(te.Errors) > 0 {
			line, msg := n.Line, te.Errors[0]
			if _, err := fmt.Sscanf(msg, "line %d:", &line); err == nil {
				_, msg, _ = strings.Cut(msg, ": ")
			}
			return &Error{Line: line, Msg: msg}
		}
		return &Error{Line: n.Line, Msg: err.Error()}
	}
	return nil
}

func unknown(n *yaml.Node, t reflect.Type) (errs []error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		return []error{&Error{Line: n.Line, Msg: "aliases are not allowed here"}}
	}
	switch {
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, c := range n.Content {
			errs = append(errs, unknown(c, t.Elem())...)
		}
	case t.Kind() == reflect.Map && n.Kind == yaml.MappingNode:
		for i := 1; i < len(n.Content); i += 2 {
			errs = append(errs, unknown(n.Content[i], t.Elem())...)
		}
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		if reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()) {
			return nil
		}
		known := map[string]reflect.Type{}
		var names []string
		for f := range fields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if name != "" && name != "-" {
				known[name] = f.Type
				names = append(names, name)
			}
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if line, dup := seen[k.Value]; dup {
				errs = append(errs, &Error{Line: k.Line, Msg: fmt.Sprintf("%q is set twice (first on line %d)", k.Value, line)})
				continue
			}
			seen[k.Value] = k.Line
			ft, ok := known[k.Value]
			if !ok {
				errs = append(errs, &Error{Line: k.Line, Msg: fmt.Sprintf("unknown key %q%s", k.Value, Suggest(k.Value, names))})
				continue
			}
			errs = append(errs, unknown(n.Content[i+1], ft)...)
		}
	case t.Kind() == reflect.Struct && n.Kind != yaml.MappingNode && !reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()):
		errs = append(errs, &Error{Line: n.Line, Msg: "must be a mapping of keys to values"})
	case t.Kind() == reflect.Slice && n.Kind != yaml.SequenceNode:
		errs = append(errs, &Error{Line: n.Line, Msg: "must be a list"})
	}
	return errs
}

// fields yields a struct's own fields, and those of structs that lie inline in it.
func fields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Tag.Get("yaml") == ",inline" {
				for g := range fields(f.Type) {
					if !yield(g) {
						return
					}
				}
				continue
			}
			if !yield(f) {
				return
			}
		}
	}
}
