package trace

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strconv"

	"github.com/sluicekv/sluice/internal/verdict"
)

// A recorded file is lines of JSON: a first line that says what the file is, one line an event, and a last line that says that it is
// the last.
//
//	{"sluice":"trace","version":2,"sample":1}
//	{"n":1,"attempt":"…32 hex…","boot":"…16 hex…","machine":"decode","step":"opened","a":40,"b":3,"c":0,"code":"none","state":0,"digest":"…16 hex…","sum":"…8 hex…"}
//	{"n":2,"attempt":"…","boot":"…","pool":"reserve","page":7,"gen":12,"count":3,"writes":0,"ok":true,"sum":"…"}
//	{"end":2,"lost":0,"sum":"…"}
//
// n numbers the events from 1. sum is the CRC-32C of the sum before it and of the line up to ,"sum": so a line that was deleted, moved
// or changed is told from a run that went wrong. The sum before the first event's is that of the first line, so that one is tied, too.
// sample is the rate: 1 when every attempt of the process is in the file.
const Version = 2

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendHead(b []byte, sample uint64) []byte {
	b = append(b, `{"sluice":"trace","version":`...)
	b = strconv.AppendUint(b, Version, 10)
	b = append(b, `,"sample":`...)
	b = strconv.AppendUint(b, sample, 10)
	return append(b, "}\n"...)
}

func appendEvent(b []byte, n uint64, e Event) []byte {
	b = append(b, `{"n":`...)
	b = strconv.AppendUint(b, n, 10)
	b = append(b, `,"attempt":"`...)
	b = hex.AppendEncode(b, e.Attempt[:])
	b = append(b, `","boot":"`...)
	b = appendHex64(b, e.Boot)
	number := func(key string, v uint64) {
		b = append(b, key...)
		b = strconv.AppendUint(b, v, 10)
	}
	if e.Machine == Pool {
		b = append(b, `","pool":"`...)
		b = append(b, e.Step.String()...)
		number(`","page":`, uint64(e.A))
		number(`,"gen":`, e.Digest)
		number(`,"count":`, uint64(e.B))
		number(`,"writes":`, uint64(e.C))
		b = append(b, `,"ok":`...)
		return strconv.AppendBool(b, e.State == 1)
	}
	b = append(b, `","machine":"`...)
	b = append(b, e.Machine.String()...)
	b = append(b, `","step":"`...)
	b = append(b, e.Step.String()...)
	number(`","a":`, uint64(e.A))
	number(`,"b":`, uint64(e.B))
	number(`,"c":`, uint64(e.C))
	b = append(b, `,"code":"`...)
	b = append(b, e.Code.String()...)
	number(`","state":`, uint64(e.State))
	b = append(b, `,"digest":"`...)
	b = appendHex64(b, e.Digest)
	return append(b, '"')
}

func appendEnd(b []byte, n, lost uint64) []byte {
	b = append(b, `{"end":`...)
	b = strconv.AppendUint(b, n, 10)
	b = append(b, `,"lost":`...)
	return strconv.AppendUint(b, lost, 10)
}

// seal ends a line that begins at from with its sum, and returns that too.
func seal(b []byte, from int, past uint32) ([]byte, uint32) {
	var p [4]byte
	binary.BigEndian.PutUint32(p[:], past)
	sum := crc32.Update(crc32.Checksum(p[:], castagnoli), castagnoli, b[from:])
	binary.BigEndian.PutUint32(p[:], sum)
	b = append(b, `,"sum":"`...)
	b = hex.AppendEncode(b, p[:])
	return append(b, "\"}\n"...), sum
}

func appendHex64(b []byte, v uint64) []byte {
	var p [8]byte
	binary.BigEndian.PutUint64(p[:], v)
	return hex.AppendEncode(b, p[:])
}

// codes by the names that verdict.Code.String writes, also of those that this build does not know: a peer may have said them.
var codes = func() map[string]verdict.Code {
	m := map[string]verdict.Code{}
	for c := range 256 {
		m[verdict.Code(c).String()] = verdict.Code(c)
	}
	return m
}()
