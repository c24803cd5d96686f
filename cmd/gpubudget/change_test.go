// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
)

// silent is a terminal at which nobody answers.
func (s *session) silent(ctx context.Context, patience time.Duration, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	nobody, hold := io.Pipe()
	defer hold.Close()
	p, out, errs := s.program("", true)
	p.stdin, p.patience = nobody, patience
	code = p.run(ctx, append([]string{"gpubudget", "--dsn", s.dsn}, args...))
	return out.String(), errs.String(), code
}

func TestNoAnswerIsANo(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	stdout, _, code := s.silent(context.Background(), 50*time.Millisecond, "-M", "titan", "account", "add", "vision")
	require.Equal(t, exitOK, code)
	require.True(t, strings.HasSuffix(stdout, "[y/N] \nNothing was changed.\n"), stdout)
	_, stderr, _ := s.run("", false, "ledger")
	require.Contains(t, stderr, "the ledger is empty")
}

func TestAnInterruptAtTheQuestionChangesNothing(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	ctx, interrupt := context.WithTimeout(context.Background(), time.Second)
	defer interrupt()
	_, stderr, code := s.silent(ctx, time.Minute, "-M", "titan", "account", "add", "vision")
	require.Equal(t, exitError, code)
	require.Equal(t, "gpubudget: error: interrupted: nothing was changed\n", stderr)
}

func TestAnInterruptAtWork(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	ctx, interrupt := context.WithCancel(context.Background())
	interrupt()
	_, stderr, code := s.silent(ctx, time.Minute, "account", "list")
	require.Equal(t, exitError, code)
	require.Equal(t, "gpubudget: error: interrupted\n", stderr)
}

// While somebody thinks about an answer, others write.
func TestAQuestionHoldsUpNobody(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	s.must("-Q", "-M", "titan", "account", "add", "vision", "--share", "30%")

	answer, give := io.Pipe()
	p, _, _ := s.program("", true)
	asked := make(chan struct{})
	var out bytes.Buffer
	p.stdin, p.stdout = answer, writerFunc(func(b []byte) (int, error) {
		n, err := out.Write(b)
		if strings.Contains(out.String(), "[y/N]") {
			select {
			case <-asked:
			default:
				close(asked)
			}
		}
		return n, err
	})
	done := make(chan int)
	go func() {
		done <- p.run(context.Background(), []string{"gpubudget", "--dsn", s.dsn, "share", "set", "vision", "80%"})
	}()
	<-asked
	s.must("account", "add", "speech", "--share", "60%")
	_, err := io.WriteString(give, "y\n")
	require.NoError(t, err)
	require.Equal(t, exitError, <-done, "what was possible when it was asked no longer is")
	require.Equal(t, "root||100%|100%|0\nspeech|root|60%|60%|0\nvision|root|30%|30%|0\n", s.must("account", "list", "-nP"))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestManyEntriesShowHowFarTheyAre(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	var users []string
	for i := range manyEntries {
		users = append(users, fmt.Sprintf("u%d", i))
	}
	s.must("-Q", "-M", "titan", "account", "add", "vision")
	p, _, stderr := s.program("", false)
	p.progress = true
	require.Zero(t, p.run(context.Background(), []string{"gpubudget", "--dsn", s.dsn, "user", "add", strings.Join(users, ","), "vision"}))
	require.Contains(t, stderr.String(), "entries")

	stdout, text, code := s.run("", false, "user", "remove", strings.Join(users, ","), "vision")
	require.Zero(t, code)
	require.Contains(t, stdout, "Entries 202 to 401 of the ledger of titan.")
	require.Empty(t, text, "nobody watches")
}
