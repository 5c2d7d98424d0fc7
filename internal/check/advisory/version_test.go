package advisory

import "testing"

func TestVersionsOrderAsPythonOrdersThem(t *testing.T) {
	ordered := []string{"0.4.9", "0.5.4", "0.5.4.post3", "0.5.5", "0.5.10.dev1", "0.5.10a1", "0.5.10rc1", "0.5.10", "0.5.10.post1", "0.5.19", "0.5.20", "0.11.2.dev278+gdbc3d9991", "0.11.2", "1.0"}
	for i, a := range ordered {
		for j, b := range ordered {
			want := sign(i - j)
			if got := Compare(a, b); got != want {
				t.Errorf("Compare(%s, %s) = %d, want %d", a, b, got, want)
			}
		}
	}
	for _, same := range [][2]string{{"v0.5.19", "0.5.19"}, {"0.5", "0.5.0"}, {"0.5.19+cu126", "0.5.19"}} {
		if Compare(same[0], same[1]) != 0 {
			t.Errorf("%s and %s differ", same[0], same[1])
		}
	}
}

func TestBuildsThatSayNothingAreUncertain(t *testing.T) {
	for v, want := range map[string]bool{
		"0.5.19": false, "0.5.10.post1": false, "0.5.19+cu126": false, "0.32.0+cpu": false, "25.06": false,
		"": true, "latest": true, "nightly-dev-20261101": true, "0.5.20.dev12": true, "0.5.20rc1": true,
		"0.5.19+acme1": true, "0.11.2.dev278+gdbc3d9991": true, "b3561": true,
	} {
		if why, got := Uncertain(v); got != want {
			t.Errorf("Uncertain(%q) = %v (%s), want %v", v, got, why, want)
		}
	}
}

func FuzzParseVersion(f *testing.F) {
	for _, s := range []string{"0.5.19", "v0.5.10.post1", "0.20.0rc1", "0.11.2.dev278+gdbc3d9991", "latest", "1.", "1.2.3.4.5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, ok := ParseVersion(s); ok && Compare(s, s) != 0 {
			t.Errorf("%q differs from itself", s)
		}
	})
}
