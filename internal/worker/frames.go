package worker

import (
	"slices"

	"github.com/sluicekv/sluice/internal/wire"
)

// FrameFilter says how often a frame of a worker's links passes: 0 loses it, 1 is a network, 2 doubles it. out is true for frames that
// the worker sends. It is called by the links' readers and writers, and may block to hold what is behind the frame back.
type FrameFilter func(m wire.Medium, out bool, f wire.Frame) int

// lossyControl and lossyData are links with a filter on them: for drills, which set Config.Frames. Nothing else does.
type lossyControl struct {
	controlLink
	filter FrameFilter
	again  []wire.Frame // to be received next; of the reader alone
}

func (l *lossyControl) Send(f wire.Frame) (err error) {
	for range l.filter(wire.Control, true, f) {
		if err = l.controlLink.Send(f); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossyControl) Recv() (wire.Frame, error) {
	for len(l.again) == 0 {
		f, err := l.controlLink.Recv()
		if err != nil {
			return nil, err
		}
		l.again = slices.Repeat([]wire.Frame{f}, l.filter(wire.Control, false, f))
	}
	f := l.again[0]
	l.again = l.again[1:]
	return f, nil
}

type lossyData struct {
	dataLink
	filter FrameFilter
	again  int // times that last is still to be received
	last   struct {
		f       wire.Frame
		payload []byte // in the caller's staging, which nobody has written since
	}
}

func (l *lossyData) Send(f wire.Frame) (err error) {
	for range l.filter(wire.Data, true, f) {
		if err = l.dataLink.Send(f); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossyData) SendPage(h wire.PageHeader, payload []byte) (err error) {
	for range l.filter(wire.Data, true, h) {
		if err = l.dataLink.SendPage(h, payload); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossyData) Recv(staging []byte) (wire.Frame, []byte, error) {
	for l.again == 0 {
		f, payload, err := l.dataLink.Recv(staging)
		if err != nil {
			return nil, nil, err
		}
		l.last.f, l.last.payload = f, payload
		l.again = l.filter(wire.Data, false, f)
	}
	l.again--
	return l.last.f, l.last.payload, nil
}

func (w *Worker) filteredControl(l controlLink) controlLink {
	if w.cfg.Frames == nil {
		return l
	}
	return &lossyControl{controlLink: l, filter: w.cfg.Frames}
}

func (w *Worker) filteredData(l dataLink) dataLink {
	if w.cfg.Frames == nil {
		return l
	}
	return &lossyData{dataLink: l, filter: w.cfg.Frames}
}
