// SPDX-License-Identifier: GPL-2.0-or-later

package simnvml_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// layouts are the structures that cross the border between C and Go, by their
// names in nvml.h.
var layouts = map[string]any{
	"nvmlPciInfo_t":                nvml.PciInfo{},
	"nvmlUtilization_t":            nvml.Utilization{},
	"nvmlMemory_t":                 nvml.Memory{},
	"nvmlMemory_v2_t":              nvml.Memory_v2{},
	"nvmlProcessInfo_v1_t":         nvml.ProcessInfo_v1{},
	"nvmlProcessInfo_v2_t":         nvml.ProcessInfo_v2{},
	"nvmlProcessInfo_t":            nvml.ProcessInfo{},
	"nvmlSample_t":                 nvml.Sample{},
	"nvmlDeviceAttributes_t":       nvml.DeviceAttributes{},
	"nvmlGpuInstanceProfileInfo_t": nvml.GpuInstanceProfileInfo{},
	"nvmlGpmSupport_t":             nvml.GpmSupport{},
	"nvmlGpmMetric_t":              nvml.GpmMetric{},
}

// TestLayouts compares size and offsets of the structures as the C compiler
// has them from nvml.h with those of go-nvml's Go types.
func TestLayouts(t *testing.T) {
	var program, want strings.Builder
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <nvml.h>\nint main(void)\n{\n")
	size := func(name string, size int64) {
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		fmt.Fprintf(&want, "%s %d\n", name, size)
	}
	offset := func(name, field string, offset int64) {
		field = strings.ToLower(field[:1]) + field[1:]
		fmt.Fprintf(&program, "printf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n", name, field, name, field)
		fmt.Fprintf(&want, "%s.%s %d\n", name, field, offset)
	}
	for name, v := range layouts {
		g := reflect.TypeOf(v)
		size(name, int64(g.Size()))
		for f := range g.Fields() {
			offset(name, f.Name, int64(f.Offset))
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	require.NoError(t, err)
	include := filepath.Join(strings.TrimSpace(string(out)), "pkg/nvml")
	event := eventData(t, include)
	sizes := types.SizesFor("gc", runtime.GOARCH)
	size("nvmlEventData_t", sizes.Sizeof(event))
	fields := slices.Collect(event.Fields())
	for i, at := range sizes.Offsetsof(fields) {
		offset("nvmlEventData_t", fields[i].Name(), at)
	}
	// Of this one go-nvml has two forms; the one that C sees is not exported.
	var get nvml.GpmMetricsGetType
	program.WriteString("printf(\"metrics %zu\\n\", sizeof ((nvmlGpmMetricsGet_t *)0)->metrics);\n")
	fmt.Fprintf(&want, "metrics %d\n", reflect.TypeOf(get.Metrics).Size())
	program.WriteString("return 0;\n}\n")

	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	require.NoError(t, os.WriteFile(source, []byte(program.String()), 0o600))
	run(t, "cc", "-isystem", include, "-o", binary, source)
	require.Equal(t, want.String(), run(t, binary))
}

// eventData is the structure of an event as C fills it. go-nvml does not export
// it, so its declaration is read.
func eventData(t *testing.T, dir string) *types.Struct {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, filepath.Join(dir, "types_gen.go"), nil, 0)
	require.NoError(t, err)
	// A pointer to what only C knows is a pointer.
	source := bytes.NewBufferString("package p\ntype _Ctype_struct_nvmlDevice_st struct{}\n")
	for _, name := range []string{"nvmlDevice", "nvmlEventData"} {
		i := slices.IndexFunc(file.Decls, func(d ast.Decl) bool {
			g, ok := d.(*ast.GenDecl)
			return ok && g.Tok == token.TYPE && g.Specs[0].(*ast.TypeSpec).Name.Name == name
		})
		require.GreaterOrEqual(t, i, 0, name)
		require.NoError(t, format.Node(source, fset, file.Decls[i]))
		source.WriteString("\n")
	}
	file, err = parser.ParseFile(fset, "", source, 0)
	require.NoError(t, err)
	p, err := new(types.Config).Check("p", fset, []*ast.File{file}, nil)
	require.NoError(t, err)
	s, ok := p.Scope().Lookup("nvmlEventData").Type().Underlying().(*types.Struct)
	require.True(t, ok)
	return s
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
