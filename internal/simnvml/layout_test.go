// SPDX-License-Identifier: GPL-2.0-or-later

package simnvml_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
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
	for name, v := range layouts {
		g := reflect.TypeOf(v)
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		fmt.Fprintf(&want, "%s %d\n", name, g.Size())
		for f := range g.Fields() {
			field := strings.ToLower(f.Name[:1]) + f.Name[1:]
			fmt.Fprintf(&program, "printf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n", name, field, name, field)
			fmt.Fprintf(&want, "%s.%s %d\n", name, field, f.Offset)
		}
	}
	// Of this one go-nvml has two forms; the one that C sees is not exported.
	var get nvml.GpmMetricsGetType
	program.WriteString("printf(\"metrics %zu\\n\", sizeof ((nvmlGpmMetricsGet_t *)0)->metrics);\n")
	fmt.Fprintf(&want, "metrics %d\n", reflect.TypeOf(get.Metrics).Size())
	program.WriteString("return 0;\n}\n")

	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	require.NoError(t, err)
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	require.NoError(t, os.WriteFile(source, []byte(program.String()), 0o600))
	run(t, "cc", "-isystem", filepath.Join(strings.TrimSpace(string(out)), "pkg/nvml"), "-o", binary, source)
	require.Equal(t, want.String(), run(t, binary))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
