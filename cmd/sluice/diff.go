package main

import (
	"fmt"
	"reflect"
	"strings"
)

// diffStruct says in which settings two values differ, by their names in the file: "hold.bytes was 1, now 2". Fields named in skip are
// left out.
func diffStruct(prefix string, a, b any, skip ...string) []string {
	return diffValues(prefix, reflect.ValueOf(a), reflect.ValueOf(b), skip...)
}

func diffValues(prefix string, va, vb reflect.Value, skip ...string) (out []string) {
	t := va.Type()
	for i := range t.NumField() {
		tag := t.Field(i).Tag.Get("yaml")
		name, _, _ := strings.Cut(tag, ",")
		x, y := va.Field(i), vb.Field(i)
		left := false
		for _, s := range skip {
			left = left || s == name
		}
		switch {
		case left:
		case tag == ",inline":
			out = append(out, diffValues(prefix, x, y, skip...)...)
		case x.Kind() == reflect.Struct:
			out = append(out, diffValues(prefix+name+".", x, y)...)
		case reflect.DeepEqual(x.Interface(), y.Interface()):
		default:
			out = append(out, fmt.Sprintf("%s%s was %s, now %s", prefix, name, shown(x), shown(y)))
		}
	}
	return out
}

func shown(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "not set"
		}
		v = v.Elem()
	}
	if v.IsZero() && v.Kind() != reflect.Bool && v.Kind() != reflect.Int {
		return "not set"
	}
	s := fmt.Sprintf("%v", v.Interface())
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return s
}
