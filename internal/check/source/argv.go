package source

import (
	"slices"
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// tok is one word of a command with the line that it stands on.
type tok struct {
	s    string
	line int
}

// words splits shell text into logical commands: quotes, backslashes, continued lines and comments as a POSIX shell has
// them; $(…) and variables stay as they are written. A new command begins at a line end, ";", "&&", "||", "|" or "&".
func words(text string, line int) (cmds [][]tok) {
	var cur []tok
	var w strings.Builder
	in, at := false, line
	flush := func() {
		if in {
			cur = append(cur, tok{w.String(), at})
			w.Reset()
			in = false
		}
	}
	end := func() {
		flush()
		if len(cur) > 0 {
			cmds = append(cmds, cur)
			cur = nil
		}
	}
	put := func(c byte) {
		if !in {
			in, at = true, line
		}
		w.WriteByte(c)
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			i++
			switch {
			case text[i] == '\n':
				line++
				flush()
			case text[i] == '\r' && i+1 < len(text) && text[i+1] == '\n':
				i++
				line++
				flush()
			default:
				put(text[i])
			}
		case c == '\'' || c == '"':
			if !in {
				in, at = true, line
			}
			for i++; i < len(text) && text[i] != c; i++ {
				if c == '"' && text[i] == '\\' && i+1 < len(text) && strings.IndexByte("\"\\$`\n", text[i+1]) >= 0 {
					i++
					if text[i] == '\n' {
						line++
						continue
					}
				}
				if text[i] == '\n' {
					line++
				}
				w.WriteByte(text[i])
			}
		case c == '\n':
			end()
			line++
		case c == ' ' || c == '\t' || c == '\r':
			flush()
		case c == ';' || c == '|' || c == '&':
			end()
		case c == '#' && !in:
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		default:
			put(c)
		}
	}
	end()
	return cmds
}

// launch is an engine's command line, taken apart.
type launch struct {
	engine  string
	args    []tok    // after the program
	env     [][2]tok // name, value
	image   tok
	program bool // one of the names of engines' programs was seen
}

// starts reports whether the command starts an engine as far as its words say: a program that is one, an image's own entry
// point, or a script whose text is not here. Another program of an engine's image (a download, a benchmark) is no engine.
func (l launch) starts() bool {
	if l.program || len(l.args) == 0 || strings.HasPrefix(l.args[0].s, "-") {
		return true
	}
	first := l.args[0].s[strings.LastIndexByte(l.args[0].s, '/')+1:]
	return first == "sh" || first == "bash" || strings.HasSuffix(first, ".sh")
}

// programs are the names by which engines are started.
var programs = []struct {
	word, engine string
}{
	{"sglang.launch_server", "sglang"}, {"sglang.srt.entrypoints", "sglang"}, {"launch_server.py", "sglang"},
	{"sglang_router.launch_router", "sglang-router"}, {"sglang-router", "sglang-router"}, {"sglang_router", "sglang-router"},
	{"dynamo.sglang", "sglang"}, {"dynamo.vllm", "vllm"},
	{"vllm.entrypoints.openai.api_server", "vllm"}, {"vllm.entrypoints.api_server", "vllm"}, {"api_server.py", "vllm"},
}

// findLaunch looks for an engine in the words of one command: a program that starts one, or a container run from an
// engine's image. ok is false if there is none.
func findLaunch(ws []tok) (l launch, ok bool) {
	container := false // docker run, podman run, …
	for i := 0; i < len(ws); i++ {
		s := ws[i].s
		if strings.HasPrefix(s, "-") {
			if (s == "-e" || s == "--env") && i+1 < len(ws) {
				if name, val, ok := assignment(ws[i+1].s); ok {
					l.env = append(l.env, [2]tok{{name, ws[i+1].line}, {val, ws[i+1].line}})
				}
				i++
			}
			continue
		}
		if name, val, ok := assignment(s); ok {
			l.env = append(l.env, [2]tok{{name, ws[i].line}, {val, ws[i].line}})
			continue
		}
		base := s[strings.LastIndexByte(s, '/')+1:]
		for _, p := range programs {
			if (base == p.word || s == p.word || strings.HasPrefix(s, p.word+".")) && (strings.Contains(p.word, ".") || i == len(l.env)) {
				l.engine, l.args, l.program = p.engine, ws[i+1:], true
				return l, true
			}
		}
		if (base == "vllm" || base == "sglang") && i+1 < len(ws) && ws[i+1].s == "serve" {
			l.engine, l.args, l.program = base, ws[i+2:], true
			return l, true
		}
		if s == "run" && i > 0 {
			container = true
			continue
		}
		if e := imageEngine(s); e != "" && container && l.image.s == "" && strings.ContainsAny(s, ":/@") && !strings.ContainsAny(s[:1], "$./") {
			l.image, l.engine = ws[i], e
			l.args = ws[i+1:] // an image's own entry point takes what follows
		}
	}
	return l, l.image.s != ""
}

