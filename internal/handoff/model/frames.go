package model

import "fmt"

// content is what a page's bytes are.
type content uint8

const (
	zeroes content = 0
	torn   content = 0x40 // bytes that no seal was made of
	old    content = 0x80 // bytes of whoever was here before the model begins
)

// right is the content that attempt r's prefill made for ordinal k.
func right(r int8, k uint8) content { return content(1 + 4*uint8(r) + k) }

func (c content) String() string {
	switch {
	case c == zeroes:
		return "zero"
	case c&old != 0:
		return "old"
	case c&torn != 0:
		return fmt.Sprintf("torn(r%d.%d)", (c&^torn-1)/4, (c&^torn-1)%4)
	}
	return fmt.Sprintf("r%d.%d", (c-1)/4, (c-1)%4)
}

// cell is one page of decode's pool.
type cell struct {
	Owner uint8 // attempt + 1; 0: free
	Gen   uint8
	Pins  uint8
	Data  content
}

// frame is what is on a link.
type frame uint8

const (
	noFrame   frame = iota
	pageFrame       // + ordinal
	_
	tornFrame // + ordinal: bytes that the MAC is not of
	_
	swapFrame // + ordinal: another ordinal's content, rightly sealed for this one
	_
	foreignFrame // + ordinal: the tag of the other attempt's page
	_
	doneFrame // manifest: all is well, and as many pages as were sent
	lieFrame  // manifest: all is well, and as many pages as the plan says
	noManifest
	forgedFrame // manifest whose MAC is wrong
	endFrame
	abortFrame
)

var frameNames = [...]string{"", "page 0", "page 1", "torn page 0", "torn page 1", "swapped page 0", "swapped page 1",
	"page 0 to a foreign tag", "page 1 to a foreign tag", "manifest", "lying manifest", "refusing manifest", "forged manifest", "end", "abort"}

func (f frame) String() string { return frameNames[f] }

// link is frames in order.
type link [maxLink]frame

func (l *link) room(n int) bool { return l[maxLink-n] == noFrame }

func (l *link) put(f frame) {
	for i := range l {
		if l[i] == noFrame {
			l[i] = f
			return
		}
	}
	panic("model: a full link")
}

func (l *link) take() (f frame) {
	f = l[0]
	copy(l[:], l[1:])
	l[maxLink-1] = noFrame
	return f
}
