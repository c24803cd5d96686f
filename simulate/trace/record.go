// SPDX-License-Identifier: GPL-2.0-or-later

package trace

import (
	"fmt"
	"time"

	"gpubudget/simulate"
)

// Record is a run that gpubudget has on record.
type Record struct {
	Account, User, Partition, QOS string
	Start                         time.Time
	Ran                           time.Duration
	GPUs                          int64
	Unallocated                   bool
}

// Recorded makes a trace of runs. When they were submitted and what their time
// limits were is not on record.
func Recorded(records []Record, o Options) *Trace {
	r := newReader(o, "recorded runs")
	r.Notes = append(r.Notes, "submissions: runs are taken to have been submitted when they started")
	for i, record := range records {
		x := row{
			line: i + 1, account: record.Account, user: record.User, partition: record.Partition, qos: record.QOS,
			submit: record.Start.Unix(), run: int64(record.Ran / time.Second), gpus: record.GPUs, minRuntime: simulate.Undeclared,
		}
		if record.Unallocated {
			x.minRuntime = 0
		}
		if record.User == "" {
			x.fail(RowError{Kind: "no user", Want: fmt.Sprintf("run %d has none", i+1)})
		}
		r.add(&x)
	}
	return r.finish()
}
