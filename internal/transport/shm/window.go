package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluicekv/sluice/internal/mac"
)

// Errors of a window.
var (
	ErrFull    = errors.New("shm: the room for windows is taken")
	ErrMapped  = errors.New("shm: the sender still maps the window: it is not revoked")
	ErrHostile = errors.New("shm: the window cannot be revoked: the sender sealed it, or changed its size")
	ErrMAC     = errors.New("shm: a page's MAC is wrong")
)

// seals are what Revoke sets: nobody writes, nobody changes the size, and nobody changes that.
const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Room bounds the memory of all windows, those in quarantine included. It is safe for concurrent use.
type Room struct {
	mu         sync.Mutex
	most, used int
	quarantine int
}

// NewRoom makes room for windows of so many bytes together.
func NewRoom(most int) *Room { return &Room{most: most} }

// Used is the bytes of all windows, and of those in quarantine.
func (r *Room) Used() (used, quarantine int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used, r.quarantine
}

func (r *Room) take(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.most-r.used {
		return fmt.Errorf("%w: %d bytes wanted, %d of %d left", ErrFull, n, r.most-r.used, r.most)
	}
	r.used += n
	return nil
}

func (r *Room) give(n int, quarantined bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	if quarantined {
		r.quarantine -= n
	}
}

// state of a window. What is true in each:
type state uint8

const (
	open        state = iota // the sender may write; nothing is known of the bytes
	revoked                  // nobody can write, proven by the kernel; the bytes are unchecked
	verified                 // the same, and the MACs are right
	fenced                   // nobody can write; the bytes are gone
	quarantined              // the sender may write for as long as it lives; nobody reads
	closed                   // the memory is gone, or the sender's alone
)

var stateNames = [...]string{"open", "revoked", "verified", "fenced", "quarantined", "closed"}

func (s state) String() string { return stateNames[s] }

// Window is the receiver's end of one grant. It is the receiver's alone, and not safe for concurrent use.
type Window struct {
	room      *Room
	fd        int
	pages     int
	pageBytes int
	state     state
	mem       []byte // read only; nil until Revoke
}

// NewWindow makes the memory of one grant, zero, of so many pages of so many bytes.
func NewWindow(room *Room, pages, pageBytes int) (*Window, error) {
	if pages <= 0 || pageBytes <= 0 || pages > (1<<46)/pageBytes {
		return nil, fmt.Errorf("shm: a window of %d pages of %d bytes", pages, pageBytes)
	}
	w := &Window{room: room, fd: -1, pages: pages, pageBytes: pageBytes}
	if err := room.take(w.size()); err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("sluice-window", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		w.fd = fd
		err = unix.Ftruncate(fd, int64(w.size()))
	}
	if err != nil {
		w.Close(true)
		return nil, fmt.Errorf("shm: a window of %d bytes: %w", w.size(), err)
	}
	return w, nil
}

func (w *Window) size() int { return w.pages * w.pageBytes }

// must panics unless the window is in one of the states.
func (w *Window) must(do string, in ...state) {
	for _, s := range in {
		if w.state == s {
			return
		}
	}
	panic(fmt.Sprintf("shm: %s of a window that is %s", do, w.state))
}

// Revoke takes the sender's right to write away. nil is a proof that nothing can land any more; the bytes are as they were. ErrMapped:
// the sender still maps the window, ask again or Fence. ErrHostile: only quarantine is left; the window is in it.
func (w *Window) Revoke() error {
	w.must("Revoke", open)
	_, err := unix.FcntlInt(uintptr(w.fd), unix.F_ADD_SEALS, seals)
	switch {
	case errors.Is(err, unix.EBUSY):
		return ErrMapped
	case err != nil:
		w.quarantine()
		return fmt.Errorf("%w: %w", ErrHostile, err)
	}
	// From here on nothing about the memfd can change: what is looked at is what will be read.
	var st unix.Stat_t
	if err := unix.Fstat(w.fd, &st); err != nil || st.Size != int64(w.size()) {
		w.state = fenced
		return fmt.Errorf("%w: it has %d bytes, the grant is for %d (%v)", ErrHostile, st.Size, w.size(), err) //nolint:errorlint // err may be nil
	}
	// Private: older kernels take a shared mapping of a sealed file for one that might be made writable. Nothing can be written, so both are the same bytes.
	if w.mem, err = unix.Mmap(w.fd, 0, w.size(), unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
		w.state = fenced
		return fmt.Errorf("shm: mapping a revoked window: %w", err)
	}
	w.state = revoked
	return nil
}

// Fence cuts the window off under a sender that does not let go: its next write faults, wherever it is. The bytes are gone. ErrHostile:
// the sender has sealed it against that, and the window is in quarantine.
func (w *Window) Fence() error {
	w.must("Fence", open)
	if err := unix.Ftruncate(w.fd, 0); err != nil {
		w.quarantine()
		return fmt.Errorf("%w: %w", ErrHostile, err)
	}
	w.state = fenced
	return nil
}

func (w *Window) quarantine() {
	w.state = quarantined
	w.room.mu.Lock()
	w.room.quarantine += w.size()
	w.room.mu.Unlock()
}

// Verify compares every page with its MAC, once, in place. The bytes that are compared are the ones that will be read: nothing can
// write to a revoked window. A wrong one is ErrMAC, and nothing of the window can be read.
func (w *Window) Verify(key *mac.Key, macs []mac.Tag) error {
	w.must("Verify", revoked)
	if len(macs) != w.pages {
		return fmt.Errorf("%w: %d MACs for %d pages", ErrMAC, len(macs), w.pages)
	}
	for i, m := range macs {
		if !mac.Equal(key.Sum(mac.Page, uint64(i), w.mem[i*w.pageBytes:(i+1)*w.pageBytes]), m) {
			return fmt.Errorf("%w: page %d of %d", ErrMAC, i, w.pages)
		}
	}
	w.state = verified
	return nil
}

// Page is a page of a verified window, in place; it is read only, and valid until Close.
func (w *Window) Page(ordinal int) []byte {
	w.must("Page", verified)
	return w.mem[ordinal*w.pageBytes : (ordinal+1)*w.pageBytes : (ordinal+1)*w.pageBytes]
}

// Close gives the memory back. A window that is still open, or in quarantine, may be written to by a sender that lives: Close then keeps its
// bytes on the room's account and reports false, unless senderGone says that its process or connection is known to have ended. Call it again then.
func (w *Window) Close(senderGone bool) bool {
	if w.state == closed {
		return true
	}
	if w.state == open && !senderGone && w.fd >= 0 {
		_ = w.Fence() // quarantined if that fails
	}
	if w.state == quarantined && !senderGone {
		return false
	}
	if w.mem != nil {
		_ = unix.Munmap(w.mem)
		w.mem = nil
	}
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
		w.fd = -1
	}
	w.room.give(w.size(), w.state == quarantined)
	w.state = closed
	return true
}

// File is a second descriptor of the window's memory, to be sent to the sender. The caller closes it.
func (w *Window) File() (*os.File, error) {
	w.must("File", open)
	fd, err := unix.FcntlInt(uintptr(w.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	return os.NewFile(uintptr(fd), "sluice-window"), nil
}
