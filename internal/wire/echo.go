package wire

// EchoWidth is the number of logits in an echo.
const EchoWidth = 8

// Echo is the last prompt token's largest logits, in falling order (equal ones by rising id), as one leg computed them. Decode computes
// the same position itself from the transferred pages and compares: a check of content on every request.
type Echo struct {
	IDs    [EchoWidth]int32
	Logits [EchoWidth]float32
}
