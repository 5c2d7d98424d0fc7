// Package sse writes and reads event streams as the OpenAI API uses them (WHATWG HTML, section 9.2).
//
// The writer makes data events and comments. The reader is strict and bounded, because what it reads comes from engines that
// may be broken: a line or event over its bound, invalid UTF-8, or a stream that ends inside an event is an error, never a
// shorter event. Neither knows JSON, sockets or flushing.
package sse

// Done is the data of the event that ends a good stream.
const Done = "[DONE]"

// AppendData appends one event with the given data. Line ends inside data become data lines of the same event.
func AppendData(b []byte, data []byte) []byte {
	b = append(b, "data: "...)
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '\r':
			if i+1 < len(data) && data[i+1] == '\n' {
				i++
			}
			b = append(b, "\ndata: "...)
		case '\n':
			b = append(b, "\ndata: "...)
		default:
			b = append(b, c)
		}
	}
	return append(b, "\n\n"...)
}

// AppendDone appends the event that ends a good stream.
func AppendDone(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) }

// AppendComment appends a comment, which clients ignore: it keeps a connection alive. text has no line ends.
func AppendComment(b []byte, text string) []byte {
	b = append(b, ": "...)
	for i := range len(text) {
		if c := text[i]; c != '\n' && c != '\r' {
			b = append(b, c)
		}
	}
	return append(b, "\n\n"...)
}
