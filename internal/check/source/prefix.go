package source

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// carrier takes the wrapping of a collector off a line: who wrote it (a pod, a container, a unit; "" when nothing says)
// and the line as the engine printed it. Several wrappings may be nested (kubectl --prefix --timestamps over CRI).
func carrier(b []byte) (who string, rest []byte) {
	rest = b
	for range 4 {
		w, r, ok := unwrap(rest)
		if !ok {
			return who, rest
		}
		rest = r
		if w != "" && !strings.Contains("/"+who+"/", "/"+w+"/") {
			if who == "" {
				who = w
			} else {
				who += "/" + w
			}
		}
	}
	return who, rest
}

func unwrap(b []byte) (who string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", b, false
	}
	switch {
	case b[0] == '{':
		return unwrapJSON(b)
	case bytes.HasPrefix(b, []byte("[pod/")): // kubectl logs --prefix: [pod/NAME/CONTAINER] line
		if i := bytes.IndexByte(b, ']'); i > 0 {
			who, _, _ = strings.Cut(string(b[len("[pod/"):i]), "/")
			return who, bytes.TrimLeft(b[i+1:], " "), true
		}
	case digit(b[0]) && isoTime(b) > 0: // CRI, kubectl --timestamps, docker --timestamps
		r := bytes.TrimLeft(b[isoTime(b):], " ")
		for _, s := range [...]string{"stdout F ", "stderr F ", "stdout P ", "stderr P "} {
			r = bytes.TrimPrefix(r, []byte(s))
		}
		if bytes.HasPrefix(r, []byte("- ")) { // "2026-.. - INFO" is a logger's own time, no wrapping
			return "", b, false
		}
		return "", r, true
	}
	// docker compose: "prefill-1  | line"; the name has no blanks.
	if i := bytes.IndexByte(b[:min(len(b), 80)], '|'); i > 1 && b[i-1] == ' ' {
		if name := bytes.TrimRight(b[:i], " "); len(name) > 0 && !bytes.ContainsAny(name, " \t[](){}=\"'") && i+1 < len(b) && b[i+1] == ' ' {
			return string(name), b[i+2:], true
		}
	}
	if w, r, ok := journal(b); ok {
		return w, r, true
	}
	return stern(b)
}

// isoTime is the length of an RFC 3339 time at the start of b (with T and a zone), or 0.
func isoTime(b []byte) int {
	if len(b) < 20 || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' {
		return 0
	}
	i := 19
	for i < len(b) && b[i] != ' ' {
		i++
	}
	if i == len(b) || i > 40 {
		return 0
	}
	if last := b[i-1]; last != 'Z' && b[i-3] != ':' && !digit(last) {
		return 0
	}
	return i
}

// journal takes off "Nov 30 13:50:07 host unit[123]: ".
func journal(b []byte) (string, []byte, bool) {
	if len(b) < 20 || b[3] != ' ' || b[6] != ' ' || b[9] != ':' || b[12] != ':' || b[15] != ' ' {
		return "", b, false
	}
	if _, err := time.Parse("Jan", string(b[:3])); err != nil {
		return "", b, false
	}
	host, r, ok := bytes.Cut(b[16:], []byte{' '})
	if !ok || len(host) > 80 {
		return "", b, false
	}
	unit, line, ok := bytes.Cut(r, []byte(": "))
	if !ok || len(unit) > 80 || bytes.ContainsAny(unit, " =") {
		return string(host), r, true
	}
	name, _, _ := strings.Cut(string(unit), "[")
	return string(host) + "/" + name, line, true
}

// stern takes off "pod-name container line" when the line then begins the way an engine's does.
func stern(b []byte) (string, []byte, bool) {
	pod, r, ok := bytes.Cut(b[:min(len(b), 400)], []byte{' '})
	if !ok || !podName(pod) || bytes.IndexByte(pod, '-') < 0 {
		return "", b, false
	}
	r = bytes.TrimPrefix(bytes.TrimLeft(r, " "), []byte("› "))
	box, r, ok := bytes.Cut(r, []byte{' '})
	if !ok || !podName(box) || len(r) == 0 {
		return "", b, false
	}
	if r[0] != '[' && r[0] != '(' && !bytes.HasPrefix(r, []byte("INFO ")) && !bytes.HasPrefix(r, []byte("WARNING ")) &&
		!bytes.HasPrefix(r, []byte("ERROR ")) && isoTime(r) == 0 {
		return "", b, false
	}
	i := bytes.Index(b, r)
	return string(pod), b[i:], true
}

