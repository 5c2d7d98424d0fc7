package advisory

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// Truth is the value of a predicate over facts that may not be known.
type Truth int8

const (
	False Truth = iota
	Unknown
	True
)

func (t Truth) String() string { return [...]string{"false", "unknown", "true"}[t] }

func truth(b bool) Truth {
	if b {
		return True
	}
	return False
}

// Env looks a fact up by name: its text, and whether it is known.
type Env func(name string) (value string, known bool)

// Predicate is a condition on facts: role == "prefill" && pool_tokens - 2*page_size < context && !auto_truncate.
//
// Comparisons: == != < <= > >= and ~ (contains, letters of either case). Numbers may be added, subtracted and
// multiplied. A bare name is a yes-or-no fact. known(x) asks whether x is known. Facts named version or *_version
// compare as releases. With an unknown fact a comparison is unknown, and && || ! follow Kleene.
type Predicate struct {
	text string
	root expr
}

type expr interface {
	truth(Env) Truth
	names(map[string]bool)
}

// ParsePredicate reads a predicate. Every name must be a known fact; with pair, names are prefill.x and decode.x.
func ParsePredicate(s string, pair bool) (p Predicate, err error) {
	ps := &parser{s: s, pair: pair}
	defer func() {
		if r := recover(); r != nil {
			se, ok := r.(syntaxError)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("predicate %q: %s at %d", s, string(se), ps.at)
		}
	}()
	ps.next()
	root := ps.or(0)
	if ps.tok != "" {
		ps.fail("unexpected " + ps.tok)
	}
	return Predicate{s, root}, nil
}

// Eval gives the predicate's value.
func (p Predicate) Eval(env Env) Truth { return p.root.truth(env) }

// Bare reports whether p looks at no fact: every configuration of the release is affected.
func (p Predicate) Bare() bool {
	m := map[string]bool{}
	p.root.names(m)
	return len(m) == 0
}

func (p Predicate) String() string { return p.text }

// Missing lists the names that the predicate needs and env does not know, in order.
func (p Predicate) Missing(env Env) (names []string) {
	m := map[string]bool{}
	p.root.names(m)
	for n := range m {
		if _, ok := env(n); !ok {
			names = append(names, n)
		}
	}
	sortStrings(names)
	return names
}

type syntaxError string

type parser struct {
	s    string
	at   int
	tok  string
	str  bool // tok is a quoted string
	pair bool
}

func (p *parser) fail(msg string) { panic(syntaxError(msg)) }

func (p *parser) next() {
	for p.at < len(p.s) && (p.s[p.at] == ' ' || p.s[p.at] == '\n') {
		p.at++
	}
	p.tok, p.str = "", false
	if p.at >= len(p.s) {
		return
	}
	rest := p.s[p.at:]
	for _, op := range []string{"&&", "||", "==", "!=", "<=", ">="} {
		if strings.HasPrefix(rest, op) {
			p.tok = op
			p.at += 2
			return
		}
	}
	c := rest[0]
	switch {
	case strings.IndexByte("!<>~()+-*", c) >= 0:
		p.tok = rest[:1]
		p.at++
	case c == '"':
		end := strings.IndexByte(rest[1:], '"')
		if end < 0 {
			p.fail("a string that does not end")
		}
		p.tok, p.str = rest[1:end+1], true
		p.at += end + 2
	case letter(c) || c >= '0' && c <= '9':
		i := 0
		for i < len(rest) && (letter(rest[i]) || rest[i] >= '0' && rest[i] <= '9' || rest[i] == '.') {
			i++
		}
		p.tok = rest[:i]
		p.at += i
	default:
		p.fail("unexpected character")
	}
}

func letter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func (p *parser) or(depth int) expr {
	if depth > 50 {
		p.fail("nested too deeply")
	}
	e := p.and(depth)
	for !p.str && p.tok == "||" {
		p.next()
		e = binary{"||", e, p.and(depth)}
	}
	return e
}

func (p *parser) and(depth int) expr {
	e := p.unary(depth)
	for !p.str && p.tok == "&&" {
		p.next()
		e = binary{"&&", e, p.unary(depth)}
	}
	return e
}

func (p *parser) unary(depth int) expr {
	if depth > 50 {
		p.fail("nested too deeply")
	}
	if !p.str && p.tok == "!" {
		p.next()
		return not{p.unary(depth + 1)}
	}
	if !p.str && p.tok == "(" {
		p.next()
		e := p.or(depth + 1)
		if p.tok != ")" || p.str {
			p.fail("a bracket that does not close")
		}
		p.next()
		return e
	}
	if !p.str && p.tok == "known" {
		p.next()
		if p.tok != "(" {
			p.fail("known needs (name)")
		}
		p.next()
		name := p.name()
		if p.tok != ")" {
			p.fail("a bracket that does not close")
		}
		p.next()
		return isKnown(name)
	}
	if !p.str && (p.tok == "true" || p.tok == "false") {
		t := p.tok == "true"
		p.next()
		return constant(t)
	}
	left := p.sum()
	switch op := p.tok; {
	case !p.str && (op == "==" || op == "!=" || op == "<" || op == "<=" || op == ">" || op == ">=" || op == "~"):
		p.next()
		return compare{op, left, p.sum()}
	}
	if len(left.rest) > 0 || left.kind != kindName {
		p.fail("a number or a text is no condition")
	}
	return flag(left.text)
}

// operand is a term with further terms added or subtracted.
type operand struct {
	kind int
	text string
	n    int
	rest []addend
}

