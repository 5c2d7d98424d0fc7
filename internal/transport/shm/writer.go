package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// ErrRevoked is returned to a sender whose window is gone.
var ErrRevoked = errors.New("shm: the window was revoked")

// Writer is the sender's end of one grant.
type Writer struct {
	mem       []byte
	pageBytes int
}

// Map maps a window for writing. The file is the caller's, and may be closed at once.
func Map(f *os.File, pages, pageBytes int) (*Writer, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, pages*pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRevoked, err)
	}
	return &Writer{mem: mem, pageBytes: pageBytes}, nil
}

// Put writes a page, or the beginning of one, where the receiver will read it. ErrRevoked: it faulted, and the attempt is over.
func (w *Writer) Put(ordinal int, payload []byte) (err error) {
	if w.mem == nil || ordinal < 0 || len(payload) > w.pageBytes || (ordinal+1)*w.pageBytes > len(w.mem) {
		return fmt.Errorf("shm: %d bytes for page %d of a window of %d bytes", len(payload), ordinal, len(w.mem))
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			err = fmt.Errorf("%w: a write to page %d faulted", ErrRevoked, ordinal)
		}
	}()
	copy(w.mem[ordinal*w.pageBytes:], payload)
	return nil
}

// Done lets the window go. Only after it can the receiver revoke, and so read; say so to it afterwards.
func (w *Writer) Done() error {
	if w.mem == nil {
		return nil
	}
	err := unix.Munmap(w.mem)
	w.mem = nil
	return err
}

// Send sends a file over a Unix socket, with one byte beside it.
func Send(c *net.UnixConn, f *os.File) error {
	_, _, err := c.WriteMsgUnix([]byte{1}, unix.UnixRights(int(f.Fd())), nil)
	return err
}

// Receive takes a file that Send sent. What else a peer passes is closed.
func Receive(c *net.UnixConn) (*os.File, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*4))
	n, m, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob[:m])
	for i := range messages {
		if got, e := unix.ParseUnixRights(&messages[i]); e == nil {
			fds = append(fds, got...)
		}
	}
	if err == nil && n == 1 && len(fds) == 1 && flags&unix.MSG_CTRUNC == 0 {
		unix.CloseOnExec(fds[0])
		return os.NewFile(uintptr(fds[0]), "sluice-window"), nil
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return nil, errors.Join(fmt.Errorf("shm: a peer sent %d bytes and %d files, not one and one", n, len(fds)), err)
}
