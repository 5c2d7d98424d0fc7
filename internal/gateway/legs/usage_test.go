package legs

import "testing"

// TestUsageIsWhatTheLegsComputed, and never what was planned: the two can differ where an engine counts for itself.
func TestUsageIsWhatTheLegsComputed(t *testing.T) {
	m := New(SGLang, true, Expect{PromptTokens: 40, MaxTokens: 100}, 0)
	if prompt, completion := m.Usage(); prompt != 0 || completion != 0 {
		t.Errorf("before anybody spoke: %d and %d tokens", prompt, completion)
	}
	m, _ = m.Step(LegUsage{Leg: Prefill, Prompt: 70, Completion: 1})
	if prompt, _ := m.Usage(); prompt != 70 {
		t.Errorf("prefill computed 70 tokens of the prompt, the usage says %d", prompt)
	}
	m, _ = m.Step(LegUsage{Leg: Decode, Prompt: 70, Completion: 9})
	if prompt, completion := m.Usage(); prompt != 70 || completion != 9 {
		t.Errorf("the legs say 70 and 9 tokens, the usage %d and %d", prompt, completion)
	}
}