func assignment(s string) (name, val string, ok bool) {
	name, val, ok = strings.Cut(s, "=")
	if !ok || name == "" {
		return "", "", false
	}
	for i := 0; i < len(name); i++ {
		if !word(name[i]) || i == 0 && digit(name[0]) {
			return "", "", false
		}
	}
	return name, val, name == strings.ToUpper(name)
}

// imageEngine is the engine that a container image holds, by its name.
func imageEngine(image string) string {
	l := strings.ToLower(image)
	l, _, _ = strings.Cut(l, "@")
	name := l[strings.LastIndexByte(l, '/')+1:]
	name, _, _ = strings.Cut(name, ":")
	switch {
	case strings.Contains(name, "sglang-router"), strings.Contains(name, "sgl-model-gateway"):
		return "sglang-router"
	case strings.Contains(name, "sglang"):
		return "sglang"
	case strings.Contains(name, "vllm"):
		return "vllm"
	case strings.Contains(l, "aibrix"):
		return "aibrix"
	case strings.Contains(name, "lmdeploy"):
		return "lmdeploy"
	case name == "tritonserver":
		return "triton"
	case name == "llama.cpp":
		return "llama.cpp"
	case name == "ollama":
		return "ollama"
	case strings.Contains(l, "tensorrt-llm"):
		return "trtllm"
	}
	return ""
}

// applyImage records what an image's name says of its release.
func applyImage(n *facts.Node, engine, image string, at facts.Source) {
	l, _, _ := strings.Cut(image, "@")
	i := strings.LastIndexByte(l, ':')
	if i < 0 || strings.Contains(l[i:], "/") {
		n.Note(at, false, "the image %s has no tag: its release is not known", image)
		return
	}
	tag := l[i+1:]
	if engine == "llama.cpp" { // builds are numbered: server-b3561 reads as 0.3561
		if j := strings.LastIndex(tag, "b"); j >= 0 && j+1 < len(tag) {
			if v, rest, ok := number([]byte(tag[j+1:])); ok && len(rest) == 0 {
				n.Put(facts.Version, "0."+itoa(v), at, facts.Args)
			}
		}
		return
	}
	for _, part := range strings.Split(tag, "-") {
		v := leadingVersion(strings.TrimPrefix(part, "v"))
		if v == "" {
			continue
		}
		if strings.Contains(tag, "nightly") || strings.Contains(tag, "dev") && !strings.Contains(v, "dev") {
			v += ".dev0+" + strings.NewReplacer("-", ".", "_", ".").Replace(tag)
		}
		n.Put(facts.Version, v, at, facts.Args)
		return
	}
	n.Put(facts.Version, tag, at, facts.Args)
}

// bare are flags that never take a value; others take one when the next word is no flag.
var bare = map[string]bool{
	"allow_auto_truncate": true, "enable_metrics": true, "disable_radix_cache": true, "disable_overlap_schedule": true, "enable_lora": true,
	"disaggregation_enable_kv_checksum": true, "enable_hierarchical_cache": true, "disaggregation_decode_enable_offload_kvcache": true,
	"enable_pd_role_switch": true, "enable_prefix_caching": true, "enable_prompt_embeds": true, "trust_remote_code": true,
	"enable_streaming_session": true, "enforce_eager": true, "enable_multimodal": true, "encoder_only": true, "language_only": true,
	"is_prefill_worker": true, "is_decode_worker": true, "enable_dp_attention": true, "disable_cuda_graph": true, "grpc_mode": true, "enable_chunked_prefill": true,
}

