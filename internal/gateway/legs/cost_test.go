package legs

import "testing"

// What the machine costs a reply: its events from the first to the end, and each chunk of a stream.
func BenchmarkCostLegs(b *testing.B) {
	var top Top
	for i := range uint64(6) {
		top.Add(i, -float32(i))
	}
	story := []Event{
		LegStatus{Prefill, 200}, LegUsage{Prefill, 8, 1}, LegFinish{Prefill, Length}, LegTop{Prefill, top}, LegHandle{Prefill, Handle{State: Ours}}, LegEnd{Prefill},
		LegStatus{Decode, 200}, LegUsage{Decode, 8, 1}, LegTop{Decode, top}, LegBytes{Decode, 1}, LegFinish{Decode, Stop}, LegEnd{Decode},
	}
	for _, e := range []Engine{VLLMNixl, SGLang, Plain} {
		b.Run("reply/"+e.String(), func(b *testing.B) {
			for b.Loop() {
				m := New(e, true, Expect{FirstToken: DefaultFirstToken}, 0)
				for _, ev := range story {
					m, _ = m.Step(ev)
				}
			}
		})
		b.Run("chunk/"+e.String(), func(b *testing.B) {
			m := New(e, true, Expect{FirstToken: DefaultFirstToken}, 0)
			for _, ev := range story[:10] {
				m, _ = m.Step(ev)
			}
			for b.Loop() {
				m, _ = m.Step(LegBytes{Decode, 1})
			}
		})
	}
}

func BenchmarkCostFirstToken(b *testing.B) {
	var x, y Top
	for i := range uint64(TopMost) {
		x.Add(i, -float32(i))
		y.Add(i+2, -float32(i)-0.1)
	}
	for b.Loop() {
		Distance(x, y)
	}
}
