// SPDX-License-Identifier: GPL-2.0-or-later

package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
	"gpubudget/usage/metered"
)

// allCounted is of how much of what was used the meters must know before it is
// told: agents write each second what they have counted.
const allCounted = 0.999

// tellMetered waits until the agents have counted the last jobs, and holds what
// they metered against sacct.
func tellMetered(ctx context.Context, c *testcluster.Cluster, record testcluster.Agreement, out io.Writer) error {
	conn, err := pgx.Connect(ctx, c.DSN())
	if err != nil {
		return fmt.Errorf("read what was metered: %w", err)
	}
	defer conn.Close(ctx)
	const wait = 10 * time.Second
	var audit *metered.Audit
	for deadline := time.Now().Add(wait); ; time.Sleep(sampleEvery) {
		now := time.Now()
		day := fairshare.Period{From: fairshare.At(now.Add(-24 * time.Hour)), Until: fairshare.At(now)}
		if audit, err = metered.NewStore(conn).Audit(ctx, c.Name(), day, now, metered.DefaultTolerance, ""); err != nil {
			return err
		}
		if float64(audit.Covered) >= allCounted*float64(audit.Used) || now.After(deadline) {
			break
		}
	}
	table, err := c.Exec(ctx, "root", "gshare", "--all", "--format=Account,User,UsedH,UnallocH,BusyH,Util%,Meter%")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", table)
	fmt.Fprintf(out, "demo: metered by %d agents on simulated GPUs: %s\n", len(audit.Nodes), meteredLine(audit, record))
	return nil
}

// meteredLine is what agents metered beside what sacct has.
func meteredLine(a *metered.Audit, record testcluster.Agreement) string {
	var outside int64
	for i := range a.Reading.Outside {
		outside += a.Reading.Outside[i].Millis()
	}
	percent := 0.0
	if record.Used > 0 {
		percent = 100 * float64(a.Covered) / float64(record.Used)
	}
	return fmt.Sprintf("%.1f of the %.0f GPU-seconds of sacct were metered (%.1f%%), the rest charged from Slurm's record; "+
		"%.1f more after the end of a job, until its Epilog, were charged to nobody; %d disagreements longer than a minute",
		float64(a.Covered)/1000, float64(record.Used)/1000, percent, float64(outside)/1000, len(a.Disagreements))
}
