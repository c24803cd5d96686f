// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"math"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// checkShell has a shell, if it is installed, read a script without running it.
func checkShell(t *testing.T, shell, script string) {
	t.Helper()
	require.NotContains(t, script, "@")
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Logf("%s is not installed", shell)
		return
	}
	command := exec.CommandContext(t.Context(), path, "-n")
	command.Stdin = strings.NewReader(script)
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestExpand(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"-anP", "--all --noheader --parsable2"},
		{"-hA vision", "--noheader --accounts=vision"},
		{"-Avision,nlp -a", "--accounts=vision,nlp --all"},
		{"-nPoAccount,User%20", "--noheader --parsable2 --format=Account,User%20"},
		{"-u -1", "--users=-1"},
		{"--acc vision", "--accounts=vision"},
		{"--format=Account", "--format=Account"},
		{"--format=", "--format="},
		{"--user ada", "--users=ada"},
		{"--Users", "--Users"},
		{"--cluster=x", "--clusters=x"},
		{"--parsable", "--parsable"},
		{"--js", "--json"},
		{"-a --", "--all"},
	} {
		got, err := expand(flags(), strings.Fields(tt.in))
		require.NoError(t, err, tt.in)
		require.Equal(t, tt.want, strings.Join(got, " "), tt.in)
	}
}

func TestFit(t *testing.T) {
	for _, tt := range []struct {
		cell  cell
		width int
		want  string
	}{
		{text("research"), 8, "research"},
		{text("research"), 7, "resear+"},
		{text("höhlenforschung"), 6, "höhle+"},
		{text("x"), 0, "x"},
		{numberIf(true, 1.0/3, 6, ""), 8, "0.333333"},
		{numberIf(true, 1.0/3, 6, ""), 5, "0.333"},
		{numberIf(true, 123456.789, 2, ""), 8, "123456.8"},
		{numberIf(true, 123456.789, 2, ""), 3, "123457"}, // never a wrong number
		{numberIf(true, 33.333, 2, "%"), 5, "33.3%"},
		{numberIf(true, math.Inf(1), 6, ""), 10, "inf"},
		{numberIf(false, 1, 2, ""), 10, ""},
	} {
		require.Equal(t, tt.want, tt.cell.fit(tt.width))
	}
}

func TestAge(t *testing.T) {
	for _, tt := range []struct {
		age  time.Duration
		want string
	}{
		{-time.Second, "0s"},
		{1999 * time.Millisecond, "1s"},
		{3*time.Hour + 2*time.Minute, "3h2m0s"},
		{50 * time.Hour, "2d2h"},
	} {
		require.Equal(t, tt.want, age(tt.age))
	}
}

func TestColumnsAreListedByName(t *testing.T) {
	for i := 1; i < len(columns); i++ {
		require.Less(t, columns[i-1].name, columns[i].name)
	}
	for _, names := range [][]string{usualColumns, longColumns} {
		chosen, err := chooseColumns(names, false, false)
		require.NoError(t, err)
		require.Equal(t, names, namesOf(chosen))
	}
}

// However far down the tree an account stands, its name can be read.
func TestIndentationCostsNoName(t *testing.T) {
	for text, want := range map[string]string{
		"  vision":                               "  vision",
		strings.Repeat(" ", 5) + "vision":        "    vision",
		strings.Repeat(" ", 60) + "vision":       "    vision",
		strings.Repeat(" ", 60) + "astronomical": "astronomi+",
		"":                                       "",
	} {
		require.Equal(t, want, cut(text, 10))
	}
}
