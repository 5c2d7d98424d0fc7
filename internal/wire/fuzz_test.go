package wire

import (
	"bytes"
	"testing"
)

// FuzzDecode: whatever a body holds, Decode refuses it or returns the frame that Append writes as the very same bytes. So there is
// one encoding of every frame, and a MAC over a decoded frame is a MAC over what came.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		if b := appendBody(nil, s.frame); len(b) < 512 {
			f.Add(byte(s.frame.Kind()), b)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		frame, err := Decode(Kind(kind), body)
		if err != nil {
			if frame != nil {
				t.Fatalf("a frame beside %v", err)
			}
			return
		}
		if frame.Kind() != Kind(kind) {
			t.Fatalf("%s decoded as %s", Kind(kind), frame.Kind())
		}
		b, err := Append(nil, frame)
		if err != nil {
			t.Fatalf("decoded but refused: %v", err)
		}
		if !bytes.Equal(b[HeaderSize:], body) {
			t.Fatalf("%x came, %x would be sent", body, b[HeaderSize:])
		}
		switch frame.Kind() {
		case KindAttach, KindGrant, KindManifest, KindEnd, KindAbort:
			if !bytes.Equal(Authenticated(frame), body[:len(body)-macSize]) {
				t.Fatal("the MAC is over other bytes than came")
			}
		}
		switch frame := frame.(type) {
		case Hello:
			_ = Compare(frame, someHello())
			_ = CompareControl(someHello(), frame)
		case Manifest:
			_ = frame.Echo.Agrees(someEcho, false)
		}
	})
}

// FuzzHeader: a header that is taken announces a body within its kind's bound, and is the header that would be written for it.
func FuzzHeader(f *testing.F) {
	for _, s := range samples() {
		if b, err := Append(nil, s.frame); err == nil {
			f.Add(b[:HeaderSize])
		}
	}
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte{0x16, 3, 1, 2, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		if err != nil {
			return
		}
		if h.Body < 0 || h.Body > MaxBody(h.Kind) {
			t.Fatalf("%+v", h)
		}
		if !bytes.Equal(appendHeader(nil, h.Kind, h.Body), b[:HeaderSize]) {
			t.Fatalf("%x is %+v", b[:HeaderSize], h)
		}
	})
}
