package main

import (
	"math/rand/v2"
	"os"
	"strings"

	"github.com/sluicekv/sluice/internal/prompt"
)

// cases are what both sides are asked.
type cases struct {
	Texts []string `json:"texts"`
	Chats []chat   `json:"chats"`
	Reply int      `json:"reply"` // tokens at most
}

type chat struct {
	Messages []message `json:"messages"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (c chat) prompt() (ms []prompt.Message) {
	for _, m := range c.Messages {
		ms = append(ms, prompt.Message{Role: m.Role, Content: m.Content})
	}
	return ms
}

// makeCases are the same at every call. Source files of the repository serve as code and prose.
func makeCases(files []string) (cases, error) {
	texts := []string{
		"Hello, world!", "  leading", "trailing   ", "\n\n\n", "\t\tx = 1\n    return y\n", "don't won't I'LL we'VE 'S 's",
		"1234567 89,000.50 0x1F ½ ² Ⅷ ٣", "naïve café Größe — “quotes” …", "日本語のテキスト。中文文本，测试", "😀👨‍👩‍👧‍👦🇩🇪🏴󠁧󠁢󠁥󠁮󠁧󠁿",
		strings.Repeat("a", 500), strings.Repeat("ab", 3000), strings.Repeat("x", 5000), strings.Repeat("😀", 800),
		strings.Repeat(" ", 300) + "x", strings.Repeat("\n", 200) + strings.Repeat(" ", 77) + "y", strings.Repeat("QmFzZTY0", 700),
		strings.Repeat("0", 777), strings.Repeat("=-", 900), "<|im_start|>user\nhi<|im_end|>\n<repo_name><|endoftext|>",
		"مرحبا بالعالم שלום नमस्ते दुनिया ไทยภาษา", "e\u0301a\u0300 \u200b\u200d\ufeff\u00a0\u3000x\u2028y", "!!!!!!??????......",
		"http://example.com/a_b-c?d=e&f=g#h", "\x01\a\x1f\x7f", "if (a<b && c>=d) { return a[i]<<2; } // done\r\n\r\n",
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return cases{}, err
		}
		texts = append(texts, string(b))
	}
	r := rand.New(rand.NewPCG(1, 2))
	few := []rune("abcXYZ019 '  \n\t\r.,;!?<|>_-é漢😀\u0301\u00a0½")
	for range 300 {
		var s strings.Builder
		for range 1 + r.IntN(200) {
			s.WriteRune(few[r.IntN(len(few))])
		}
		texts = append(texts, s.String())
	}
	for range 100 {
		var s strings.Builder
		for range 100 {
			from := [][2]int{{32, 127}, {160, 0x2000}, {0x3000, 0xd800}, {0x1f300, 0x1fa00}}[r.IntN(4)]
			s.WriteRune(rune(from[0] + r.IntN(from[1]-from[0])))
		}
		texts = append(texts, s.String())
	}
	user := func(s string) chat { return chat{[]message{{"user", s}}} }
	return cases{Reply: 64, Texts: texts, Chats: []chat{
		user("What is gravity?"),
		user("List three colours."),
		user("Translate to French: good morning, my friend."),
		{[]message{{"system", "You answer in one short sentence."}, {"user", "Why is the sky blue?"}}},
		{[]message{{"user", "My name is Ada."}, {"assistant", "Hello Ada, how can I help you?"}, {"user", "What is my name?"}}},
		user("Write a Python function that returns the n-th Fibonacci number.\n\nUse a loop."),
		user(strings.Repeat("The train to the coast leaves at nine and arrives at noon. ", 12) + "\nWhen does the train arrive?"),
		user("Größe? 日本 😀 1234"),
	}}, nil
}
