// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAServiceThatPanicsDoesNotEndTheProcess(t *testing.T) {
	told := make(chan string, 10)
	s := startServices(func(name string, value any, stack []byte) {
		require.NotEmpty(t, stack)
		told <- name + ": " + value.(string)
	}, service{"clumsy", func(context.Context) { panic("ouch") }}, service{"steady", func(ctx context.Context) { <-ctx.Done() }})
	require.Equal(t, "clumsy: ouch", <-told)
	require.True(t, s.stop(time.Second))
}

func TestStoppingDoesNotWaitForEver(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	s := startServices(nil, service{"stuck", func(context.Context) {
		close(begun)
		<-release
	}})
	<-begun
	at := time.Now()
	require.False(t, s.stop(50*time.Millisecond))
	require.Less(t, time.Since(at), time.Second)
	close(release)
}

func TestTroubleIsToldOnce(t *testing.T) {
	var tr trouble
	require.False(t, tr.over())
	require.True(t, tr.met("away"))
	require.False(t, tr.met("away"))
	require.True(t, tr.met("refused"))
	require.True(t, tr.over())
	require.False(t, tr.over())
	require.True(t, tr.met("refused"))
}
