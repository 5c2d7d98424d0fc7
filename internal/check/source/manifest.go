package source

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// Exposed is a port of a Service that should stay inside the fleet.
type Exposed struct {
	Name, Type string
	Port       int
	At         facts.Source
}

// manifest is what a YAML file said.
type manifest struct {
	nodes   []*facts.Node
	exposed []Exposed
	fleet   []fleetWorker
}

// maxDepth bounds the nesting that is followed.
const maxDepth = 60

// readManifest reads Kubernetes objects, Helm output, values files and compose files: every mapping that starts an engine
// is a node. A gateway's fleet.yaml gives workers to ask.
func readManifest(b []byte, file, id, name string) (m manifest, err error) {
	defer func() {
		if r := recover(); r != nil { // the YAML package panics on some hostile input
			err = fmt.Errorf("not readable as YAML: %v", r)
		}
	}()
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, fmt.Errorf("not readable as YAML: %w", err)
		}
		if len(doc.Content) == 0 {
			continue
		}
		root := doc.Content[0]
		if ws, ok := fleetWorkers(root, file); ok {
			m.fleet = append(m.fleet, ws...)
			continue
		}
		w := walk{m: &m, file: file, id: id, name: name}
		w.object(root)
	}
	seen := map[string]int{}
	for _, n := range m.nodes {
		seen[n.ID]++
		if k := seen[n.ID]; k > 1 {
			n.Name += "#" + strconv.Itoa(k)
			n.ID += "#" + strconv.Itoa(k)
		}
	}
	return m, nil
}

type walk struct {
	m        *manifest
	file     string
	id, name string
}

// object reads one document, or each item of a list.
func (w *walk) object(root *yaml.Node) {
	if root.Kind == yaml.SequenceNode {
		for _, c := range root.Content {
			w.object(c)
		}
		return
	}
	if kind := scalar(root, "kind"); kind == "List" || strings.HasSuffix(kind, "List") && field(root, "items") != nil {
		if items := field(root, "items"); items != nil {
			w.object(items)
		}
		return
	} else if kind == "Service" {
		w.service(root)
		return
	}
	name := w.name
	if md := field(root, "metadata"); md != nil {
		if s := scalar(md, "name"); s != "" {
			name = s
		}
	}
	w.dive(root, name, "", 0)
}

// dive looks for mappings that start an engine. key is the mapping's own key in its parent.
func (w *walk) dive(n *yaml.Node, name, key string, depth int) {
	if depth > maxDepth {
		return
	}
	if n.Kind == yaml.AliasNode {
		return
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, c := range n.Content {
			w.dive(c, name, key, depth+1)
		}
	case yaml.MappingNode:
		if w.container(n, name) {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i].Value, n.Content[i+1]
			child := name
			switch {
			case k == "initContainers": // they end before the pod serves, but for sidecars
				if v = resolved(v); v.Kind == yaml.SequenceNode {
					for _, c := range v.Content {
						if scalar(c, "restartPolicy") == "Always" {
							w.dive(resolved(c), child, k, depth+1)
						}
					}
				}
				continue
			case k == "leaderTemplate":
				child += "/leader"
			case k == "workerTemplate":
				child += "/worker"
			case v.Kind == yaml.MappingNode && (key == "services" || depth == 0 && field(v, "image") != nil):
				child = k // compose service, values file
			}
			w.dive(v, child, k, depth+1)
		}
	}
}