// applyLaunch records what a command line asks for. expand resolves $(NAME) and ${NAME}; nil leaves them.
func applyLaunch(n *facts.Node, l launch, file string, w facts.Weight, expand func(string) string) {
	at := func(line int) facts.Source { return facts.Source{Name: file, Line: line} }
	if expand == nil {
		expand = func(s string) string { return s }
	}
	n.Manifest = true
	n.Launch = l.starts()
	first := 0
	if len(l.args) > 0 {
		first = l.args[0].line
	} else {
		first = l.image.line
	}
	n.Put(facts.Engine, l.engine, at(first), w)
	if l.image.s != "" {
		applyImage(n, l.engine, l.image.s, at(l.image.line))
	}
	for _, e := range l.env {
		applyEnv(n, e[0].s, expand(e[1].s), at(e[0].line), w)
	}
	for i := 0; i < len(l.args); i++ {
		a := l.args[i]
		if !strings.HasPrefix(a.s, "-") {
			if l.engine == "vllm" && i == 0 || l.engine == "vllm" && l.args[i-1].s == "serve" {
				if m := expand(a.s); !strings.ContainsAny(m, " \n$") && m != "serve" && m != "vllm" {
					n.Put(facts.Model, m, at(a.line), w)
				}
			}
			continue
		}
		key, val, has := strings.Cut(a.s, "=")
		key = strings.ReplaceAll(strings.TrimLeft(key, "-"), "-", "_")
		negated := false
		if rest, ok := strings.CutPrefix(key, "no_"); ok {
			key, negated = rest, true
		}
		line := a.line
		if !has && !negated && !bare[key] && i+1 < len(l.args) && (!strings.HasPrefix(l.args[i+1].s, "-") || isNumber(l.args[i+1].s)) {
			i++
			val, has = l.args[i].s, true
		}
		switch {
		case negated:
			val = "false"
		case !has:
			val = "true"
		default:
			val = expand(val)
		}
		if strings.Contains(val, "$(") || strings.Contains(val, "${") || strings.HasPrefix(val, "$") {
			n.Note(at(line), true, "--%s is %s, which nothing here resolves", strings.ReplaceAll(key, "_", "-"), val)
			continue
		}
		if s, ok := short[key]; ok && l.engine == "sglang" {
			key = s
		}
		apply(n, l.engine, key, val, at(line), w)
	}
	if l.engine == "sglang" && n.Text(facts.Role) == "" {
		n.Put(facts.Role, "both", at(first), facts.Guessed)
		n.Put(facts.PD, "false", at(first), facts.Guessed)
	}
}

func isNumber(s string) bool {
	_, rest, ok := number([]byte(strings.TrimPrefix(s, "-")))
	return ok && len(rest) == 0
}

// readCommands finds engines in shell text: a script, a systemd unit, a Dockerfile, one pasted line.
func readCommands(text, file, id, name string) (nodes []*facts.Node) {
	var exported [][2]tok
	for _, ws := range words(dockerfile(text), 1) {
		if ws[0].s == "export" || ws[0].s == "ENV" {
			for _, w := range ws[1:] {
				if name, val, ok := assignment(w.s); ok {
					exported = append(exported, [2]tok{{name, w.line}, {val, w.line}})
				}
			}
			continue
		}
		l, ok := findLaunch(ws)
		if !ok || l.engine == "" || (l.image.s != "" && len(l.args) == 0 && ws[0].s == "FROM") {
			continue
		}
		l.env = append(slices.Clone(exported), l.env...)
		vars := map[string]string{}
		for _, e := range l.env {
			vars[e[0].s] = e[1].s
		}
		n := &facts.Node{Name: name, ID: id}
		applyLaunch(n, l, file, facts.Asked, func(s string) string { return expandVars(s, vars) })
		nodes = append(nodes, n)
	}
	nameLaunches(nodes, name, id)
	return nodes
}

// nameLaunches gives several nodes of one file names of their own: by role, else by number.
func nameLaunches(nodes []*facts.Node, name, id string) {
	if len(nodes) < 2 {
		return
	}
	roles := map[string]int{}
	for _, n := range nodes {
		roles[n.Text(facts.Role)]++
	}
	for i, n := range nodes {
		suffix := n.Text(facts.Role)
		if suffix == "" || suffix == "both" || roles[suffix] > 1 {
			suffix = itoa(i + 1)
		}
		n.Name = name + "/" + suffix
		n.ID = id + "\x00" + suffix
	}
}

// dockerfile turns exec forms (CMD ["a", "b"]) and unit lines (ExecStart=…) into plain commands.
func dockerfile(text string) string {
	if !strings.Contains(text, "[\"") && !strings.Contains(text, "ExecStart") {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		t := strings.TrimSpace(l)
		for _, p := range []string{"CMD ", "ENTRYPOINT ", "RUN "} {
			if r, ok := strings.CutPrefix(t, p); ok && strings.HasPrefix(strings.TrimSpace(r), "[") {
				r = strings.Trim(strings.TrimSpace(r), "[]")
				lines[i] = strings.ReplaceAll(r, "\",", "\" ")
			}
		}
		if r, ok := strings.CutPrefix(t, "ExecStart="); ok {
			lines[i] = strings.TrimLeft(r, "-@:+!")
		}
	}
	return strings.Join(lines, "\n")
}
