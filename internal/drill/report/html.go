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
:root{--bg:#fff;--fg:#1b1f24;--dim:#667;--line:#d8dde3;--green:#2c8a4b;--red:#c62828;--grey:#9aa4af;--none:#f2f4f6;--why:#b71c1c}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8ebee;--dim:#98a2ad;--line:#2b3138;--none:#1d2126;--why:#ff8a80}}
body{font:14px/1.45 system-ui,sans-serif;background:var(--bg);color:var(--fg);margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.4rem;margin:0 0 .3rem}p{color:var(--dim);margin:.2rem 0 1.2rem}
.unsafe{background:var(--red);color:#fff;padding:.3rem .6rem;border-radius:4px;display:inline-block}
.scroll{overflow-x:auto}
.grid{display:grid;grid-template-columns:minmax(17rem,2fr) repeat({{len .Phases}},minmax(3.6rem,1fr));gap:3px;align-items:stretch;min-width:56rem}
.grid div{padding:.35rem .4rem;border-radius:3px;display:flex;align-items:center;justify-content:center}.grid .class{justify-content:flex-start}.grid .head{color:var(--dim);font-size:12px}
.s{background:var(--none)}.s.green{background:var(--green);color:#fff}.s.red{background:var(--red);color:#fff;font-weight:700}.s.not-run{background:var(--grey);color:#fff}.s.proved{box-shadow:inset 0 -4px 0 #f5b301}
table{border-collapse:collapse;width:100%;margin-top:2rem;font-size:13px}th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:600}th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}th{vertical-align:bottom}.said{width:28%;min-width:12rem;overflow-wrap:anywhere}.w{color:var(--why)}.b{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.4rem}
.b.green{background:var(--green)}.b.red{background:var(--red)}.b.not-run{background:var(--grey)}.b.proved{background:#f5b301}.key{display:inline-block;margin-right:1rem}
@media(max-width:60rem){.grid{grid-template-columns:minmax(7.5rem,2fr) repeat({{len .Phases}},minmax(1.35rem,1fr));gap:2px;min-width:0;font-size:12px}.grid div{padding:.25rem .1rem;overflow-wrap:anywhere}
.grid .head:not(.class){writing-mode:vertical-rl;justify-content:flex-end;padding-bottom:.3rem}
table,tbody,tr,td{display:block;width:auto}thead{display:none}tr{border-bottom:1px solid var(--line);padding:.5rem 0}td{border:0;padding:.05rem 0}td.n{text-align:left}td:first-child{font-weight:600}.said{width:auto}
td[data-is]:not(.said){display:inline-block;margin-right:.9rem}td[data-is]::before{content:attr(data-is)": ";color:var(--dim)}}
@media print{body{margin:0;max-width:none}.s,.b,.unsafe{print-color-adjust:exact;-webkit-print-color-adjust:exact}tr{break-inside:avoid}}
</style></head><body>
<h1>sluice drill: every fault class at every phase of the handoff</h1>
<p>{{.Summary}}</p>{{if .Unsafe}}<p><span class="unsafe">UNSAFE build: cells that name a guard were run again without it</span></p>{{end}}
<p><span class="key"><span class="b green"></span>green: as it should be</span><span class="key"><span class="b red"></span>red: it should not be</span><span class="key"><span class="b not-run"></span>not run</span>{{if .Unsafe}}<span class="key"><span class="b proved"></span>underlined: red once its guard is taken out</span>{{end}}<br>A number counts the faults of the class at the phase; an empty square is a phase in which the class has no place.</p>
<div class="scroll"><div class="grid" role="table"><div class="class head">fault class</div>{{range .Phases}}<div class="head">{{.}}</div>{{end}}
{{range .Rows}}<div class="class">{{.Class}}</div>{{range .Squares}}<div class="s {{css .State}}{{if .Proved}} proved{{end}}" title="{{.Title}}">{{if .N}}{{.N}}{{end}}</div>{{end}}
{{end}}</div></div>
<div class="scroll"><table><thead><tr><th>class</th><th>phase</th><th class="said">injected</th><th class="n">fired</th><th>met by</th><th class="n">status</th><th class="n">foreign bytes</th><th class="n">pages free</th><th class="said">without its guard</th></tr></thead><tbody>
{{range .Lines}}<tr><td><span class="b {{css .State}}"></span>{{.Class}}</td><td data-is="phase">{{.Phase}}</td><td class="said">{{.Injected}}{{if .Why}}<div class="w">{{.Why}}</div>{{end}}</td><td class="n" data-is="fired">{{.Fired}}</td><td data-is="met by">{{dash .Guard}}</td><td class="n" data-is="status">{{.Status}}</td><td class="n" data-is="foreign bytes">{{.ForeignBytes}}</td><td class="n" data-is="pages free">{{.PoolFree}}/{{.PoolTotal}}</td><td class="said" data-is="without its guard">{{.Without}}</td></tr>
{{end}}</tbody></table></div></body></html>
`))
