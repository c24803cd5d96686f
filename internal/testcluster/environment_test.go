// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A test's own library once took the place of the sanitizer that was to watch it.
func TestLibrariesOfATestComeBehindTheSanitizers(t *testing.T) {
	for _, tc := range []struct {
		name                string
		first, second, want []string
	}{
		{"none", []string{"A=1"}, []string{"B=2"}, []string{"A=1", "B=2"}},
		{"of one", nil, []string{"LD_PRELOAD=x.so", "B=2"}, []string{"B=2", "LD_PRELOAD=x.so"}},
		{"of both", []string{"LD_PRELOAD=asan.so:ubsan.so", "A=1"}, []string{"LD_PRELOAD=x.so"}, []string{"A=1", "LD_PRELOAD=asan.so:ubsan.so:x.so"}},
	} {
		t.Run(tc.name, func(t *testing.T) { require.Equal(t, tc.want, mergeEnv(tc.first, tc.second)) })
	}
}
