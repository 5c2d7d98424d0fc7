package report

import (
	"html/template"
	"io"
	"strings"

	"github.com/sluicekv/sluice/internal/drill"
)

// square is one cell of the picture: the worst of the cells that fall on it.
type square struct {
	State  string
	Proved bool // red without its guard
	N      int
	Title  string
}

type row struct {
	Class   string
	Squares []square
}

type line struct {
	drill.Cell
	State, Without, Why string
}

type page struct {
	Phases  []string
	Rows    []row
	Lines   []line
	Summary string
	Unsafe  bool
}

// html writes one file that needs no other: the matrix as a picture, and each cell in words.
func html(w io.Writer, m drill.Matrix) error {
	p := page{Phases: drill.Phases, Summary: summary(m), Unsafe: m.Unsafe}
	at := map[string]int{}
	for _, c := range m.Cells {
		p.Lines = append(p.Lines, line{c, state(c), without(c), strings.Join(c.Why, "; ")})
		i, ok := at[c.Class]
		if !ok {
			i = len(p.Rows)
			at[c.Class] = i
			p.Rows = append(p.Rows, row{Class: c.Class, Squares: make([]square, len(drill.Phases))})
		}
		for j, phase := range drill.Phases {
			if c.Phase != phase {
				continue
			}
			s := &p.Rows[i].Squares[j]
			s.N++
			s.Proved = s.Proved || c.RedWithoutGuard != nil && *c.RedWithoutGuard
			if order(state(c)) >= order(s.State) {
				s.State = state(c)
			}
			if s.Title != "" {
				s.Title += "\n"
			}
			s.Title += c.Injected + ": " + dash(c.Guard)
		}
	}
	return tmpl.Execute(w, p)
}

func order(s string) int { return strings.Index("not run green RED", s) }

func css(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }

var tmpl = template.Must(template.New("drill").Funcs(template.FuncMap{"css": css, "dash": dash}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>sluice drill</title>
<style>
:root{--bg:#fff;--fg:#1b1f24;--dim:#667;--line:#d8dde3;--green:#2c8a4b;--red:#c62828;--grey:#9aa4af;--none:#f2f4f6}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8ebee;--dim:#98a2ad;--line:#2b3138;--none:#1d2126}}
body{font:14px/1.45 system-ui,sans-serif;background:var(--bg);color:var(--fg);margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.4rem;margin:0 0 .3rem}p{color:var(--dim);margin:.2rem 0 1.2rem}
.unsafe{background:var(--red);color:#fff;padding:.3rem .6rem;border-radius:4px;display:inline-block}
.scroll{overflow-x:auto}
.grid{display:grid;grid-template-columns:minmax(17rem,2fr) repeat({{len .Phases}},minmax(3.6rem,1fr));gap:3px;align-items:stretch;min-width:56rem}
.grid div{padding:.35rem .4rem;border-radius:3px;text-align:center}.grid .class{text-align:left}.grid .head{color:var(--dim);font-size:12px}
.s{background:var(--none)}.s.green{background:var(--green);color:#fff}.s.red{background:var(--red);color:#fff;font-weight:700}.s.not-run{background:var(--grey);color:#fff}.s.proved{box-shadow:inset 0 -4px 0 #f5b301}
table{border-collapse:collapse;width:100%;margin-top:2rem;font-size:13px}th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums}.w{color:var(--red)}.b{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.4rem}
.b.green{background:var(--green)}.b.red{background:var(--red)}.b.not-run{background:var(--grey)}
</style></head><body>
<h1>sluice drill: every fault class at every phase of the handoff</h1>
<p>{{.Summary}}</p>{{if .Unsafe}}<p><span class="unsafe">UNSAFE build: cells that name a guard were run again without it</span></p>{{end}}
<p><span class="b green"></span>green: as it should be <span class="b red"></span>red: it should not be <span class="b not-run"></span>not run{{if .Unsafe}} <span class="b" style="background:#f5b301"></span>underlined: red once its guard is taken out{{end}}. A number counts the faults of the class at the phase; an empty square is a phase in which the class has no place.</p>
<div class="scroll"><div class="grid" role="table"><div class="class head">fault class</div>{{range .Phases}}<div class="head">{{.}}</div>{{end}}
{{range .Rows}}<div class="class">{{.Class}}</div>{{range .Squares}}<div class="s {{css .State}}{{if .Proved}} proved{{end}}" title="{{.Title}}">{{if .N}}{{.N}}{{end}}</div>{{end}}
{{end}}</div></div>
<div class="scroll"><table><thead><tr><th>class</th><th>phase</th><th>injected</th><th>fired</th><th>met by</th><th>status</th><th>foreign bytes</th><th>pages free</th><th>without its guard</th></tr></thead><tbody>
{{range .Lines}}<tr><td><span class="b {{css .State}}"></span>{{.Class}}</td><td>{{.Phase}}</td><td>{{.Injected}}{{if .Why}}<div class="w">{{.Why}}</div>{{end}}</td><td class="n">{{.Fired}}</td><td>{{dash .Guard}}</td><td class="n">{{.Status}}</td><td class="n">{{.ForeignBytes}}</td><td class="n">{{.PoolFree}}/{{.PoolTotal}}</td><td>{{.Without}}</td></tr>
{{end}}</tbody></table></div></body></html>
`))
