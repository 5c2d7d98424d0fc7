package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Control is a handler that tests outside this process steer a fleet with:
//
//	GET  /state                         workers, requests, violations, leaks
//	POST /lie?tell=LEG:KIND[,options]   of every pair, or of pair N with &pair=N
//	POST /honest
//	POST /restart?worker=NAME[&pool=N]
//	POST /kill?worker=NAME
//	POST /freeze?worker=NAME            until /thaw
//	POST /thaw
func Control(f *Fleet, pairs []*Pair) http.Handler {
	mux := http.NewServeMux()
	var thaws []func()
	worker := func(rw http.ResponseWriter, r *http.Request) *actor.Worker {
		for _, p := range pairs {
			for _, w := range p.Workers() {
				if w.Config().Name == r.FormValue("worker") {
					return w
				}
			}
		}
		http.Error(rw, "no such worker", http.StatusNotFound)
		return nil
	}
	mux.HandleFunc("GET /state", func(rw http.ResponseWriter, _ *http.Request) {
		type one struct {
			Name, Leg, URL          string
			Requests, Prompt, Reply int64
		}
		state := struct {
			Workers    []one
			Violations []Violation
			Leaks      []Leak
		}{Violations: f.Violations(), Leaks: f.Leaks()}
		for _, p := range pairs {
			for _, w := range p.Workers() {
				c := w.Config()
				state.Workers = append(state.Workers, one{c.Name, c.Leg.String(), w.URL(), w.Requests.Load(), w.PromptTokens.Load(), w.ReplyTokens.Load()})
			}
		}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(state)
	})
	mux.HandleFunc("POST /lie", func(rw http.ResponseWriter, r *http.Request) {
		l, err := actor.ParseLie(r.FormValue("tell"))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		only := -1
		if s := r.FormValue("pair"); s != "" {
			if only, err = strconv.Atoi(s); err != nil || only < 0 || only >= len(pairs) {
				http.Error(rw, "no such pair", http.StatusNotFound)
				return
			}
		}
		for i, p := range pairs {
			if only < 0 || only == i {
				p.Tell(l)
			}
		}
	})
	mux.HandleFunc("POST /honest", func(http.ResponseWriter, *http.Request) {
		for _, p := range pairs {
			p.Honest()
		}
	})
	mux.HandleFunc("POST /restart", func(rw http.ResponseWriter, r *http.Request) {
		w := worker(rw, r)
		if w == nil {
			return
		}
		pool, _ := strconv.Atoi(r.FormValue("pool"))
		if err := w.Restart(func(c *actor.Config) {
			if pool > 0 {
				c.Pool = pool
			}
		}); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /kill", func(rw http.ResponseWriter, r *http.Request) {
		if w := worker(rw, r); w != nil {
			w.Kill()
		}
	})
	mux.HandleFunc("POST /freeze", func(rw http.ResponseWriter, r *http.Request) {
		if w := worker(rw, r); w != nil {
			thaws = append(thaws, w.Freeze())
		}
	})
	mux.HandleFunc("POST /thaw", func(rw http.ResponseWriter, _ *http.Request) {
		for _, t := range thaws {
			t()
		}
		fmt.Fprintln(rw, len(thaws))
		thaws = nil
	})
	return one(mux)
}

// one serves one request at a time.
func one(h http.Handler) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		turn <- struct{}{}
		defer func() { <-turn }()
		h.ServeHTTP(rw, r)
	})
}
