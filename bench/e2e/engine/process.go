// Package engine is what the drivers of real engines share: a worker is a process group that outlives the driver between its steps, and says
// what it has done in its metrics. It is no client, and knows nothing of a gateway.
package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Start runs a program in a process group of its own, which outlives this program; group is its number. What the program says goes to the file
// log. Its environment is this program's without the variables named in drop, and with those in more, as NAME=VALUE.
func Start(args []string, log string, drop, more []string) (group int, err error) {
	f, err := os.Create(log)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(drop, name) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }()
	return cmd.Process.Pid, nil
}

// Runs reports whether the leader of a group runs and has text in its command line: numbers are used again, and another program is nobody's.
func Runs(group int, text string) bool {
	if group <= 0 {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", group))
	return err == nil && bytes.Contains(line, []byte(text))
}

const (
	patience = 20 * time.Second // for a group that was asked to end
	harsh    = 10 * time.Second // for one that was killed
)

// Stop ends a group, and returns when no process of it is left.
func Stop(group int) error {
	for _, way := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, patience}, {syscall.SIGKILL, harsh}} {
		err := syscall.Kill(-group, way.signal)
		for end := time.Now().Add(way.wait); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if errors.Is(err, syscall.ESRCH) {
				return nil
			}
			err = syscall.Kill(-group, 0)
		}
	}
	return fmt.Errorf("process group %d does not end", group)
}

// Resident is the memory of all processes of some groups that is resident, in bytes; what they share is counted once.
func Resident(groups ...int) (sum int64) {
	found, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range found {
		stat, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		// pid (name) state parent group …
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 3 {
			continue
		}
		if group, _ := strconv.Atoi(f[2]); group == 0 || !slices.Contains(groups, group) {
			continue
		}
		rollup, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "smaps_rollup"))
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				n, _ := strconv.ParseInt(f[1], 10, 64)
				sum += n << 10
			}
		}
	}
	return sum
}