type addend struct {
	op string
	by operand
}

const (
	kindName = iota
	kindNumber
	kindText
)

func (p *parser) sum() operand {
	o := p.product()
	for !p.str && (p.tok == "+" || p.tok == "-") {
		op := p.tok
		p.next()
		o.rest = append(o.rest, addend{op, p.product()})
	}
	return o
}

func (p *parser) product() operand {
	o := p.term()
	for !p.str && p.tok == "*" {
		p.next()
		o.rest = append(o.rest, addend{"*", p.term()})
	}
	return o
}

func (p *parser) term() operand {
	switch {
	case p.str:
		t := p.tok
		p.next()
		return operand{kind: kindText, text: t}
	case p.tok == "":
		p.fail("something is missing")
	case p.tok[0] >= '0' && p.tok[0] <= '9':
		n, err := strconv.Atoi(p.tok)
		if err != nil {
			p.fail("not a number: " + p.tok)
		}
		p.next()
		return operand{kind: kindNumber, n: n}
	}
	return operand{kind: kindName, text: p.name()}
}

func (p *parser) name() string {
	n := p.tok
	if p.str || n == "" || !letter(n[0]) {
		p.fail("a name is missing")
	}
	bare := n
	if p.pair {
		leg, rest, ok := strings.Cut(n, ".")
		if !ok || leg != "prefill" && leg != "decode" {
			p.fail("in a pair a name begins with prefill. or decode.: " + n)
		}
		bare = rest
	}
	if !known[facts.Key(bare)] && !derived[bare] {
		p.fail("no fact is named " + n)
	}
	p.next()
	return n
}

var known = facts.Known()

// derived are names that NodeEnv computes.
var derived = map[string]bool{"dsa": true, "version_known": true}

// number gives the value of an operand as a number.
func (o operand) number(env Env) (int, bool) {
	n, ok := o.n, o.kind == kindNumber
	if o.kind == kindName {
		v, known := env(o.text)
		var err error
		n, err = strconv.Atoi(v)
		ok = known && err == nil
	}
	for _, a := range o.rest {
		m, okM := a.by.number(env)
		ok = ok && okM
		switch a.op {
		case "+":
			n += m
		case "-":
			n -= m
		case "*":
			n *= m
		}
	}
	return n, ok
}

func (o operand) names(m map[string]bool) {
	if o.kind == kindName {
		m[o.text] = true
	}
	for _, a := range o.rest {
		a.by.names(m)
	}
}

type compare struct {
	op   string
	l, r operand
}

func (c compare) names(m map[string]bool) { c.l.names(m); c.r.names(m) }

func (c compare) truth(env Env) Truth {
	plain := len(c.l.rest) == 0 && len(c.r.rest) == 0
	if plain && (c.l.kind == kindText || c.r.kind == kindText || c.l.kind == kindName && c.r.kind == kindName) {
		a, okA := textOf(c.l, env)
		b, okB := textOf(c.r, env)
		if !okA || !okB {
			return Unknown
		}
		name := ""
		if c.l.kind == kindName {
			name = c.l.text[strings.LastIndexByte(c.l.text, '.')+1:]
		}
		if name == "version" || strings.HasSuffix(name, "_version") {
			if _, uncertain := Uncertain(a); uncertain && !strings.Contains(a, ".") {
				return Unknown
			}
			return ordered(c.op, Compare(a, b))
		}
		switch c.op {
		case "~":
			return truth(strings.Contains(strings.ToLower(a), strings.ToLower(b)))
		case "==":
			return truth(facts.Same(facts.Key(name), a, b))
		case "!=":
			return truth(!facts.Same(facts.Key(name), a, b))
		}
	}
	a, okA := c.l.number(env)
	b, okB := c.r.number(env)
	if !okA || !okB {
		return Unknown
	}
	return ordered(c.op, sign(a-b))
}

func textOf(o operand, env Env) (string, bool) {
	switch o.kind {
	case kindText:
		return o.text, true
	case kindNumber:
		return strconv.Itoa(o.n), true
	}
	return env(o.text)
}

func ordered(op string, d int) Truth {
	switch op {
	case "==":
		return truth(d == 0)
	case "!=":
		return truth(d != 0)
	case "<":
		return truth(d < 0)
	case "<=":
		return truth(d <= 0)
	case ">":
		return truth(d > 0)
	case ">=":
		return truth(d >= 0)
	}
	return Unknown
}

type binary struct {
	op   string
	l, r expr
}

func (b binary) names(m map[string]bool) { b.l.names(m); b.r.names(m) }

func (b binary) truth(env Env) Truth {
	l, r := b.l.truth(env), b.r.truth(env)
	if b.op == "&&" {
		return min(l, r)
	}
	return max(l, r)
}

type not struct{ e expr }

func (n not) names(m map[string]bool) { n.e.names(m) }
func (n not) truth(env Env) Truth     { return True - n.e.truth(env) }

type constant bool

func (constant) names(map[string]bool) {}
func (c constant) truth(Env) Truth     { return truth(bool(c)) }

type isKnown string

func (isKnown) names(map[string]bool) {}
func (k isKnown) truth(env Env) Truth { _, ok := env(string(k)); return truth(ok) }

type flag string

func (f flag) names(m map[string]bool) { m[string(f)] = true }

func (f flag) truth(env Env) Truth {
	v, ok := env(string(f))
	if !ok {
		return Unknown
	}
	switch strings.ToLower(v) {
	case "true", "1", "yes", "on":
		return True
	}
	return False
}