// container reads a mapping with an image, a command or arguments, if they start an engine.
func (w *walk) container(n *yaml.Node, name string) bool {
	image := field(n, "image")
	cmd, args := field(n, "command"), field(n, "args")
	if args == nil {
		args = field(n, "extraArgs")
	}
	if image == nil && cmd == nil && args == nil {
		return false
	}
	env := map[string]string{}
	var envToks [][2]tok
	if e := field(n, "env"); e != nil {
		envToks = readEnv(e, env)
	}
	if e := field(n, "environment"); e != nil { // compose
		envToks = append(envToks, readEnv(e, env)...)
	}
	var ws []tok
	for _, part := range []*yaml.Node{cmd, args} {
		ws = append(ws, commandWords(part)...)
	}
	for _, w := range ws { // NAME=value of a script; a later one may use an earlier one
		if name, val, ok := assignment(w.s); ok {
			env[name] = expandVars(val, env)
		}
	}
	var l launch
	var ok bool
	if image != nil && image.Kind == yaml.MappingNode { // a values file: image: {repository, tag}
		repo := field(image, "repository")
		if repo == nil {
			return false
		}
		img := repo.Value
		if t := scalar(image, "tag"); t != "" {
			img += ":" + t
		}
		image = &yaml.Node{Kind: yaml.ScalarNode, Value: img, Line: repo.Line}
	}
	if l, ok = findLaunch(ws); !ok || l.engine == "" {
		l = launch{args: ws}
		if image != nil {
			l.engine = imageEngine(image.Value)
		}
		if l.engine == "" {
			return false
		}
	}
	if image != nil && image.Kind == yaml.ScalarNode && imageEngine(image.Value) == l.engine {
		l.image = tok{image.Value, image.Line}
	} else if image != nil && imageEngine(image.Value) != "" && l.image.s == "" && strings.HasPrefix(l.engine, imageEngine(image.Value)) {
		l.image = tok{image.Value, image.Line}
	}
	l.env = append(envToks, l.env...)
	node := &facts.Node{Name: name, ID: w.id + "\x00" + name}
	if c := scalar(n, "name"); c != "" && c != name && w.taken(node.ID) {
		node.Name += "/" + c
		node.ID += "/" + c
	}
	if len(l.args) == 0 && l.image.s == "" {
		return false
	}
	applyLaunch(node, l, w.file, facts.Asked, func(s string) string { return expandVars(s, env) })
	w.m.nodes = append(w.m.nodes, node)
	return true
}

func (w *walk) taken(id string) bool {
	for _, n := range w.m.nodes {
		if n.ID == id {
			return true
		}
	}
	return false
}

// commandWords is a command or args value as words: a list, or one text for a shell.
func commandWords(n *yaml.Node) (ws []tok) {
	if n == nil {
		return nil
	}
	switch n.Kind {
	case yaml.ScalarNode:
		for _, c := range words(n.Value, blockLine(n)) {
			ws = append(ws, c...)
		}
	case yaml.SequenceNode:
		for _, c := range n.Content {
			if c = resolved(c); c == nil || c.Kind != yaml.ScalarNode {
				continue
			}
			// "sh -c" with the whole command in one element, or "--flag value" in one.
			if strings.ContainsAny(strings.TrimSpace(c.Value), " \n") && !strings.HasPrefix(strings.TrimSpace(c.Value), "{") && !strings.HasPrefix(c.Value, "--kv-transfer-config=") {
				for _, sub := range words(c.Value, blockLine(c)) {
					ws = append(ws, sub...)
				}
				continue
			}
			ws = append(ws, tok{c.Value, c.Line})
		}
	}
	return ws
}

// blockLine is the line on which a scalar's text begins: a block scalar's begins after its indicator.
func blockLine(n *yaml.Node) int {
	if n.Style == yaml.LiteralStyle || n.Style == yaml.FoldedStyle {
		return n.Line + 1
	}
	return n.Line
}

func readEnv(n *yaml.Node, into map[string]string) (out [][2]tok) {
	add := func(name, val string, line int) {
		into[name] = val
		out = append(out, [2]tok{{name, line}, {val, line}})
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, c := range n.Content {
			switch c.Kind {
			case yaml.MappingNode:
				if name := scalar(c, "name"); name != "" && field(c, "value") != nil {
					add(name, scalar(c, "value"), c.Line)
				}
			case yaml.ScalarNode:
				if name, val, ok := strings.Cut(c.Value, "="); ok {
					add(name, val, c.Line)
				}
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i+1].Kind == yaml.ScalarNode {
				add(n.Content[i].Value, n.Content[i+1].Value, n.Content[i].Line)
			}
		}
	}
	return out
}

// variable is $(NAME) of a manifest, and $NAME, ${NAME} and ${NAME:-default} of a shell.
var variable = regexp.MustCompile(`\$\((\w+)\)|\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)`)

// maxExpanded bounds the text in which variables are still resolved, in bytes.
const maxExpanded = 16 << 10

// expandVars resolves variables from what a container or script sets itself, else from the default written beside them;
// others stay as they are.
func expandVars(s string, env map[string]string) string {
	for range 4 { // a value may name another variable
		if !strings.Contains(s, "$") || len(s) > maxExpanded {
			break
		}
		s = variable.ReplaceAllStringFunc(s, func(v string) string {
			m := variable.FindStringSubmatch(v)
			if val, ok := env[m[1]+m[2]+m[4]]; ok {
				return val
			}
			if m[3] != "" {
				return m[3]
			}
			return v
		})
	}
	return s
}

