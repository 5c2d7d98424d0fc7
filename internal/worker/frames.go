package worker

import "github.com/sluicekv/sluice/internal/wire"

// FrameFilter says what passes in a frame's place on a worker's links: nothing loses it, the frame itself is a network, the frame twice
// doubles it. A page is passed as its header, and keeps its payload. out is true for frames that the worker sends. It is called
// by the links' readers and writers, and may block to hold what is behind the frame back.
type FrameFilter func(m wire.Medium, out bool, f wire.Frame) []wire.Frame

// lossyControl and lossyData are links with a filter on them: for drills, which set Config.Frames. Nothing else does.
type lossyControl struct {
	controlLink
	filter FrameFilter
	again  []wire.Frame // to be received next; of the reader alone
}

func (l *lossyControl) Send(f wire.Frame) (err error) {
	for _, g := range l.filter(wire.Control, true, f) {
		if err = l.controlLink.Send(g); err != nil {
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
		l.again = l.filter(wire.Control, false, f)
	}
	f := l.again[0]
	l.again = l.again[1:]
	return f, nil
}

type lossyData struct {
	dataLink
	filter  FrameFilter
	again   []wire.Frame // to be received next; of the reader alone
	payload []byte       // of the last page, in the caller's staging, which nobody has written since
}

func (l *lossyData) Send(f wire.Frame) (err error) {
	for _, g := range l.filter(wire.Data, true, f) {
		if err = l.dataLink.Send(g); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossyData) SendPage(h wire.PageHeader, payload []byte) (err error) {
	for _, g := range l.filter(wire.Data, true, h) {
		if err = l.dataLink.SendPage(g.(wire.PageHeader), payload); err != nil {
			return err
		}
	}
	return nil
}

func (l *lossyData) Recv(staging []byte) (wire.Frame, []byte, error) {
	for len(l.again) == 0 {
		f, payload, err := l.dataLink.Recv(staging)
		if err != nil {
			return nil, nil, err
		}
		l.payload = payload
		l.again = l.filter(wire.Data, false, f)
	}
	f := l.again[0]
	l.again = l.again[1:]
	if _, page := f.(wire.PageHeader); !page {
		return f, nil, nil
	}
	return f, l.payload, nil
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
