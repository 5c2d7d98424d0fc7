package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// checkCommand runs `sluice check ARGS` and gives what it wrote and its exit code.
func checkCommand(t *testing.T, args ...string) (string, int) {
	t.Helper()
	c := newCheckCommand()
	c.SilenceUsage, c.SilenceErrors = true, true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	if err == nil {
		return out.String(), 0
	}
	var exit exitError
	if !errors.As(err, &exit) {
		t.Fatalf("%v: no exit code", err)
	}
	if exit.err != nil {
		out.WriteString(exit.err.Error())
	}
	return out.String(), exit.code
}

const testdata = "../../internal/check/testdata/"

func TestCheckFromTheCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"incident":     {[]string{testdata + "incident/prefill.log"}, 1, "set --context-length 681152"},
		"fixed":        {[]string{testdata + "fixed", "--fail-on", "medium"}, 0, "exit 0"},
		"context":      {[]string{testdata + "fixed", "--context", "1048576"}, 1, "context-not-served"},
		"nothing":      {nil, 3, "name at least one"},
		"unknown flag": {[]string{"--nonsense"}, 3, "unknown flag"},
		"bad number":   {[]string{testdata + "fixed", "--context", "lots"}, 3, "invalid argument"},
		"bad format":   {[]string{testdata + "fixed", "--format", "xml"}, 3, "not one of"},
		"not there":    {[]string{"nowhere.log"}, 2, "no such file"},
		"explain":      {[]string{"explain", "SGL-KV-01"}, 0, "reachable:"},
		"explain none": {[]string{"explain", "nonsense"}, 3, "nothing is called"},
		"explain list": {[]string{"explain", "list"}, 0, "pool-below-context"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := checkCommand(t, c.args...)
			if code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("exit %d, want %d with %q:\n%s", code, c.code, c.says, out)
			}
		})
	}
}

func TestCheckJSONHasExactlyItsKeys(t *testing.T) {
	out, code := checkCommand(t, testdata+"incident", "--format", "json")
	var r map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 || len(r) != 3 || string(r["exit"]) != "1" {
		t.Fatalf("exit %d, %v, %d keys", code, err, len(r))
	}
	for key, want := range map[string]string{"nodes": "context engine name page_size pool_tokens role sources version", "findings": "fix id message node severity source"} {
		var list []map[string]json.RawMessage
		if err := json.Unmarshal(r[key], &list); err != nil || len(list) == 0 {
			t.Fatalf("%s: %v", key, err)
		}
		for _, x := range list {
			for _, k := range strings.Fields(want) {
				if _, ok := x[k]; !ok {
					t.Errorf("%s lacks %s", key, k)
				}
				delete(x, k)
			}
			for k := range x {
				t.Errorf("%s has %s", key, k)
			}
		}
	}
}

func TestAdvisoriesFromTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	run := func(want int, args ...string) string {
		t.Helper()
		c := newAdvisoriesCommand()
		c.SilenceUsage, c.SilenceErrors = true, true
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetArgs(args)
		code := 0
		if err := c.Execute(); err != nil {
			var exit exitError
			if !errors.As(err, &exit) {
				t.Fatalf("%v: no exit code", err)
			}
			code = exit.code
		}
		if code != want {
			t.Errorf("%v: exit %d, want %d\n%s", args, code, want, out.String())
		}
		return out.String()
	}
	if out := run(0, "list", "--engine", "sglang"); !strings.Contains(out, "SGL-KV-01") || strings.Contains(out, "VLLM-") {
		t.Error(out)
	}
	rec := run(0, "show", "CVE-2025-32444")
	if !strings.Contains(rec, `"schema_version": "1.7.5"`) {
		t.Error(rec)
	}
	run(3, "show", "nothing")
	run(3, "show")
	run(0, "verify")
	file := filepath.Join(dir, "rec.json")
	if err := os.WriteFile(file, []byte(rec), 0o600); err != nil {
		t.Fatal(err)
	}
	signed := filepath.Join(dir, "signed.json")
	out := run(0, "sign", file, "--private-key", filepath.Join(dir, "key"), "--out", signed)
	key := strings.TrimSpace(out[strings.Index(out, "--key ")+6:])
	run(0, "verify", "--file", signed, "--key", key)
	run(2, "verify", "--file", signed, "--key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	run(3, "verify", "--file", signed, "--key", "short")
	run(3, "verify", "--file", signed)
}

// container is what of a Kubernetes container the examples use; another key in them is a mistake.
type container struct {
	Name            string           `yaml:"name"`
	Image           string           `yaml:"image"`
	Args            []string         `yaml:"args"`
	Ports           []map[string]any `yaml:"ports"`
	Resources       map[string]any   `yaml:"resources"`
	SecurityContext map[string]any   `yaml:"securityContext"`
	VolumeMounts    []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
	ReadinessProbe map[string]any `yaml:"readinessProbe"`
}

