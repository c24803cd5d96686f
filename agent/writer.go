// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gpubudget/agent/tally"
)

// Database is a connection.
type Database interface {
	executor
	IsClosed() bool
	Close(ctx context.Context) error
}

var _ Database = (*pgx.Conn)(nil)

const (
	// batch is how many buckets go into one report.
	batch = 500
	// writeTimeout bounds one write.
	writeTimeout = time.Minute
	// devicesEvery is how often the devices are told although they have not
	// changed.
	devicesEvery = time.Hour
)

// written is what the writer knows the database has.
type written struct {
	db      Database // that was kept open; nil: none
	devices int      // how often they had changed
	at      time.Duration
	trouble trouble
	refused once // open buckets
}

// write gives to the database what there is until the context ends.
func (a *Agent) write(ctx context.Context) {
	var w written
	for {
		wait := untilTurn(a.o.Node, a.o.WriteInterval, a.o.Clock.Now())
		select {
		case <-ctx.Done():
			w.close()
			return
		case <-time.After(wait):
		}
		a.writeOnce(ctx, &w)
	}
}

// close ends the connection that was kept.
func (w *written) close() {
	if w.db == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.db.Close(ctx) // what was sent is committed
	w.db = nil
}

// untilTurn is how long a node waits for its next turn. Each has its own moment
// in the interval, by its name: so those of thousands are spread evenly, also
// after the database was away.
func untilTurn(node string, interval time.Duration, now time.Time) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // it has no errors
	ms := interval.Milliseconds()
	// The low bits of a FNV hash hardly depend on the first letters.
	phase := int64((h.Sum64() * 0x9e3779b97f4a7c15 >> 33) % uint64(ms)) //nolint:gosec // less than an interval
	return time.Duration(ms-(now.UnixMilli()-phase)%ms) * time.Millisecond
}

// lastWrite gives the rest, before the process ends. It takes a few seconds at
// most: what does not get through is on disk.
func (a *Agent) lastWrite() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var w written
	a.writeOnce(ctx, &w)
	w.close()
}

// writeOnce writes all there is, and tells of how that went.
func (a *Agent) writeOnce(ctx context.Context, w *written) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	kept := w.db != nil
	err := a.writeAll(ctx, w)
	if err != nil && kept && w.db == nil {
		err = a.writeAll(ctx, w) // it may have been closed long ago
	}
	now := a.o.Clock.Now()
	switch {
	case err == nil:
		a.metrics.skewed.Set(0)
		a.metrics.written.Set(float64(now.UnixMilli()) / 1000)
		w.trouble.over(a.log, now, "the database takes reports again")
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return // this process ends
	default:
		a.metrics.writeFailures.WithLabelValues(codeOf(err)).Inc()
		if codeOf(err) == codeClock {
			a.metrics.skewed.Set(1)
		}
		w.trouble.met(a.log, now, "the database takes no report: what is counted waits in the spool", explained(err), "spool", a.o.SpoolDir)
	}
	w.refused.turn()
}

// writeAll sends reports until nothing is left. The connection is kept for the
// next time if it is to be: the server's process knows its tables and plans
// then, which are most of what a write costs.
func (a *Agent) writeAll(ctx context.Context, w *written) error {
	a.shared.mu.Lock()
	report, devices, changed := a.shared.report, a.shared.devices, a.shared.changed
	a.shared.mu.Unlock()
	if report.Cluster == "" {
		return nil // there was no round yet
	}
	if err := a.connect(ctx, w); err != nil {
		return err
	}
	defer func() {
		if !a.o.KeepConnection || w.db.IsClosed() {
			w.close()
		}
	}()
	open := report.Buckets
	if w.devices != changed || a.o.Clock.Boot()-w.at > devicesEvery {
		report.GPUs = devices
	}
	for first := true; ; first = false {
		b, err := a.spool.Next(batch)
		if err != nil {
			return err
		}
		if len(b.Buckets) == 0 && !first {
			return nil
		}
		if report.Buckets = b.Buckets; first {
			report.Buckets = slices.Concat(open, b.Buckets)
		}
		report.Agent.Spooled = a.spool.Waiting()
		if err := a.send(ctx, w.db, &report, w, len(report.Buckets)-len(b.Buckets)); err != nil {
			return err
		}
		if first {
			w.devices, w.at, report.GPUs = changed, a.o.Clock.Boot(), nil
		}
		if err := a.spool.Sent(b); err != nil {
			return err
		}
	}
}

// connect makes sure that there is a connection.
func (a *Agent) connect(ctx context.Context, w *written) error {
	if w.db != nil {
		return nil
	}
	db, err := a.o.Connect(ctx)
	if err != nil {
		return err
	}
	w.db = db
	return nil
}

// send sends a report of which the first so many buckets are open ones. If the
// database won't have one of the buckets, each is sent by itself, so that it
// holds up no others.
func (a *Agent) send(ctx context.Context, db Database, r *Report, w *written, open int) error {
	r.Sent = a.o.Clock.Now().UnixMilli()
	err := Send(ctx, db, r)
	if err == nil || !refused(err) {
		return err
	}
	all := r.Buckets
	defer func() { r.Buckets = all }()
	if err := a.sendDevices(ctx, db, r); err != nil {
		return err
	}
	for i, b := range all {
		r.Buckets = []*tally.Bucket{b}
		r.Sent = a.o.Clock.Now().UnixMilli()
		err := Send(ctx, db, r)
		switch {
		case err == nil:
		case !refused(err):
			return err
		case i < open:
			if w.refused.first(fmt.Sprint(b.GPU, b.JobID, b.Restart, err)) {
				a.log.Error("the database refuses what is counted of a job", "job", b.JobID, "gpu", b.GPU, "err", err)
			}
		default:
			a.metrics.rejected.WithLabelValues(codeOf(err)).Inc()
			a.log.Error("the database refuses a bucket: it is kept in the file rejected of the spool", "job", b.JobID, "gpu", b.GPU, "err", err)
			if err := a.spool.Reject(b, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendDevices sends what is not about buckets. If the database won't have the
// devices it goes without them.
func (a *Agent) sendDevices(ctx context.Context, db Database, r *Report) error {
	r.Buckets = nil
	err := Send(ctx, db, r)
	if err == nil || !refused(err) || len(r.GPUs) == 0 {
		r.GPUs = nil
		return err
	}
	a.log.Error("the database refuses what the driver says of the GPUs", "err", err)
	r.GPUs = nil
	return Send(ctx, db, r)
}

// codeOf is the database's code of an error; "connection" if it is none of the
// database's.
func codeOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return "connection"
}

// explained adds to an error of the database what helps.
func explained(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	help := map[string]string{
		codeClock:    e.Hint,
		codeLogin:    e.Hint,
		codeNoRight:  "make the agent's role a member of gpubudget_agent: GRANT gpubudget_agent TO the role",
		codeNoSchema: "run: gpubudget db migrate",
		codeNoName:   "run: gpubudget db migrate",
	}[e.Code]
	if help == "" {
		return err
	}
	return fmt.Errorf("%s: %s", e.Message, help)
}
