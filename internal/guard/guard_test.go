package guard

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNamesAndGuardsAreOneList(t *testing.T) {
	var all Guard
	for i, name := range Names() {
		g, err := Parse(name)
		if err != nil || g != 1<<i || g.String() != name {
			t.Errorf("%s: %d, %q, %v", name, g, g, err)
		}
		all |= g
	}
	if all != All || len(Names()) != 11 {
		t.Fatalf("the names cover %s, all is %b", all, All)
	}
	want := "admission,verdict,gate,mac,count,tag,zero,pin,fence,hold,echo" // the flag's documented values
	if All.String() != want {
		t.Errorf("%s", All)
	}
	Names()[0] = "x"
	if Names()[0] != "admission" {
		t.Error("the names can be changed from outside")
	}
}

func TestParse(t *testing.T) {
	for list, want := range map[string]Guard{
		"":                     0,
		" , ":                  0,
		"all":                  All,
		"mac":                  MAC,
		" tag , zero":          Tag | Zero,
		"pin,pin":              Pin,
		"gate,all":             All,
		"echo,hold,,admission": Echo | Hold | Admission,
	} {
		got, err := Parse(list)
		if err != nil || got != want {
			t.Errorf("%q: %s, %v", list, got, err)
		}
		if back, err := Parse(got.String()); err != nil || back != got {
			t.Errorf("%q reads back as %s, %v", got, back, err)
		}
	}
	for _, list := range []string{"Gate", "gates", "mac;tag", "none", "all,x", "-"} {
		if g, err := Parse(list); err == nil {
			t.Errorf("%q is %s", list, g)
		} else if !strings.Contains(err.Error(), "admission, verdict, gate") {
			t.Errorf("%q: the error does not list the guards: %v", list, err)
		}
	}
}

// TestReleaseBuildCannotTurnAGuardOff reads the files of the release build: Off is the constant false, and nothing that
// could be set is declared.
func TestReleaseBuildCannotTurnAGuardOff(t *testing.T) {
	ctx := build.Default
	ctx.BuildTags = nil
	pkg, err := ctx.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, name := range pkg.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(".", name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name != "Off" {
					if !slices.Contains([]string{"Names", "Parse", "String"}, d.Name.Name) {
						t.Errorf("%s declares %s", name, d.Name)
					}
					continue
				}
				found = true
				ret, ok := d.Body.List[0].(*ast.ReturnStmt)
				if !ok || len(d.Body.List) != 1 || len(ret.Results) != 1 || ret.Results[0].(*ast.Ident).Name != "false" {
					t.Errorf("%s: Off is not the constant false", name)
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, s := range d.Specs {
					if id := s.(*ast.ValueSpec).Names[0].Name; id != "names" {
						t.Errorf("%s declares the variable %s", name, id)
					}
				}
			}
		}
	}
	if !found {
		t.Fatal("the release build has no Off")
	}
}
