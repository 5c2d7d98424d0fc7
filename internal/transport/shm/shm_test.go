package shm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluicekv/sluice/internal/mac"
)

const (
	testPages = 16
	testBytes = 64 << 10
)

// The test binary is the sender's process, too. It takes one word a line, and answers each with one.
func TestMain(m *testing.M) {
	if os.Getenv("SLUICE_SHM_SENDER") == "" {
		os.Exit(m.Run())
	}
	if err := sender(); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// pattern is what page i holds; late is what comes too late.
func pattern(i int) []byte { return bytes.Repeat([]byte{byte(i + 1), 0x5a, byte(i), 1}, testBytes/4) }

func sender() error {
	conn, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	f, err := Receive(conn.(*net.UnixConn))
	if err != nil {
		return err
	}
	w, err := Map(f, testPages, testBytes)
	if err != nil {
		return err
	}
	fmt.Println("mapped")
	secret := bytes.Repeat([]byte{0xee}, 64)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var err error
		switch in.Text() {
		case "put":
			for i := 0; i < testPages && err == nil; i++ {
				err = w.Put(i, pattern(i))
			}
		case "half":
			err = w.Put(0, pattern(0)[:100])
		case "done":
			err = w.Done()
		case "store": // a late write through the mapping
			err = w.Put(3, secret)
		case "syscall": // the same by the kernel's hand
			r, p, _ := os.Pipe()
			p.Write(secret)
			_, err = unix.Read(int(r.Fd()), w.mem[5*testBytes:5*testBytes+64])
		case "pwrite":
			_, err = f.WriteAt(secret, 7*testBytes)
		case "remap":
			_, err = Map(f, testPages, testBytes)
		case "grow":
			err = f.Truncate(testPages * testBytes)
		case "shrink":
			err = f.Truncate(testBytes)
		case "hostile": // seals that keep the receiver from setting its own
			_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
		}
		switch {
		case err == nil:
			fmt.Println("ok")
		case errors.Is(err, unix.EFAULT):
			fmt.Println("EFAULT")
		case errors.Is(err, unix.EPERM):
			fmt.Println("EPERM")
		case errors.Is(err, ErrRevoked):
			fmt.Println("fault")
		default:
			fmt.Println("error", err)
		}
	}
	return in.Err()
}

// peer is a sender in a process of its own.
type peer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func (p *peer) do(word, want string) {
	p.t.Helper()
	fmt.Fprintln(p.in, word)
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("the sender says %q to %q, want %q", p.out.Text(), word, want)
	}
}

// grant makes a window and hands it to a sender's process, which maps it.
func grant(t *testing.T) (*Room, *Window, *peer) {
	t.Helper()
	room := NewRoom(testPages * testBytes)
	w, err := NewWindow(room, testPages, testBytes)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	p := &peer{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "SLUICE_SHM_SENDER=1")
	p.cmd.ExtraFiles = []*os.File{theirs}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		w.Close(true)
		if used, q := room.Used(); used != 0 || q != 0 {
			t.Errorf("%d bytes of windows are left, %d in quarantine", used, q)
		}
	})
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := w.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Send(c.(*net.UnixConn), f); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() || p.out.Text() != "mapped" {
		t.Fatalf("the sender says %q", p.out.Text())
	}
	return room, w, p
}

func sealed(key *mac.Key) (macs []mac.Tag) {
	for i := range testPages {
		macs = append(macs, key.Sum(mac.Page, uint64(i), pattern(i)))
	}
	return macs
}

