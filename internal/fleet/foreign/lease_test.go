package foreign

import (
	"testing"
	"time"
)

func TestLateReadsOfAPage(t *testing.T) {
	for page, want := range map[string]float64{
		lateMetric + `{engine="0",model_name="recall"} 2.0` + "\n":                                                                 2,
		"# TYPE " + lateMetric + " counter\n" + lateMetric + `{engine="0"} 1` + "\n" + lateMetric + `{engine="1"} 3 1796046883000`: 4,
		lateMetric + " 7\n":                            7,
		lateMetric + "_created{engine=\"0\"} 1.79e9\n": -1,
		lateMetric + "{} NaN\n":                        -1,
		lateMetric + "{\n":                             -1,
		"":                                             -1,
	} {
		got, ok := lateReads([]byte(page))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %v, want %v", page, got, want)
		}
	}
}

// What counts for an attempt is the last reading before prefill answered it; readings between two alike are not kept.
func TestLateReadsSinceAMoment(t *testing.T) {
	at := time.Unix(1e9, 0)
	var l late
	if _, known := l.before(at); known {
		t.Error("something is known of nothing")
	}
	for i := range 1000 {
		l.add(lateReading{at.Add(time.Duration(i) * time.Second), float64(i / 400)})
	}
	if len(l.seen) != 6 {
		t.Errorf("%d readings are kept", len(l.seen))
	}
	for s, want := range map[int]float64{1: 0, 399: 0, 401: 1, 800: 1, 801: 2, 5000: 2} {
		if got, known := l.before(at.Add(time.Duration(s) * time.Second)); !known || got != want {
			t.Errorf("after %d s: %v, want %v", s, got, want)
		}
	}
	for i := range 1000 {
		l.add(lateReading{at.Add(time.Duration(2000+i) * time.Second), float64(i)})
	}
	if len(l.seen) > maxLate {
		t.Errorf("%d readings are kept", len(l.seen))
	}
}

func FuzzLateReads(f *testing.F) {
	f.Add([]byte(lateMetric + "{engine=\"0\"} 2\n"))
	f.Add([]byte(lateMetric + "} \n" + lateMetric))
	f.Fuzz(func(t *testing.T, page []byte) {
		if sum, ok := lateReads(page); ok && (sum < 0 || sum != sum) {
			t.Fatalf("%v reads", sum)
		}
	})
}