type object struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]any    `yaml:"metadata"`
	Data       map[string]string `yaml:"data"`
	Spec       struct {
		Replicas              int `yaml:"replicas"`
		BackoffLimit          int `yaml:"backoffLimit"`
		ActiveDeadlineSeconds int `yaml:"activeDeadlineSeconds"`
		Selector              struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		Template struct {
			Metadata struct {
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"metadata"`
			Spec struct {
				RestartPolicy   string           `yaml:"restartPolicy"`
				Automount       *bool            `yaml:"automountServiceAccountToken"`
				SecurityContext map[string]any   `yaml:"securityContext"`
				InitContainers  []container      `yaml:"initContainers"`
				Containers      []container      `yaml:"containers"`
				Volumes         []map[string]any `yaml:"volumes"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

func TestKubernetesExamplesAreSound(t *testing.T) {
	files, err := filepath.Glob("../../deploy/check/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v %v", files, err)
	}
	checks := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		dec := yaml.NewDecoder(bytes.NewReader(b))
		dec.KnownFields(true)
		for {
			var o object
			if err := dec.Decode(&o); err != nil {
				if err.Error() != "EOF" {
					t.Errorf("%s: %v", f, err)
				}
				break
			}
			want := map[string]string{"ConfigMap": "v1", "Job": "batch/v1", "Deployment": "apps/v1"}[o.Kind]
			if o.APIVersion != want || o.Metadata["name"] == nil {
				t.Errorf("%s: %s of %q, metadata %v", f, o.Kind, o.APIVersion, o.Metadata)
			}
			if o.Kind == "ConfigMap" {
				continue
			}
			pod := o.Spec.Template
			for k, v := range o.Spec.Selector.MatchLabels {
				if pod.Metadata.Labels[k] != v {
					t.Errorf("%s: the selector does not select its pods", f)
				}
			}
			if o.Kind == "Job" && pod.Spec.RestartPolicy != "Never" {
				t.Errorf("%s: a Job needs restartPolicy Never", f)
			}
			volumes := map[string]bool{}
			for _, v := range pod.Spec.Volumes {
				volumes[v["name"].(string)] = true
			}
			for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				if c.Name == "" || !strings.Contains(c.Image, ":") || strings.HasSuffix(c.Image, ":latest") {
					t.Errorf("%s: container %q, image %q", f, c.Name, c.Image)
				}
				for _, m := range c.VolumeMounts {
					if !volumes[m.Name] {
						t.Errorf("%s: volume %s is not there", f, m.Name)
					}
				}
				if len(c.Args) == 0 || c.Args[0] != "check" {
					continue
				}
				checks++
				cmd := newCheckCommand()
				if err := cmd.ParseFlags(c.Args[1:]); err != nil {
					t.Errorf("%s: %v", f, err)
				}
				for _, a := range cmd.Flags().Args() {
					if !strings.HasPrefix(a, "dns:") {
						t.Errorf("%s: %s", f, a)
					}
				}
				if c.SecurityContext["readOnlyRootFilesystem"] != true || c.SecurityContext["allowPrivilegeEscalation"] != false {
					t.Errorf("%s: %v", f, c.SecurityContext)
				}
			}
		}
	}
	if checks != 3 {
		t.Errorf("%d containers check", checks)
	}
}

func TestTheActionsExampleIsSound(t *testing.T) {
	b, err := os.ReadFile("../../deploy/check/github-actions.yml")
	if err != nil {
		t.Fatal(err)
	}
	var w struct {
		Name        string            `yaml:"name"`
		On          map[string]any    `yaml:"on"`
		Permissions map[string]string `yaml:"permissions"`
		Jobs        map[string]struct {
			RunsOn  string `yaml:"runs-on"`
			Timeout int    `yaml:"timeout-minutes"`
			Steps   []struct {
				Name string            `yaml:"name"`
				Uses string            `yaml:"uses"`
				Run  string            `yaml:"run"`
				If   string            `yaml:"if"`
				With map[string]string `yaml:"with"`
			} `yaml:"steps"`
		} `yaml:"jobs"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&w); err != nil {
		t.Fatal(err)
	}
	if len(w.On) == 0 || w.Permissions["contents"] != "read" || len(w.Jobs) != 1 {
		t.Errorf("%+v", w)
	}
	for id, j := range w.Jobs {
		if j.RunsOn == "" || len(j.Steps) == 0 {
			t.Errorf("%s: %+v", id, j)
		}
		for i, s := range j.Steps {
			if (s.Uses == "") == (s.Run == "") {
				t.Errorf("step %d needs uses or run", i)
			}
			if s.Uses != "" && !strings.Contains(s.Uses, "@v") {
				t.Errorf("step %d: %s has no version", i, s.Uses)
			}
			for l := range strings.Lines(s.Run) {
				args, ok := strings.CutPrefix(strings.TrimSpace(l), "sluice check ")
				if !ok {
					continue
				}
				args, _, _ = strings.Cut(args, ">")
				if err := newCheckCommand().ParseFlags(strings.Fields(args)); err != nil {
					t.Errorf("step %d: %v", i, err)
				}
			}
			if bash, err := exec.LookPath("bash"); err == nil && s.Run != "" {
				c := exec.Command(bash, "-n")
				c.Stdin = strings.NewReader(s.Run)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("step %d: %s", i, out)
				}
			}
		}
	}
}