// An honest sender: its bytes are read where it wrote them, and nothing that it tries later lands.
func TestWhatWasWrittenIsReadInPlaceAndNothingLandsAfterwards(t *testing.T) {
	_, w, p := grant(t)
	key := mac.New([32]byte{1})
	p.do("put", "ok")
	if err := w.Revoke(); !errors.Is(err, ErrMapped) {
		t.Fatalf("revoked under a sender that maps it: %v", err)
	}
	p.do("done", "ok")
	if err := w.Revoke(); err != nil {
		t.Fatal(err)
	}
	p.do("pwrite", "EPERM")
	p.do("remap", "EPERM")
	p.do("shrink", "EPERM")
	if err := w.Verify(key, sealed(key)); err != nil {
		t.Fatal(err)
	}
	p.do("pwrite", "EPERM")
	for i := range testPages {
		if !bytes.Equal(w.Page(i), pattern(i)) {
			t.Fatalf("page %d is not what was written", i)
		}
	}
}

// A sender that does not let go, or whose write comes late: it faults, in user code and in the kernel, and no byte is left.
func TestALateWriterIsFenced(t *testing.T) {
	_, w, p := grant(t)
	p.do("put", "ok")
	if err := w.Revoke(); !errors.Is(err, ErrMapped) {
		t.Fatal(err)
	}
	if err := w.Fence(); err != nil {
		t.Fatal(err)
	}
	p.do("store", "fault")
	p.do("syscall", "EFAULT")
	var st unix.Stat_t
	if err := unix.Fstat(w.fd, &st); err != nil || st.Size != 0 || st.Blocks != 0 {
		t.Fatalf("%d bytes in %d blocks are left (%v)", st.Size, st.Blocks, err)
	}
	// Growing it again revives the sender's mapping, of memory that is nobody else's and that nobody reads.
	p.do("grow", "ok")
	p.do("store", "ok")
	if !w.Close(false) {
		t.Error("a fenced window is not given back")
	}
}

// The order is what holds: the same late write, let in between the comparison and the read, is read by whoever verifies first.
func TestVerifyingBeforeRevokingReadsForeignBytes(t *testing.T) {
	_, w, p := grant(t)
	key := mac.New([32]byte{1})
	p.do("put", "ok")
	mem, err := unix.Mmap(w.fd, 0, w.size(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	third := mem[3*testBytes : 4*testBytes]
	if !mac.Equal(key.Sum(mac.Page, 3, third), sealed(key)[3]) {
		t.Fatal("the page is not right to begin with")
	}
	p.do("store", "ok")
	if bytes.Equal(third, pattern(3)) {
		t.Fatal("the late write did not land: this test shows nothing")
	}
	// The right order meets the same write with its MAC.
	if err := unix.Munmap(mem); err != nil { // it could be made writable, so it would keep the window from being revoked
		t.Fatal(err)
	}
	p.do("done", "ok")
	if err := w.Revoke(); err != nil {
		t.Fatal(err)
	}
	if err := w.Verify(key, sealed(key)); !errors.Is(err, ErrMAC) {
		t.Fatalf("foreign bytes were verified: %v", err)
	}
	mustPanic(t, "Page of a window that is revoked", func() { w.Page(0) })
}

// A sender that dies in the middle has let go: the window is revoked, and its half-written page is not right.
func TestAKilledSenderHasLetGo(t *testing.T) {
	_, w, p := grant(t)
	p.do("half", "ok")
	p.cmd.Process.Kill()
	p.cmd.Wait()
	if err := w.Revoke(); err != nil {
		t.Fatal(err)
	}
	key := mac.New([32]byte{1})
	if err := w.Verify(key, sealed(key)); !errors.Is(err, ErrMAC) {
		t.Fatal(err)
	}
}

// A sender that seals the window itself keeps it from being revoked and from being cut off: its memory rests until the sender is gone, and
// nobody else's request can get it.
func TestAHostileSenderGetsQuarantine(t *testing.T) {
	room, w, p := grant(t)
	p.do("put", "ok")
	p.do("hostile", "ok")
	if err := w.Fence(); !errors.Is(err, ErrHostile) {
		t.Fatalf("fenced: %v", err)
	}
	if w.Close(false) {
		t.Error("memory that can still be written was given back")
	}
	if used, q := room.Used(); used != w.size() || q != w.size() {
		t.Errorf("%d bytes used, %d in quarantine", used, q)
	}
	if _, err := NewWindow(room, 1, testBytes); !errors.Is(err, ErrFull) {
		t.Errorf("the quarantine does not count: %v", err)
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	if !w.Close(true) {
		t.Error("the sender is gone, and the window is not")
	}
}

func TestASenderThatChangedTheSizeIsRefused(t *testing.T) {
	_, w, p := grant(t)
	p.do("done", "ok")
	p.do("shrink", "ok")
	if err := w.Revoke(); !errors.Is(err, ErrHostile) {
		t.Fatalf("a window of another size was revoked: %v", err)
	}
}

func TestAWindowIsReadInOneOrderOnly(t *testing.T) {
	room := NewRoom(2 * testBytes)
	w, err := NewWindow(room, 1, testBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(true)
	key := mac.New([32]byte{2})
	mustPanic(t, "Verify of a window that is open", func() { _ = w.Verify(key, nil) })
	mustPanic(t, "Page of a window that is open", func() { w.Page(0) })
	if err := w.Revoke(); err != nil {
		t.Fatal(err)
	}
	mustPanic(t, "Fence of a window that is revoked", func() { _ = w.Fence() })
	if err := w.Verify(key, nil); !errors.Is(err, ErrMAC) {
		t.Error(err)
	}
	for _, bad := range [][2]int{{0, 1}, {1, 0}, {-1, 5}, {1 << 40, 1 << 30}} {
		if _, err := NewWindow(room, bad[0], bad[1]); err == nil {
			t.Errorf("%v", bad)
		}
	}
}

func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), want) {
			t.Errorf("panicked with %v, want %q", r, want)
		}
	}()
	f()
}

