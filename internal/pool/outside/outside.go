// Package outside looks at a pool's arena from outside its process: it finds the memfd sluice-pool-<role> in
// /proc/PID/maps and reads /proc/PID/mem. It believes nothing that the process says of itself, and shares no code with it.
//
// It needs the rights of a debugger over the process (the same user, or CAP_SYS_PTRACE, as the system's ptrace policy
// says). It changes nothing; parts of the arena that were never touched are skipped, and so stay out of memory.
package outside

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrNoArena is returned when the process maps no arena of that role.
var ErrNoArena = errors.New("outside: no such arena")

// chunk is how much is read at a time.
const chunk = 1 << 20

// Scan reads the whole arena of a role. bytes is its size, nonzero the number of bytes that are not zero: 0 when every
// page was returned and scrubbed.
func Scan(pid int, role string) (bytes, nonzero uint64, err error) {
	bytes, err = Walk(pid, role, func(_ uint64, b []byte) error {
		nonzero += count(b)
		return nil
	})
	return bytes, nonzero, err
}

// Walk calls f with the arena's touched parts in ascending order, in pieces of at most 1 MiB: their offset in the arena and
// their bytes, valid during the call. What it leaves out is zero. size is the arena's size in bytes.
func Walk(pid int, role string, f func(offset uint64, b []byte) error) (size uint64, err error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	defer maps.Close()
	ranges, err := parseMaps(maps, name(role))
	if err != nil {
		return 0, err
	}
	if len(ranges) == 0 {
		return 0, fmt.Errorf("%w: process %d maps no %s", ErrNoArena, pid, name(role))
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	buf := make([]byte, chunk)
	for _, r := range ranges {
		size += r.end - r.start
		holes := openArena(pid, r.inode)
		err := r.walk(mem, holes, buf, f)
		holes.Close() // of nil: an error, and nothing else
		if err != nil {
			return size, err
		}
	}
	return size, nil
}

// walk reads one mapped range. holes is the file it maps, or nil.
func (r mapped) walk(mem io.ReaderAt, holes *os.File, buf []byte, f func(uint64, []byte) error) error {
	for at := r.start; at < r.end; {
		if holes != nil {
			data, err := holes.Seek(int64(r.offset+at-r.start), seekData)
			switch {
			case errors.Is(err, syscall.ENXIO): // nothing but a hole from here to the file's end
				return nil
			case err == nil:
				at = r.start + uint64(data) - r.offset
			}
			if at >= r.end {
				return nil
			}
		}
		n := min(chunk, r.end-at)
		if got, err := mem.ReadAt(buf[:n], int64(at)); uint64(got) < n {
			return fmt.Errorf("outside: reading %d bytes at %x: got %d: %w", n, at, got, err)
		}
		if err := f(r.offset+at-r.start, buf[:n]); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// seekData is lseek's SEEK_DATA.
const seekData = 3

// mapped is a range of addresses, and where in which file it starts.
type mapped struct{ start, end, offset, inode uint64 }

// name is how the kernel writes the arena's name, in maps and as the target of its descriptor.
func name(role string) string { return "/memfd:sluice-pool-" + role + " (deleted)" }

// parseMaps finds the ranges of a file in the text of /proc/PID/maps. A line is
// start-end permissions offset device inode path, in hex but for the inode.
func parseMaps(r io.Reader, path string) (ranges []mapped, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasSuffix(line, " "+path) {
			continue
		}
		var m mapped
		f := strings.Fields(strings.TrimSuffix(line, path))
		if len(f) != 5 {
			return nil, fmt.Errorf("outside: a line of maps with %d fields before the path: %q", len(f), line)
		}
		start, end, _ := strings.Cut(f[0], "-")
		for _, field := range []struct {
			text string
			base int
			into *uint64
		}{{start, 16, &m.start}, {end, 16, &m.end}, {f[2], 16, &m.offset}, {f[4], 10, &m.inode}} {
			v, err := strconv.ParseUint(field.text, field.base, 64)
			if err != nil {
				return nil, fmt.Errorf("outside: a line of maps that is no range: %q", line)
			}
			*field.into = v
		}
		if m.end <= m.start {
			return nil, fmt.Errorf("outside: a line of maps that is no range: %q", line)
		}
		ranges = append(ranges, m)
	}
	return ranges, lines.Err()
}

// openArena opens the process's descriptor of a file, for its holes alone. Nil when it cannot: then all is read.
func openArena(pid int, inode uint64) *os.File {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		var st syscall.Stat_t
		if to, err := os.Readlink(at); err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue // do not touch what is not an arena: opening a device or a pipe may do something
		}
		if syscall.Stat(at, &st) != nil || st.Ino != inode {
			continue
		}
		if f, err := os.Open(at); err == nil {
			return f
		}
	}
	return nil
}

// count counts the bytes that are not zero.
func count(b []byte) (n uint64) {
	for len(b) >= 32 {
		if binary.NativeEndian.Uint64(b)|binary.NativeEndian.Uint64(b[8:])|binary.NativeEndian.Uint64(b[16:])|binary.NativeEndian.Uint64(b[24:]) != 0 {
			n += countEach(b[:32])
		}
		b = b[32:]
	}
	return n + countEach(b)
}

func countEach(b []byte) (n uint64) {
	for _, x := range b {
		if x != 0 {
			n++
		}
	}
	return n
}
