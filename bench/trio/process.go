package trio

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a running sluice.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	lines chan string
	ended chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

// StartProcess runs a program of any kind under a name of ours.
func StartProcess(name, binary string, env []string, args ...string) (*Process, error) {
	p := &Process{Name: name, cmd: exec.Command(binary, args...), lines: make(chan string, 256), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		r.Close()
		return nil, err
	}
	go p.read(r)
	return p, nil
}

// read keeps what the process prints, and offers each line to whoever waits for one.
func (p *Process) read(r *os.File) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		p.mu.Lock()
		p.out.WriteString(s.Text() + "\n")
		p.mu.Unlock()
		select {
		case p.lines <- s.Text():
		default:
		}
	}
	r.Close()
	p.cmd.Wait()
	close(p.ended)
}

// Output is what the process printed.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// startTime bounds how long a process may take to say that it is up: a real model is read and checked first.
const startTime = 2 * time.Minute

// Expect waits for a line and returns the pattern's groups.
func (p *Process) Expect(pattern string) ([]string, error) {
	re := regexp.MustCompile(pattern)
	late := time.After(startTime)
	for {
		select {
		case l := <-p.lines:
			if m := re.FindStringSubmatch(l); m != nil {
				return m[1:], nil
			}
		case <-p.ended:
			return nil, fmt.Errorf("%s ended:\n%s", p.Name, p.Output())
		case <-late:
			return nil, fmt.Errorf("%s printed no line like %q:\n%s", p.Name, pattern, p.Output())
		}
	}
}

// Stop ends the process and waits for it.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func (p *Process) proc(file string) string { return fmt.Sprintf("/proc/%d/%s", p.PID(), file) }

// CPU is the processor time that the process has taken, all threads together, in the scheduler's own nanoseconds: the 10 ms ticks of
// /proc/PID/stat are too coarse for a second's work.
func (p *Process) CPU() (time.Duration, error) {
	tasks, err := os.ReadDir(p.proc("task"))
	if err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, t := range tasks {
		b, err := os.ReadFile(p.proc("task/" + t.Name() + "/schedstat"))
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has just ended; Go's threads seldom do
		}
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum), nil
}

// Resident is the memory of a process that is resident, in bytes, now and at its peak.
type Resident struct{ Now, Peak int64 }

// Resident reads VmRSS and VmHWM.
func (p *Process) Resident() (r Resident, err error) {
	b, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return r, err
	}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			r.Now = n << 10
		case "VmHWM:":
			r.Peak = n << 10
		}
	}
	if r.Now == 0 || r.Peak == 0 {
		return r, fmt.Errorf("%s: no VmRSS and VmHWM in its status", p.Name)
	}
	return r, nil
}

// ResetPeak makes the peak what is resident now.
func (p *Process) ResetPeak() error {
	return os.WriteFile(p.proc("clear_refs"), []byte("5"), 0)
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }
