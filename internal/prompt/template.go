package prompt

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/ardanlabs/jinja"
)

// Bounds of one render.
const (
	renderTime   = 10 * time.Second
	renderSteps  = 20_000_000 // bodies of loops and macros begun
	renderRange  = 1_000_000  // numbers that range() has made
	renderFrames = 2000       // of the Go stack: a macro that calls itself
	// renderSpare is what a template may say of its own, besides renderFactor times what it was given.
	renderSpare  = 1 << 20
	renderFactor = 16
)

// template is a chat template, ready to render. It is safe for concurrent use.
type template struct {
	engine *jinja.Template
	src    *source
	named  map[string]string // bos_token and the like
	limit  time.Duration
	keeps  bool // see KeepsContent
}

func newTemplate(s string, named map[string]string) (*template, error) {
	src, err := readSource(s)
	if err != nil {
		return nil, fmt.Errorf("prompt: the chat template is refused: %w", err)
	}
	t := &template{src: src, named: named, limit: renderTime}
	err = guarded(func() (err error) {
		t.engine, err = jinja.Compile(src.rewritten)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("prompt: the chat template does not compile: %w", err)
	}
	t.keeps = t.tryContents()
	return t, nil
}

// guarded turns a panic of the template engine into an error.
func guarded(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("the template engine panicked")
		}
	}()
	return fn()
}

// line is a message on its way through a template.
type line struct{ role, content string }

// render renders a conversation and asks for the assistant's next words.
func (t *template) render(ls []line) (string, error) {
	given := 0
	messages := make([]jinja.Value, len(ls))
	for i, l := range ls {
		m := jinja.NewDict()
		m.AsDict().Set("role", jinja.NewString(l.role))
		m.AsDict().Set("content", jinja.NewString(l.content))
		messages[i] = m
		given += len(l.content) + 256
	}
	watch := &watch{end: time.Now().Add(t.limit), texts: t.src.texts}
	vars := map[string]jinja.Value{
		"messages": jinja.NewList(messages), "add_generation_prompt": jinja.NewBool(true),
		"tools": jinja.None(), "documents": jinja.None(),
		"range": jinja.NewCallable("range", watch.numbers), "raise_exception": jinja.NewCallable("raise_exception", watch.raise),
		tickCall: jinja.NewCallable(tickCall, watch.tick),
	}
	for k, v := range t.named {
		vars[k] = jinja.NewString(v)
	}
	var out string
	err := guarded(func() (err error) {
		out, err = t.engine.RenderValues(vars)
		return err
	})
	switch {
	case watch.reason != "":
		return "", &TemplateFailed{watch.reason}
	case err != nil:
		return "", &TemplateFailed{"it does not work for these messages"} // the engine's own words may quote them
	case len(out) > renderSpare+renderFactor*given:
		return "", &TemplateFailed{fmt.Sprintf("it made %d bytes of %d", len(out), given)}
	}
	return out, nil
}

// watch is what a running template calls. reason is why it was stopped.
type watch struct {
	end    time.Time
	steps  int
	made   int64
	texts  map[string]bool
	reason string
}

var errStopped = errors.New("stopped")

func (w *watch) stop(format string, a ...any) (jinja.Value, error) {
	if w.reason == "" {
		w.reason = fmt.Sprintf(format, a...)
	}
	return jinja.Undefined(), errStopped
}

// tick is called at the start of each body of a loop or macro.
func (w *watch) tick([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	w.steps++
	var deep [1]uintptr
	switch {
	case w.reason != "":
		return jinja.Undefined(), errStopped
	case w.steps > renderSteps:
		return w.stop("it took more than %d steps", renderSteps)
	case w.steps%64 == 1 && time.Now().After(w.end):
		return w.stop("it took too long")
	case w.steps%16 == 1 && runtime.Callers(renderFrames, deep[:]) > 0:
		return w.stop("its macros call each other without end")
	}
	return jinja.None(), nil
}

// numbers is range().
func (w *watch) numbers(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var n [3]int64
	n[2] = 1
	if len(args) < 1 || len(args) > 3 {
		return w.stop("range() takes 1 to 3 numbers")
	}
	for i, a := range args {
		if !a.IsInt() {
			return w.stop("range() takes whole numbers")
		}
		n[i] = a.AsInt()
	}
	if len(args) == 1 {
		n[0], n[1] = 0, n[0]
	}
	var items []jinja.Value
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if w.made++; w.made > renderRange {
			return w.stop("range() made more than %d numbers", renderRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	if n[2] == 0 {
		return w.stop("range() by 0")
	}
	return jinja.NewList(items), nil
}

// raise is raise_exception(). Its words are passed on if they are the template's own.
func (w *watch) raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 1 && args[0].IsString() && w.texts[args[0].AsString()] {
		return w.stop("%s", strconv.Quote(args[0].AsString()))
	}
	return w.stop("it raised an exception")
}