// insidePorts are the ports that only the fleet's own processes should reach.
var insidePorts = map[int]string{8998: "bootstrap", 5600: "NIXL side channel", 14579: "KV transfer"}

func (w *walk) service(root *yaml.Node) {
	spec := field(root, "spec")
	if spec == nil {
		return
	}
	typ := scalar(spec, "type")
	if typ == "" {
		typ = "ClusterIP"
	}
	name := ""
	if md := field(root, "metadata"); md != nil {
		name = scalar(md, "name")
	}
	ports := field(spec, "ports")
	if ports == nil || ports.Kind != yaml.SequenceNode {
		return
	}
	for _, p := range ports.Content {
		for _, k := range []string{"targetPort", "port"} {
			n, err := strconv.Atoi(scalar(p, k))
			if err != nil {
				continue
			}
			if _, ok := insidePorts[n]; ok {
				w.m.exposed = append(w.m.exposed, Exposed{name, typ, n, facts.Source{Name: w.file, Line: p.Line}})
				break
			}
		}
	}
}

// InsidePort says what listens on a port that should stay inside the fleet; "" for others.
func InsidePort(port int) string { return insidePorts[port] }

func field(n *yaml.Node, key string) *yaml.Node {
	left := maxMerges
	return fieldWithin(n, key, &left)
}

// fieldWithin follows anchors and merge keys; left bounds those that contain themselves or each other many times.
func fieldWithin(n *yaml.Node, key string, left *int) *yaml.Node {
	if n = resolved(n); n == nil || n.Kind != yaml.MappingNode || *left < 0 {
		return nil
	}
	*left--
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return resolved(n.Content[i+1])
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			continue
		}
		from := resolved(n.Content[i+1])
		list := []*yaml.Node{from}
		if from != nil && from.Kind == yaml.SequenceNode {
			list = from.Content
		}
		for _, m := range list {
			if f := fieldWithin(m, key, left); f != nil {
				return f
			}
		}
	}
	return nil
}

// maxMerges bounds the mappings that are searched for one key.
const maxMerges = 64

// resolved is what an alias stands for.
func resolved(n *yaml.Node) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.AliasNode && i < maxMerges; i++ {
		n = n.Alias
	}
	return n
}

func scalar(n *yaml.Node, key string) string {
	if f := field(n, key); f != nil && f.Kind == yaml.ScalarNode && f.Tag != "!!null" {
		return f.Value
	}
	return ""
}

// fleetWorker is a worker of the gateway's fleet.yaml: where it is, and what is pinned by hand.
type fleetWorker struct {
	url    string
	engine string
	model  string
	role   string
	pinned map[facts.Key]string
	at     facts.Source
}

// fleetWorkers reads models: [{name, engine, workers: [{role, url, …}]}].
func fleetWorkers(root *yaml.Node, file string) (ws []fleetWorker, ok bool) {
	models := field(root, "models")
	if models == nil || models.Kind != yaml.SequenceNode {
		return nil, false
	}
	for _, m := range models.Content {
		list := field(m, "workers")
		if list == nil || list.Kind != yaml.SequenceNode {
			continue
		}
		engine := scalar(m, "engine")
		engine, connector, _ := strings.Cut(engine, "-") // vllm-nixl
		for _, w := range list.Content {
			url := scalar(w, "url")
			if url == "" {
				continue
			}
			ok = true
			fw := fleetWorker{url: url, engine: engine, model: scalar(m, "name"), role: scalar(w, "role"),
				pinned: map[facts.Key]string{}, at: facts.Source{Name: file, Line: w.Line}}
			for k, key := range map[string]facts.Key{"pool_tokens": facts.Pool, "context": facts.Context, "page_size": facts.PageSize,
				"version": facts.Version, "kv_dtype": facts.KVDType, "bootstrap_port": facts.BootstrapPort} {
				if v := scalar(w, k); v != "" {
					fw.pinned[key] = v
				}
			}
			if connector != "" {
				fw.pinned[facts.Connector] = connector
			}
			ws = append(ws, fw)
		}
	}
	return ws, ok
}
