// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// mark is what of the database a reader has seen: a snapshot of transactions, and
// of which server and table it is one. It is zero if that is not known.
type mark struct{ snapshot, server string }

// History reads what ended runs were charged since the beginning of w, to be
// counted in windows that end at w.Until or later. Buckets that an edge of w or
// one of the cuts falls into are read run by run.
//
// If old is a history of the same cluster from the same server, only what has
// changed is read, whatever the order in which transactions were committed. All
// else is shared with it. Of a row of histories, each may be continued once.
//
// It reads in several statements: s should be one of Snapshot.
func (s *Store) History(ctx context.Context, cluster string, w fairshare.Period, cuts []fairshare.Instant, old *History) (*History, error) {
	h, err := s.history(ctx, cluster, w, cuts, old)
	if err != nil {
		return nil, fmt.Errorf("read what %s was charged: %w", cluster, err)
	}
	return h, nil
}

func (s *Store) history(ctx context.Context, cluster string, w fairshare.Period, cuts []fairshare.Instant, old *History) (*History, error) {
	r := historyReader{db: s.db, cluster: cluster}
	seen, err := r.mark(ctx)
	if err != nil {
		return nil, err
	}
	if old.continues(seen, w) {
		r.h = &History{since: old.since, owners: old.owners, spans: slices.Clone(old.spans), roster: old.roster}
		err = r.follow(ctx, old.seen)
	} else {
		r.h = &History{since: w.From, roster: make(roster)}
		err = r.readAll(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.h.at, r.h.seen = w.Until, seen
	r.h.drop(w.From)
	return r.h, r.cut(ctx, w, cuts)
}

// continues tells whether a new history can be made of h by what has changed. It
// can't once it was tried and did not succeed.
func (h *History) continues(seen mark, w fairshare.Period) bool {
	return h != nil && h.seen.server == seen.server && h.since <= w.From && len(h.roster) == len(h.owners)
}

// historyReader reads one History.
type historyReader struct {
	db      DB
	cluster string
	h       *History
	own     map[fairshare.Period]bool // buckets that have changed; their memory is h's own
}

func (r *historyReader) mark(ctx context.Context) (m mark, err error) {
	err = r.db.QueryRow(ctx, `
		SELECT pg_current_snapshot()::text,
			concat_ws(' ', pg_postmaster_start_time(), 'gpubudget.usage_bucket'::regclass::oid, $1::text)`, r.cluster).
		Scan(&m.snapshot, &m.server)
	return m, err
}

// readAll reads all buckets. There may be a million amounts, so each bucket comes
// as one row: half the work is in rows otherwise.
func (r *historyReader) readAll(ctx context.Context) error {
	rows, err := r.db.Query(ctx, `
		SELECT starts_at, ends_at, array_agg(account), array_agg(user_name), array_agg(gpu_ms)
		FROM gpubudget.usage_bucket
		WHERE cluster = $1 AND allocated AND starts_at > $2::timestamptz - interval '1 day' AND ends_at > $2
		GROUP BY starts_at, ends_at`, r.cluster, r.h.since.Time())
	if err != nil {
		return err
	}
	defer rows.Close()
	g, in := newGathering(r.h), newBucketReader(rows)
	for rows.Next() {
		if err := in.bucket(g); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	g.settle()
	return nil
}

// unseen is true of rows that a transaction has changed which the snapshot $2 did
// not see. Rows that came from another server, with a dump, may have numbers of
// transactions that are still to come.
const unseen = `changed_by >= pg_snapshot_xmin($2::text::pg_snapshot) AND changed_by < pg_snapshot_xmax(pg_current_snapshot())
	AND NOT pg_visible_in_snapshot(changed_by, $2::text::pg_snapshot)`

// follow reads the buckets that have changed.
func (r *historyReader) follow(ctx context.Context, seen mark) error {
	r.own = make(map[fairshare.Period]bool)
	if err := r.erased(ctx, seen); err != nil {
		return err
	}
	return r.buckets(ctx, r.set, `
		SELECT starts_at, ends_at, account, user_name, gpu_ms
		FROM gpubudget.usage_bucket
		WHERE cluster = $1 AND allocated AND ends_at > $3 AND `+unseen,
		r.cluster, seen.snapshot, r.h.since.Time())
}

// erased reads buckets anew out of which something has vanished.
func (r *historyReader) erased(ctx context.Context, seen mark) error {
	rows, err := r.db.Query(ctx, `
		SELECT starts_at, ends_at FROM gpubudget.usage_erased
		WHERE cluster = $1 AND starts_at > $3::timestamptz - interval '1 day' AND ends_at > $3 AND `+unseen,
		r.cluster, seen.snapshot, r.h.since.Time())
	if err != nil {
		return err
	}
	var from, until []time.Time
	var p [2]time.Time
	_, err = pgx.ForEachRow(rows, []any{&p[0], &p[1]}, func() error {
		from, until = append(from, p[0]), append(until, p[1])
		bucket := fairshare.Period{From: fairshare.At(p[0]), Until: fairshare.At(p[1])}
		r.own[bucket] = true
		if at, found := r.h.find(bucket); found {
			r.h.spans[at] = span{Period: bucket}
		}
		return nil
	})
	if err != nil || len(from) == 0 {
		return err
	}
	return r.buckets(ctx, r.set, `
		SELECT b.starts_at, b.ends_at, b.account, b.user_name, b.gpu_ms
		FROM unnest($2::timestamptz[], $3::timestamptz[]) e (starts_at, ends_at),
			gpubudget.usage_bucket b
		WHERE b.cluster = $1 AND b.allocated AND b.starts_at = e.starts_at AND b.ends_at = e.ends_at`,
		r.cluster, from, until)
}

// set puts an amount into a bucket.
func (r *historyReader) set(p fairshare.Period, owner uint32, amount fairshare.GPUMillis) {
	at, found := r.h.find(p)
	if !found {
		r.h.spans = slices.Insert(r.h.spans, at, span{Period: p})
		r.own[p] = true
	}
	b := &r.h.spans[at]
	if !r.own[p] {
		r.own[p] = true
		b.owners, b.amounts, b.cut, b.pieces = slices.Clone(b.owners), slices.Clone(b.amounts), false, nil
	}
	b.set(owner, amount)
}

// buckets shows the rows of a query: beginning and end of a bucket, account, user
// and amount.
func (r *historyReader) buckets(ctx context.Context, show func(fairshare.Period, uint32, fairshare.GPUMillis), sql string, args ...any) error {
	rows, err := r.db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	in := newRowReader(rows)
	for rows.Next() {
		p, owner, amount, err := in.bucket(r.h)
		if err != nil {
			return err
		}
		show(p, owner, amount)
	}
	return rows.Err()
}

// rowReader reads rows of buckets, of which there may be a million.
type rowReader struct {
	rows   pgx.Rows
	binary bool // as they come from a server, but for the simple protocol
	name   []byte

	from, until   time.Time
	account, user interned
	amount        int64
}

func newRowReader(rows pgx.Rows) *rowReader {
	names := make(map[string]string)
	r := &rowReader{rows: rows, account: interned{names: names}, user: interned{names: names}}
	r.binary = isBinary(rows, 0, 1, 4) // texts are alike either way
	return r
}

// isBinary tells whether columns come in the server's own form.
func isBinary(rows pgx.Rows, columns ...int) bool {
	fields := rows.FieldDescriptions()
	return len(fields) == 5 && !slices.ContainsFunc(columns, func(i int) bool { return fields[i].Format != 1 })
}

func (r *rowReader) bucket(h *History) (p fairshare.Period, owner uint32, amount fairshare.GPUMillis, err error) {
	if !r.binary {
		if err := r.rows.Scan(&r.from, &r.until, &r.account, &r.user, &r.amount); err != nil {
			return p, 0, 0, err
		}
		r.name = append(append(append(r.name[:0], r.account.text...), 0), r.user.text...)
		p = fairshare.Period{From: fairshare.At(r.from), Until: fairshare.At(r.until)}
		return p, h.number(r.name, len(r.account.text)), fairshare.GPUMillis(r.amount), nil
	}
	raw := r.rows.RawValues()
	r.name = append(append(append(r.name[:0], raw[2]...), 0), raw[3]...)
	p = fairshare.Period{From: instant(raw[0]), Until: instant(raw[1])}
	return p, h.number(r.name, len(raw[2])), fairshare.GPUMillis(bigint(raw[4])), nil
}

// bucketReader reads rows of whole buckets: beginning and end, and arrays of
// accounts, users and amounts.
type bucketReader struct {
	rows   pgx.Rows
	binary bool
	name   []byte

	// Mostly the owner of an amount is the one who came next the last time.
	after []uint32 // by number of the one before, from 1; 0 if nobody came
	last  uint32
}

// owner is the number of an owner.
func (r *bucketReader) owner(h *History, account, user []byte) uint32 {
	for len(r.after) <= len(h.owners) {
		r.after = append(r.after, 0)
	}
	if next := r.after[r.last]; next > 0 {
		if o := &h.owners[next-1]; o.Account == string(account) && o.User == string(user) {
			r.last = next
			return next - 1
		}
	}
	r.name = append(append(append(r.name[:0], account...), 0), user...)
	number := h.number(r.name, len(account))
	r.after[r.last], r.last = number+1, number+1
	return number
}

func newBucketReader(rows pgx.Rows) *bucketReader {
	return &bucketReader{rows: rows, binary: isBinary(rows, 0, 1, 2, 3, 4)}
}

func (r *bucketReader) bucket(g *gathering) error {
	if !r.binary {
		return r.scan(g)
	}
	raw := r.rows.RawValues()
	p := fairshare.Period{From: instant(raw[0]), Until: instant(raw[1])}
	accounts, users, amounts := array(raw[2]), array(raw[3]), array(raw[4])
	for {
		account, user, amount := accounts.next(), users.next(), amounts.next()
		if account == nil || user == nil || len(amount) != 8 {
			break
		}
		g.add(p, r.owner(g.history, account, user), fairshare.GPUMillis(bigint(amount)))
	}
	if len(accounts)+len(users)+len(amounts) > 0 {
		return fmt.Errorf("bucket from %v: its arrays are damaged", p.From.Time())
	}
	return nil
}

func (r *bucketReader) scan(g *gathering) error {
	var (
		from, until     time.Time
		accounts, users []string
		amounts         []int64
	)
	if err := r.rows.Scan(&from, &until, &accounts, &users, &amounts); err != nil {
		return err
	}
	p := fairshare.Period{From: fairshare.At(from), Until: fairshare.At(until)}
	for i, amount := range amounts {
		g.add(p, r.owner(g.history, []byte(accounts[i]), []byte(users[i])), fairshare.GPUMillis(amount))
	}
	return nil
}

// elements are what is left of an array of one dimension without nulls, as
// Postgres sends it: each element after its length.
type elements []byte

func array(raw []byte) elements {
	const head = 20 // dimensions, flags, type; length and lower bound of the first
	if len(raw) < head {
		return raw
	}
	return raw[head:]
}

// next is the next element, not nil; nil if there is none, or it is cut short.
func (e *elements) next() []byte {
	all := *e
	if len(all) < 4 {
		return nil
	}
	n := int(binary.BigEndian.Uint32(all))
	if n > len(all)-4 {
		return nil
	}
	*e = all[4+n:]
	return all[4 : 4+n : 4+n]
}

func bigint(raw []byte) int64 { return int64(binary.BigEndian.Uint64(raw)) } //nolint:gosec // as it was written

// instant is a timestamptz as Postgres sends it: microseconds since 2000.
func instant(raw []byte) fairshare.Instant {
	const epoch = 946_684_800_000
	return fairshare.Instant(bigint(raw)/1000 + epoch)
}

// cut makes sure that the runs are known in the buckets that an edge falls into,
// and forgets them in all others.
func (r *historyReader) cut(ctx context.Context, w fairshare.Period, cuts []fairshare.Instant) error {
	beyond, err := r.endsAfter(ctx, w.Until)
	if err != nil {
		return err
	}
	edges := append(slices.Clone(cuts), w.From)
	slices.Sort(edges)
	places := make(map[fairshare.Period]int)
	var from, until []time.Time
	for i := range r.h.spans {
		b := &r.h.spans[i]
		next, _ := slices.BinarySearch(edges, b.From+1)
		cut := next < len(edges) && edges[next] < b.Until || beyond && b.Until > w.Until
		if cut && !b.cut {
			places[b.Period] = i
			from, until = append(from, b.From.Time()), append(until, b.Until.Time())
		}
		if !cut || !b.cut {
			b.cut, b.pieces = cut, nil
		}
	}
	if len(places) == 0 {
		return nil
	}
	return r.pieces(ctx, places, from, until)
}

// endsAfter tells whether any run is known to end after an instant: a clock was
// set back.
func (r *historyReader) endsAfter(ctx context.Context, at fairshare.Instant) (some bool, err error) {
	err = r.db.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM gpubudget.job_run
			WHERE cluster = $1 AND ended_at IS NOT NULL AND tstzrange(started_at, ended_at) && tstzrange($2, NULL))`,
		r.cluster, at.Time()).Scan(&some)
	return some, err
}

// pieces reads the runs in buckets.
func (r *historyReader) pieces(ctx context.Context, places map[fairshare.Period]int, from, until []time.Time) error {
	rows, err := r.db.Query(ctx, `
		SELECT p.starts_at, p.ends_at, r.account, r.user_name, r.gpus, r.parts, r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
			r.rate, r.rate_changes, r.metered_ms
		FROM unnest($2::timestamptz[], $3::timestamptz[]) p (starts_at, ends_at), LATERAL (
			SELECT * FROM gpubudget.job_run r
			WHERE r.cluster = $1 AND r.ended_at IS NOT NULL AND r.allocated AND (r.gpus > 0 OR r.parts > 0)
			  AND r.bucket_ms = gpubudget.unix_ms(p.ends_at) - gpubudget.unix_ms(p.starts_at)
			  AND tstzrange(r.started_at, r.ended_at) && tstzrange(p.starts_at, p.ends_at)
			  AND r.started_at < p.ends_at AND r.ended_at > p.starts_at AND r.ended_at > r.started_at
			OFFSET 0 -- part by part, by the index: the planner takes the parts for thousands
		) r`, r.cluster, from, until)
	if err != nil {
		return err
	}
	var (
		run           Run
		suspended     int64
		starts, ends  time.Time
		names         = make(map[string]string)
		account, user = interned{names: names}, interned{names: names}
		name          []byte
		counts        rates
	)
	columns := []any{
		&starts, &ends, &account, &user, &run.GPUs, &run.Parts, &run.StartedAt, &run.EndedAt, &suspended, &run.SuspendedSince,
		&counts.first, &counts.changes, &run.Metered,
	}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		run.Suspended = time.Duration(suspended) * time.Millisecond
		name = append(append(append(name[:0], account.text...), 0), user.text...)
		run.Rates = counts.since(run.StartedAt)
		b := &r.h.spans[places[fairshare.Period{From: fairshare.At(starts), Until: fairshare.At(ends)}]]
		b.cutIn(&run, r.h.number(name, len(account.text)))
		return nil
	})
	if err != nil {
		return err
	}
	for _, place := range places {
		r.h.spans[place].merge()
	}
	return nil
}

// cutIn adds what an ended run is charged in the bucket. What is so much each
// millisecond lies evenly in any part of it.
func (s *span) cutIn(r *Run, owner uint32) {
	r.stretches(r.Period(*r.EndedAt), func(p fairshare.Period, amount fairshare.GPUMillis) {
		within := p.Intersect(s.Period)
		if within.Empty() {
			return
		}
		if each := int64(amount) / p.Millis(); int64(amount)%p.Millis() == 0 {
			p, amount = within, fairshare.GPUMillis(each*within.Millis())
		}
		s.pieces = append(s.pieces, piece{owner, p, amount})
	})
}

// merge sorts the pieces and puts together those that lie evenly in the same
// stretch of the bucket: mostly those that fill it.
func (s *span) merge() {
	slices.SortFunc(s.pieces, func(x, y piece) int { return x.compare(&y) })
	merged := s.pieces[:0]
	for _, p := range s.pieces {
		if n := len(merged); n > 0 {
			if last := &merged[n-1]; last.owner == p.owner && last.run == p.run && last.even() && p.even() {
				last.amount += p.amount
				continue
			}
		}
		merged = append(merged, p)
	}
	s.pieces = slices.Clone(merged)
}

// even tells that the amount is as many GPUs all the time.
func (p *piece) even() bool { return int64(p.amount)%p.run.Millis() == 0 }