// What a page costs the receiver, of 16 pages a grant: the whole life of a window against a copy with its MAC out of a buffer that is hot
// (what the TCP transport does after it has read the socket), and against the MAC alone.
func BenchmarkGrant(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		key := mac.New([32]byte{1})
		pages := make([][]byte, testPages)
		macs := make([]mac.Tag, testPages)
		for i := range pages {
			pages[i] = bytes.Repeat([]byte{byte(i + 1)}, size)
			macs[i] = key.Sum(mac.Page, uint64(i), pages[i])
		}
		b.Run(fmt.Sprintf("window/%dKiB", size>>10), func(b *testing.B) {
			room := NewRoom(1 << 30)
			b.SetBytes(int64(testPages * size))
			for b.Loop() {
				w, err := NewWindow(room, testPages, size)
				if err != nil {
					b.Fatal(err)
				}
				f, _ := w.File()
				out, err := Map(f, testPages, size)
				f.Close()
				if err != nil {
					b.Fatal(err)
				}
				for i, p := range pages {
					if err := out.Put(i, p); err != nil {
						b.Fatal(err)
					}
				}
				if err := errors.Join(out.Done(), w.Revoke(), w.Verify(key, macs)); err != nil {
					b.Fatal(err)
				}
				w.Close(true)
			}
		})
		b.Run(fmt.Sprintf("revoke-verify/%dKiB", size>>10), func(b *testing.B) { // the receiver's part alone
			room := NewRoom(1 << 30)
			b.SetBytes(int64(testPages * size))
			for b.Loop() {
				b.StopTimer()
				w, err := NewWindow(room, testPages, size)
				if err != nil {
					b.Fatal(err)
				}
				for i, p := range pages {
					if _, err := unix.Pwrite(w.fd, p, int64(i*size)); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if err := errors.Join(w.Revoke(), w.Verify(key, macs)); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				w.Close(true)
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("copy-mac/%dKiB", size>>10), func(b *testing.B) {
			arena := make([]byte, testPages*size)
			b.SetBytes(int64(testPages * size))
			for b.Loop() {
				for i, p := range pages {
					if !mac.Equal(key.SumCopy(mac.Page, uint64(i), arena[i*size:(i+1)*size], p), macs[i]) {
						b.Fatal(i)
					}
				}
			}
		})
	}
}
