// SPDX-License-Identifier: GPL-2.0-or-later

package simnvml

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// RunTests is the body of a TestMain whose tests share one library, since a
// process loads no second: it builds it, says in library where it lies, runs the
// tests and removes it. It returns their exit code, or 1 if it can't.
func RunTests(library *string, run func() int) int {
	dir, err := os.MkdirTemp("", "gpubudget-simnvml-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if *library, err = Build(context.Background(), dir); err == nil {
		code = run()
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
