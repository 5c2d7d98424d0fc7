package advisory

import (
	"strings"
	"testing"
)

func env(m map[string]string) Env {
	return func(n string) (string, bool) { v, ok := m[n]; return v, ok }
}

func TestPredicatesAreThreeValued(t *testing.T) {
	facts := map[string]string{"role": "prefill", "pool_tokens": "681280", "context": "1048576", "page_size": "64", "auto_truncate": "false",
		"version": "0.5.19", "kv_dtype": "torch.float8_e4m3fn", "connector": "MooncakeConnector"}
	for p, want := range map[string]Truth{
		`true`:                                 True,
		`role == "prefill"`:                    True,
		`role != "prefill"`:                    False,
		`pool_tokens < context`:                True,
		`pool_tokens - 2*page_size < context`:  True,
		`pool_tokens + 400000 > context`:       True,
		`!auto_truncate`:                       True,
		`hybrid`:                               Unknown,
		`!hybrid`:                              Unknown,
		`hybrid && auto_truncate`:              False,
		`hybrid || role == "prefill"`:          True,
		`hybrid && role == "prefill"`:          Unknown,
		`known(hybrid)`:                        False,
		`known(role) && !known(hybrid)`:        True,
		`version < "0.5.20"`:                   True,
		`version >= "0.5.20"`:                  False,
		`kv_dtype == "fp8_e4m3"`:               True,
		`connector ~ "mooncake"`:               True,
		`connector ~ "nixl"`:                   False,
		`tp > 1`:                               Unknown,
		`(role == "decode" || tp > 1) && true`: Unknown,
	} {
		x, err := ParsePredicate(p, false)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if got := x.Eval(env(facts)); got != want {
			t.Errorf("%s = %s, want %s", p, got, want)
		}
	}
	x, err := ParsePredicate(`hybrid && tp > 1 && role == "prefill"`, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(x.Missing(env(facts)), " "); got != "hybrid tp" {
		t.Errorf("missing %q", got)
	}
}

func TestPredicatesOfPairsNameALeg(t *testing.T) {
	x, err := ParsePredicate(`prefill.page_size != decode.page_size`, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := x.Eval(env(map[string]string{"prefill.page_size": "16", "decode.page_size": "64"})); got != True {
		t.Error(got)
	}
}

func TestBadPredicatesAreRefused(t *testing.T) {
	for _, p := range []string{``, `role ==`, `role == "x`, `nonsense`, `role == "a" extra`, `(role == "a"`, `1`, `"x"`, `role &`, `known(`, `known(nonsense)`,
		`role == 99999999999999999999`, strings.Repeat("(", 200) + "true", strings.Repeat("!", 500) + "true", `prefill.role == "x"`} {
		if _, err := ParsePredicate(p, false); err == nil {
			t.Errorf("%q is taken", p)
		}
	}
	if _, err := ParsePredicate(`role == "x"`, true); err == nil {
		t.Error("a pair's predicate may not leave the leg open")
	}
}

func FuzzPredicate(f *testing.F) {
	f.Add(`role == "prefill" && pool_tokens - 2*page_size < context && !auto_truncate`, false)
	f.Add(`prefill.tp != decode.tp || known(prefill.hybrid)`, true)
	f.Add(`(((true`, false)
	f.Fuzz(func(t *testing.T, s string, pair bool) {
		p, err := ParsePredicate(s, pair)
		if err != nil {
			return
		}
		p.Eval(env(nil))
		p.Missing(env(nil))
	})
}
