// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEngineStructsLieAsInBridge(t *testing.T) {
	require.NoError(t, checkLayout())
}
