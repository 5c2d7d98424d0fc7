package lyingtable

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// A soak's gateway runs in a process of its own, this binary once more, so that what it keeps can be told from what workers and clients
// keep.
const asGateway = "SLUICE_TEST_AS_GATEWAY"

func TestMain(m *testing.M) {
	if os.Getenv(asGateway) != "" {
		if err := beGateway(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// served is a model as the other process is told of it.
type served struct {
	Name, Engine string
	Workers      []servedBy
}

type servedBy struct {
	Role, URL string
	Bootstrap int
}

// doors are where the gateway listens.
type doors struct{ Addr, Admin string }

// kept is what the gateway's process holds on to.
type kept struct {
	Goroutines, Files int
	Heap, Resident    int // bytes; after a collection
}

func (k kept) String() string {
	return fmt.Sprintf("%d goroutines, %d files, heap of %.1f MiB, %.0f MiB resident", k.Goroutines, k.Files, float64(k.Heap)/(1<<20), float64(k.Resident)/(1<<20))
}

// beGateway reads models, says where it listens, and then answers each line with what it keeps.
func beGateway(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	var all []served
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &all); err != nil {
		return err
	}
	var models []gateway.ModelConfig
	for _, m := range all {
		c := foreign.Config{Engine: m.Engine, Every: 200 * time.Millisecond, Patient: 5 * time.Second}
		for _, w := range m.Workers {
			at, err := url.Parse(w.URL)
			if err != nil {
				return err
			}
			c.Workers = append(c.Workers, foreign.Worker{Role: capacity.Role(w.Role), URL: at, BootstrapPort: w.Bootstrap})
		}
		models = append(models, gateway.ModelConfig{Name: m.Name, Guarded: &gateway.Guarded{Fleet: c}})
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	g, err := gateway.New(gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Models: models,
		Modes: gateway.Modes{Each: map[string]gateway.Mode{"first-token": gateway.Enforce, "plausibility": gateway.Off}}})
	if err != nil {
		return err
	}
	if err := g.Start(); err != nil {
		return err
	}
	say := json.NewEncoder(out)
	if err := say.Encode(doors{g.Addr(), g.AdminAddr()}); err != nil {
		return err
	}
	for lines.Scan() {
		if err := say.Encode(keeps()); err != nil {
			return err
		}
	}
	g.Close()
	return lines.Err()
}

// keeps counts what this process holds on to.
func keeps() (k kept) {
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	k.Heap, k.Goroutines = int(m.HeapAlloc), runtime.NumGoroutine()
	files, _ := filepath.Glob("/proc/self/fd/*")
	k.Files = len(files)
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size int
		fmt.Sscan(string(b), &size, &k.Resident)
		k.Resident *= os.Getpagesize()
	}
	return k
}

// other is a gateway in another process.
type other struct {
	doors
	in  io.WriteCloser
	out *json.Decoder
}

func newOther(t *testing.T, models []served) *other {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asGateway+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &other{in: in, out: json.NewDecoder(out)}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gateway's process: %v", err)
		}
	})
	if err := json.NewEncoder(in).Encode(models); err != nil {
		t.Fatal(err)
	}
	if err := o.out.Decode(&o.doors); err != nil {
		t.Fatal(err)
	}
	return o
}

// keeps asks the process what it holds on to.
func (o *other) keeps(t *testing.T) (k kept) {
	t.Helper()
	fmt.Fprintln(o.in)
	if err := o.out.Decode(&k); err != nil {
		t.Fatal(err)
	}
	return k
}
