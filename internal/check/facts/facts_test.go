package facts

import "testing"

func at(name string, line int) Source { return Source{name, line} }

func TestTheHeaviestFactCountsAndOfEqualOnesTheWorseCase(t *testing.T) {
	var n Node
	n.Put(Pool, "900", at("a", 1), Part)
	n.Put(Pool, "700", at("a", 2), Said)
	n.Put(Pool, "500", at("b", 1), Said)
	n.Put(Pool, "100", at("b", 2), Asked)
	n.Put(Context, "10", at("a", 3), Said)
	n.Put(Context, "20", at("b", 3), Said)
	n.Put(Version, "1", at("a", 4), Said)
	n.Put(Version, "2", at("a", 5), Said)
	n.Put(Role, "", at("a", 6), Said)
	if n.Int(Pool) != 500 || n.Int(Context) != 20 || n.Text(Version) != "2" || n.Text(Role) != "" {
		t.Errorf("%d %d %s %q", n.Int(Pool), n.Int(Context), n.Text(Version), n.Text(Role))
	}
	if got := n.At(Pool).String(); got != "b:1" {
		t.Error(got)
	}
}

func TestSourcesThatContradictAreFound(t *testing.T) {
	var n Node
	n.Put(Pool, "900", at("log", 1), Said)
	n.Put(Pool, "700", at("metrics", 2), Said)
	n.Put(KVDType, "auto", at("log", 3), Args)
	n.Put(KVDType, "torch.float8_e4m3fn", at("metrics", 4), Args)
	n.Put(Model, "/models/m", at("log", 5), Said)
	n.Put(Model, "m", at("metrics", 5), Said)
	n.Put(Context, "1", at("log", 6), Said)
	n.Put(Context, "2", at("log", 7), Said) // one source with itself: ranks or boots, not a contradiction of sources
	ds := n.Disagreements()
	if len(ds) != 1 || ds[0].Key != Pool || ds[0].A.Value != "700" || ds[0].B.Value != "900" {
		t.Errorf("%+v", ds)
	}
}

func TestNamesOfOneTypeAreTheSame(t *testing.T) {
	for _, s := range []string{"torch.float8_e4m3fn", "fp8", "fp8_e4m3", "FP8_E4M3"} {
		if CanonicalDType(s) != "fp8_e4m3" {
			t.Errorf("%s is %s", s, CanonicalDType(s))
		}
	}
	if Same(KVDType, "fp8_e5m2", "fp8_e4m3") || !Same(Model, "/a/m/", "m") || Same(Model, "m1", "m2") {
		t.Error("what is the same is not told right")
	}
}

func TestCapacityTakesTheMarginsOfTheEngine(t *testing.T) {
	var n Node
	n.Put(Engine, "sglang", at("a", 1), Said)
	n.Put(Pool, "1000", at("a", 1), Said)
	n.Put(PageSize, "16", at("a", 1), Said)
	f := n.Capacity(8192)
	if f.Reserved != 32 || f.Context != 8192 || f.Usable() != 960 {
		t.Errorf("%+v usable %d", f, f.Usable())
	}
}
