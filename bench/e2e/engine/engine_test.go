package engine

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A worker is a group of processes: all of it is counted, all of it ends, and what it did not want in its environment is not there.
func TestAGroupEndsWhole(t *testing.T) {
	t.Setenv("LEFT_OUT", "here")
	log := filepath.Join(t.TempDir(), "log")
	group, err := Start([]string{"sh", "-c", `echo "$LEFT_OUT/$PUT_IN"; sleep 600 & sleep 601; true`}, log, []string{"LEFT_OUT"}, []string{"PUT_IN=there"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	said := ""
	for end := time.Now().Add(10 * time.Second); said == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, _ := os.ReadFile(log)
		said = string(b)
	}
	if strings.TrimSpace(said) != "/there" {
		t.Errorf("its environment says %q", said)
	}
	if !Runs(group, "sleep 601") || Runs(group, "another program") || Runs(0, "") {
		t.Error("who runs is not told apart")
	}
	if n := Resident(group); n <= 0 {
		t.Errorf("%d bytes are resident", n)
	}
	if err := Stop(group); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-group, 0); err == nil {
		t.Error("something of the group is left")
	}
	if Resident(group) != 0 {
		t.Error("a group that has ended holds memory")
	}
	if err := Stop(group); err != nil {
		t.Errorf("a group that has ended: %v", err)
	}
}

func TestCounters(t *testing.T) {
	page := []byte("# HELP a_total what\na_total{x=\"1\"} 2\na_total{x=\"2 3\"} 4e0\na_total_created{x=\"1\"} 9\na_total{x=\"1\"} 1\nb_total 7\na_total{x=\"4\"} word\nb_total\n")
	got := Counters(page, "a_total")
	if len(got) != 2 || got[`{x="1"}`] != 3 || got[`{x="2 3"}`] != 4 || Total(got) != 7 {
		t.Error(got)
	}
	if got := Counters(page, "b_total"); len(got) != 1 || got[""] != 7 {
		t.Error(got)
	}
}
