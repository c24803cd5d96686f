// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// The simulator is told of every account what holds there.
func TestInherited(t *testing.T) {
	tree := &fairshare.Tree{Nodes: []fairshare.Node{
		{Name: "root", Parent: -1}, {Name: "speech", Parent: 0}, {Name: "vision", Parent: 0}, {Name: "detection", Parent: 2}, {Name: "faces", Parent: 3},
	}}
	said := map[string]time.Duration{"vision": time.Minute, "faces": time.Hour}
	require.Equal(t, map[string]time.Duration{"vision": time.Minute, "detection": time.Minute}, inherited(accountsAbove(tree), time.Hour, said))
	require.Empty(t, inherited(accountsAbove(tree), 0, said))
	require.Empty(t, inherited(accountsAbove(tree), time.Hour, nil))
}
