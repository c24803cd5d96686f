// SPDX-License-Identifier: GPL-2.0-or-later

package hostlist_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/hostlist"
)

func TestExpand(t *testing.T) {
	for list, want := range map[string][]string{
		"n1":                     {"n1"},
		"n[1-3]":                 {"n1", "n2", "n3"},
		"n[3,1]":                 {"n3", "n1"},
		"n[08-11,7],m":           {"n08", "n09", "n10", "n11", "n7", "m"},
		"r[1-2]n[1-2]-ib":        {"r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"},
		"/dev/nvidia[0-1]":       {"/dev/nvidia0", "/dev/nvidia1"},
		"/dev/nvidia3,/dev/null": {"/dev/nvidia3", "/dev/null"},
	} {
		got, err := hostlist.Expand(list)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, list := range []string{"n[1", "n[a]", "n[2-1]", "n[]", "n[0-99999999]", "n[1-60000]m[1-60000]"} {
		_, err := hostlist.Expand(list)
		require.Error(t, err, list)
	}
}