func podName(b []byte) bool {
	if len(b) == 0 || len(b) > 253 || !(b[0] >= 'a' && b[0] <= 'z') {
		return false
	}
	for _, c := range b {
		if !(c >= 'a' && c <= 'z') && !digit(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// envelope is what log collectors put around a line.
type envelope struct {
	Log        *string `json:"log"`
	Message    *string `json:"message"`
	Msg        *string `json:"msg"`
	Line       *string `json:"line"`
	Body       *string `json:"body"`
	Text       *string `json:"textPayload"`
	Pod        string  `json:"pod"`
	PodName    string  `json:"pod_name"`
	Hostname   string  `json:"hostname"`
	Host       string  `json:"host"`
	Container  string  `json:"container_name"`
	Journal    *string `json:"MESSAGE"`
	JHost      string  `json:"_HOSTNAME"`
	JUnit      string  `json:"_SYSTEMD_UNIT"`
	Kubernetes struct {
		Pod string `json:"pod_name"`
	} `json:"kubernetes"`
	Resource struct {
		Labels struct {
			Pod string `json:"pod_name"`
		} `json:"labels"`
	} `json:"resource"`
	Labels struct {
		Pod string `json:"pod"`
	} `json:"labels"`
	Stream struct {
		Pod string `json:"pod"`
	} `json:"streamLabels"`
}

func unwrapJSON(b []byte) (string, []byte, bool) {
	var e envelope
	if json.Unmarshal(b, &e) != nil {
		// docker's own "stream":"stdout" is a string where Loki has labels: look at the text alone.
		var d struct {
			Log *string `json:"log"`
		}
		if json.Unmarshal(b, &d) != nil || d.Log == nil {
			return "", b, false
		}
		return "", []byte(strings.TrimRight(*d.Log, "\n")), true
	}
	who := ""
	for _, w := range [...]string{e.Kubernetes.Pod, e.Pod, e.PodName, e.Resource.Labels.Pod, e.Labels.Pod, e.Stream.Pod, e.JHost, e.Hostname, e.Host, e.Container} {
		if w != "" {
			who = w
			break
		}
	}
	for _, t := range [...]*string{e.Log, e.Message, e.Msg, e.Line, e.Body, e.Text, e.Journal} {
		if t != nil {
			return who, []byte(strings.TrimRight(*t, "\n")), true
		}
	}
	return "", b, false
}

// engineTime reads the time and the ranks of an engine's own prefix: "[2026-09-02 10:00:01 DP0 TP0 EP0] line". Ranks of
// data parallelism only: those have a pool of their own.
func engineTime(b []byte) (t time.Time, dp string) {
	if len(b) == 0 || b[0] != '[' {
		return t, ""
	}
	i := bytes.IndexByte(b[:min(len(b), 100)], ']')
	if i < 20 {
		return t, ""
	}
	t, err := time.Parse("2006-01-02 15:04:05", string(b[1:20]))
	if err != nil {
		return time.Time{}, ""
	}
	for f := range strings.FieldsSeq(string(b[20:i])) {
		if strings.HasPrefix(f, "DP") || strings.HasPrefix(f, "PP") || strings.HasPrefix(f, "ATTN_CP") {
			if dp != "" {
				dp += " "
			}
			dp += f
		}
	}
	return t, dp
}

// fullRank is every rank of the prefix: "DP0 TP1 EP0".
func fullRank(b []byte) string {
	if len(b) == 0 || b[0] != '[' {
		return ""
	}
	i := bytes.IndexByte(b[:min(len(b), 100)], ']')
	if i < 20 {
		return ""
	}
	return strings.TrimSpace(string(b[20:i]))
}

// tensorRank is "TP3" of an engine's prefix, "" if it has none.
func tensorRank(b []byte) string {
	for f := range strings.FieldsSeq(fullRank(b)) {
		if strings.HasPrefix(f, "TP") {
			return f
		}
	}
	return ""
}

// coreRank is the data-parallel rank of vLLM's prefix: "(EngineCore_DP1 pid=7)" is DP1.
func coreRank(b []byte) string {
	r, ok := after(b[:min(len(b), 200)], "EngineCore_DP")
	if !ok {
		return ""
	}
	n, _, ok := number(r)
	if !ok {
		return ""
	}
	return "DP" + itoa(n)
}
