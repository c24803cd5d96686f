// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"context"
	"fmt"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Numbers reads an option that is numbers separated by commas.
func Numbers(option, text string) (numbers []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, fmt.Errorf("-%s: %w", option, err)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// Absolute makes paths absolute: the clusters' processes run elsewhere.
func Absolute(paths ...*string) error {
	for _, path := range paths {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("find %s: %w", *path, err)
		}
		*path = absolute
	}
	return nil
}

// Interruptible is done when somebody wants the command to end.
func Interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}
