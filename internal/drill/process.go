package drill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/drill/node"
)

// errGone is returned for a command to a process that has ended.
var errGone = errors.New("drill: the process has ended")

// process is one node of a fleet: this binary again, as a child.
type process struct {
	cfg   node.Config
	cmd   *exec.Cmd
	in    io.WriteCloser
	up    node.Reply
	gone  chan struct{} // closed when it has ended
	ended func()        // waits for the program's end
	err   bytes.Buffer  // what it said on standard error; read it once gone

	mu     sync.Mutex
	nextID int
	asked  map[int]chan node.Reply
}

// spawn starts a node and waits until it is up. pipe is where it puts its events. Without a program it is one of this process's
// goroutines, and cannot be killed.
func spawn(ctx context.Context, program []string, cfg node.Config, pipe *os.File) (*process, error) {
	p := &process{cfg: cfg, gone: make(chan struct{}), asked: map[int]chan node.Reply{}}
	if program == nil {
		in, toIn := io.Pipe()
		fromOut, out := io.Pipe()
		p.in, p.ended = toIn, func() {}
		go func() {
			err := node.Run(in, out, pipe)
			if err != nil {
				p.err.WriteString(err.Error())
			}
			in.Close()
			out.Close()
		}()
		return p, p.meet(ctx, fromOut)
	}
	p.ended = func() { _ = p.cmd.Wait() } // how it ended is in ProcessState
	p.cmd = exec.Command(program[0], program[1:]...)
	p.cmd.Stderr = &p.err
	p.cmd.ExtraFiles = []*os.File{pipe}
	p.cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "GOTRACEBACK=single")
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, p.meet(ctx, out)
}

// meet tells the node what to be, and waits until it is.
func (p *process) meet(ctx context.Context, out io.Reader) error {
	first := make(chan node.Reply, 1)
	p.asked[0] = first
	go p.read(out)
	if err := json.NewEncoder(p.in).Encode(p.cfg); err != nil {
		p.kill()
		return err
	}
	select {
	case p.up = <-first:
		return nil
	case <-p.gone:
		return fmt.Errorf("drill: %s did not come up: %s", p.cfg.Kind, bytes.TrimSpace(p.err.Bytes()))
	case <-ctx.Done():
		p.kill()
		return ctx.Err()
	}
}

func (p *process) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(make([]byte, 64<<10), 1<<20)
	for s.Scan() {
		var r node.Reply
		if json.Unmarshal(s.Bytes(), &r) != nil {
			continue
		}
		p.mu.Lock()
		c := p.asked[r.ID]
		delete(p.asked, r.ID)
		p.mu.Unlock()
		if c != nil {
			c <- r
		}
	}
	p.ended()
	close(p.gone)
}

// do sends a command and waits for its reply.
func (p *process) do(ctx context.Context, c node.Command) (node.Reply, error) {
	got := make(chan node.Reply, 1)
	p.mu.Lock()
	p.nextID++
	c.ID = p.nextID
	p.asked[c.ID] = got
	err := json.NewEncoder(p.in).Encode(c)
	p.mu.Unlock()
	if err != nil {
		return node.Reply{}, errGone
	}
	select {
	case r := <-got:
		if r.Error != "" {
			return r, errors.New(r.Error)
		}
		return r, nil
	case <-p.gone:
		return node.Reply{}, errGone
	case <-ctx.Done():
		return node.Reply{}, fmt.Errorf("drill: %s does not answer %q: %w", p.cfg.Kind, c.Do, ctx.Err())
	}
}

// alive reports whether it runs.
func (p *process) alive() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

func (p *process) pid() int {
	if p.cmd == nil {
		return os.Getpid()
	}
	return p.cmd.Process.Pid
}

func (p *process) signal(s syscall.Signal) {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s)
	}
}

// kill ends it at once and waits.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	if p.cmd == nil {
		p.in.Close()
	}
	<-p.gone
}

// close lets it end well, for a moment.
func (p *process) close(ctx context.Context) {
	if !p.alive() {
		return
	}
	p.signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, _ = p.do(ctx, node.Command{Do: node.DoClose})
	p.in.Close()
	select {
	case <-p.gone:
	case <-ctx.Done():
		p.kill()
	}
}
