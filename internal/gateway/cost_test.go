package gateway

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/prompt"
)

// What admission costs: the bound by bytes, and the count of a tokenizer where bytes do not decide.
func BenchmarkCostAdmission(b *testing.B) {
	file, err := os.ReadFile("../prompt/testdata/tokenizerjson/llama3.json")
	if err != nil {
		b.Fatal(err)
	}
	var f struct{ Tokenizer json.RawMessage }
	if err := json.Unmarshal(file, &f); err != nil {
		b.Fatal(err)
	}
	c, err := prompt.NewCounter(f.Tokenizer)
	if err != nil {
		b.Fatal(err)
	}
	g := &guarded{cfg: Guarded{Tokenizer: c}}
	for _, size := range []int{1 << 10, 100 << 10, 4 << 20} {
		body := []byte(`{"model":"m","prompt":"` + strings.Repeat("The quick brown fox. ", size/21) + `"}`)
		doc, no := jsonedit.Read(body, nil)
		if no != nil {
			b.Fatal(no)
		}
		b.Run("bytes/"+strconv.Itoa(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				bounds(doc, openai.Completions)
			}
		})
		b.Run("tokenizer/"+strconv.Itoa(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, exact := g.local(doc, openai.Completions, measure{}); !exact {
					b.Fatal("not counted")
				}
			}
		})
	}
}
