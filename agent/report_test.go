// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/agent/tally"
	"gpubudget/fairshare"
	"gpubudget/internal/pgserver"
	"gpubudget/internal/pgtest"
	"gpubudget/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	anIncarnation      = "7b0a3c52-9a3e-4c57-8f50-0c0f7a4f2a11"
	anotherIncarnation = "c1d5a3f0-51b5-4c38-9a5c-2f0f3c2a0b42"
)

// thisHour is the bucket that now lies in.
func thisHour() fairshare.Instant {
	now := fairshare.At(time.Now())
	return now - now%3600_000
}

func aBucket(from fairshare.Instant, held int64) *tally.Bucket {
	return &tally.Bucket{
		Starts: from, Ends: from + 3600_000, GPU: "GPU-1", JobID: 7, Incarnation: anIncarnation, Seq: 1, Source: tally.FromProlog,
		User: "ann", Account: "vision", From: from, Until: from + fairshare.Instant(held), Part: held,
	}
}

func aReport(buckets ...*tally.Bucket) *Report {
	now := time.Now().UnixMilli()
	return &Report{
		Cluster: "titan", Node: "n1", Sent: now,
		Agent:   Sign{Incarnation: anIncarnation, BootID: "b", Started: now, Version: "v1", Sampled: &now, GPUs: 8, State: StateOK},
		Buckets: buckets,
	}
}

// agentPool is a pool of connections as a role that may do what agents may.
func agentPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	role := "agent_" + config.ConnConfig.Database
	owner, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN IN ROLE gpubudget_agent", role))
	require.NoError(t, err)
	config.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		pool.Close()
		_, err := owner.Exec(context.Background(), "DROP ROLE "+role)
		require.NoError(t, err)
		require.NoError(t, owner.Close(context.Background()))
	})
	return pool
}

// rows are the rows of a query as text.
func rows(t *testing.T, dsn, sql string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	result, err := conn.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err := pgx.CollectRows(result, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

const heldRows = "SELECT format('%s %s.%s %s %s %s', gpu, job_id, restart, held_ms, part_ms, seq) FROM gpubudget.gpu_bucket ORDER BY 1"

func TestRepeatedAndLateReportsChangeNothing(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	hour := thisHour() - 3600_000
	first, second := aBucket(hour, 1000), aBucket(hour, 2500)
	second.Seq, second.Ended = 2, true
	for _, b := range []*tally.Bucket{first, first, second, second, first} {
		require.NoError(t, Send(t.Context(), pool, aReport(b)))
	}
	require.Equal(t, []string{"GPU-1 7.0 2500 2500 2"}, rows(t, dsn, heldRows))

	other := aBucket(hour, 10)
	other.Incarnation = anotherIncarnation
	require.NoError(t, Send(t.Context(), pool, aReport(other)))
	require.Equal(t, []string{"GPU-1 7.0 10 10 1", "GPU-1 7.0 2500 2500 2"}, rows(t, dsn, heldRows))
}

// What is in a report twice, as a bucket that is closed while it is being sent, is taken
// once: the later.
func TestABucketThatIsInAReportTwice(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	hour := thisHour() - 3600_000
	at := func(seq, held int64) *tally.Bucket {
		b := aBucket(hour, held)
		b.Seq = seq
		return b
	}
	other := aBucket(hour, 77)
	other.JobID = 8
	require.NoError(t, Send(t.Context(), pool, aReport(at(2, 2500), at(3, 3500), other, at(1, 1000))))
	require.NoError(t, Send(t.Context(), pool, aReport(at(5, 5500), at(4, 4500))))
	require.Equal(t, []string{"GPU-1 7.0 5500 5500 5", "GPU-1 8.0 77 77 1"}, rows(t, dsn, heldRows))
}

// measured is a bucket of which all is known.
func measured(held, seq int64) *tally.Bucket {
	b := aBucket(thisHour()-3600_000, held)
	b.Seq, b.Shared, b.BusyKnown, b.MemoryKnown, b.EnergyKnown, b.ProcessKnown = seq, held, held, held, held, held
	b.Busy, b.Process, b.Memory, b.Energy, b.MemoryMax = new(held), new(held), new(100*held), new(300*held), new(int64(100))
	b.SharedBusy, b.SharedBusyKnown = new(held/4), (held+1)/2
	b.Samples = held / 10_000
	return b
}

// An agent adds to what it has told, and takes nothing of it back; no other node
// touches it.
func TestWhatWasToldOnlyGrows(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	require.NoError(t, Send(t.Context(), pool, aReport(measured(600_000, 5))))
	kept := rows(t, dsn, "SELECT b::text FROM gpubudget.gpu_bucket b")
	for name, change := range map[string]func(*Report, *tally.Bucket){
		"held":              func(_ *Report, b *tally.Bucket) { *b = *measured(599_999, 6) },
		"nothing":           func(_ *Report, b *tally.Bucket) { *b = *aBucket(b.Starts, 0); b.Seq, b.Ended = 6, true },
		"a minute and more": func(_ *Report, b *tally.Bucket) { *b = *measured(539_999, 6); b.Ended = true },
		"from":              func(_ *Report, b *tally.Bucket) { b.From, b.Until = b.From+1, b.Until+1 },
		"part":              func(_ *Report, b *tally.Bucket) { b.Part-- },
		"shared":            func(_ *Report, b *tally.Bucket) { b.Shared-- },
		"busy":              func(_ *Report, b *tally.Bucket) { *b.Busy-- },
		"busy at the end":   func(_ *Report, b *tally.Bucket) { *b.Busy, b.Ended = *b.Busy-1, true },
		"busy known":        func(_ *Report, b *tally.Bucket) { b.Busy, b.BusyKnown = nil, 0 },
		"shared busy":       func(_ *Report, b *tally.Bucket) { *b.SharedBusy-- },
		"shared busy known": func(_ *Report, b *tally.Bucket) { b.SharedBusyKnown-- },
		"memory":            func(_ *Report, b *tally.Bucket) { *b.Memory-- },
		"memory known":      func(_ *Report, b *tally.Bucket) { b.Memory, b.MemoryMax, b.MemoryKnown = nil, nil, 0 },
		"most memory":       func(_ *Report, b *tally.Bucket) { *b.MemoryMax-- },
		"energy":            func(_ *Report, b *tally.Bucket) { *b.Energy-- },
		"energy known":      func(_ *Report, b *tally.Bucket) { b.EnergyKnown-- },
		"process":           func(_ *Report, b *tally.Bucket) { *b.Process-- },
		"process known":     func(_ *Report, b *tally.Bucket) { b.Process, b.ProcessKnown = nil, 0 },
		"samples":           func(_ *Report, b *tally.Bucket) { b.Samples-- },
		"another node":      func(r *Report, _ *tally.Bucket) { r.Node = "n2" },
	} {
		t.Run(name, func(t *testing.T) {
			b := measured(600_000, 6)
			r := aReport(b)
			change(r, b)
			err := Send(t.Context(), pool, r)
			require.ErrorContains(t, err, "the bucket of job 7 on GPU-1 at ")
			require.Equal(t, codeLess, codeOf(err))
			require.True(t, refused(err))
			require.Equal(t, kept, rows(t, dsn, "SELECT b::text FROM gpubudget.gpu_bucket b"))
		})
	}
	// Unless it comes late, when it changes nothing anyway.
	late := aReport(measured(1, 5))
	late.Node = "n2"
	require.NoError(t, Send(t.Context(), pool, late))
	require.Equal(t, kept, rows(t, dsn, "SELECT b::text FROM gpubudget.gpu_bucket b"))
}

// What ends a holding may take back what was counted after its end, and is final.
func TestTheEndTakesBackAMoment(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	require.NoError(t, Send(t.Context(), pool, aReport(measured(600_000, 5))))
	end := measured(540_000, 6)
	end.Ended, end.Energy, end.Memory, end.Samples = true, new(int64(300*600_000)), new(int64(100*600_000)), 60
	require.NoError(t, Send(t.Context(), pool, aReport(end)))
	require.Equal(t, []string{"GPU-1 7.0 540000 540000 6"}, rows(t, dsn, heldRows))
	for _, held := range []int64{539_999, 540_000, 600_000} {
		for _, ended := range []bool{false, true} {
			b := measured(held, 7)
			b.Ended = ended
			require.ErrorContains(t, Send(t.Context(), pool, aReport(b)), "what was held has ended")
		}
	}
	require.NoError(t, Send(t.Context(), pool, aReport(end)))
	require.Equal(t, []string{"GPU-1 7.0 540000 540000 6"}, rows(t, dsn, heldRows))

	// Of what was known for a moment only nothing may be left.
	short := measured(30_000, 1)
	short.JobID = 8
	require.NoError(t, Send(t.Context(), pool, aReport(short)))
	none := aBucket(short.Starts, 0)
	none.JobID, none.Seq, none.Ended, none.Samples = 8, 2, true, 3
	require.NoError(t, Send(t.Context(), pool, aReport(none)))
	require.Equal(t, []string{"GPU-1 7.0 540000 540000 6", "GPU-1 8.0 0 0 2"}, rows(t, dsn, heldRows))
}

// A login that is bound tells of its node only, and nobody else does.
func TestLoginsThatAreBoundToTheirNodes(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	mine := pool.Config().ConnConfig.User
	seq := int64(0)
	tell := func(node string) error {
		seq++
		b := aBucket(thisHour()-3600_000, 1000)
		b.Seq = seq
		r := aReport(b)
		r.Node = node
		return Send(t.Context(), pool, r)
	}
	bind := func(node, role string) {
		t.Helper()
		owner, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		defer owner.Close(context.Background())
		_, err = owner.Exec(t.Context(), "INSERT INTO gpubudget.agent_login (cluster, node, role) VALUES ('titan', $1, $2)", node, role)
		require.NoError(t, err)
	}
	bind("n2", "another")
	require.NoError(t, tell("n1"), "neither is bound")
	err := tell("n2")
	require.ErrorContains(t, err, "the login "+mine+" may not tell of node n2 of cluster titan")
	require.Equal(t, codeLogin, codeOf(err))
	require.False(t, refused(err), "nothing is wrong with the buckets")
	require.ErrorContains(t, explained(err), "agent_login has who may")
	bind("n1", mine)
	require.NoError(t, tell("n1"))
	require.ErrorContains(t, tell("n3"), "may not tell of node n3")
	bind("n2", mine)
	require.ErrorContains(t, tell("n2"), "it is of node n1, and not of n2", "the login may, but the bucket is n1's")
}

func TestEveryColumnIsKept(t *testing.T) {
	dsn := pgtest.DB(t)
	hour := thisHour() - 3600_000
	b := aBucket(hour, 60_000)
	n := func(v int64) *int64 { return &v }
	at := func(v fairshare.Instant) *fairshare.Instant { return &v }
	percent := 50
	b.JobID, b.Restart, b.JobStarted, b.Ended = 1<<32-1, 3, at(hour-5000), true
	b.Shared, b.Part, b.MPSPercent = 30_000, 45_000, &percent
	b.Busy, b.BusyKnown, b.Memory, b.MemoryKnown, b.MemoryMax = n(0), 50_000, n(81920*60_000), 60_000, n(81920)
	b.Energy, b.EnergyKnown, b.Process, b.ProcessKnown, b.Samples = n(700*60_000), 60_000, n(10_000), 20_000, 6
	b.SharedBusy, b.SharedBusyKnown = n(7), 10_000
	b.LastBusy, b.IdleSince = at(hour-7), at(hour+55_001)
	r := aReport(b)
	minor, index := 3, 0
	r.GPUs = []GPU{{UUID: "GPU-1", Model: "H200", MemoryMiB: n(143771), PCIBusID: "0000:19:00.0", Minor: &minor, GRESIndex: &index}}
	require.NoError(t, Send(t.Context(), agentPool(t, dsn), r))

	kept := rows(t, dsn, `SELECT (to_jsonb(b) - '{cluster,starts_at,ends_at,held_from,held_until,last_busy_at,idle_since,job_started_at}'::text[])::text
		FROM gpubudget.gpu_bucket b`)
	require.JSONEq(t, `{"gpu":"GPU-1","job_id":4294967295,"restart":3,"incarnation":"`+anIncarnation+`","seq":1,"node":"n1","source":"prolog",
		"user_name":"ann","account":"vision","held_ms":60000,"ended":true,"shared_ms":30000,"part_ms":45000,"mps_percent":50,
		"busy_ms":0,"busy_known_ms":50000,"shared_busy_ms":7,"shared_busy_known_ms":10000,"memory_mib_ms":4915200000,"memory_known_ms":60000,"memory_max_mib":81920,
		"energy_mj":42000000,"energy_known_ms":60000,"process_ms":10000,"process_known_ms":20000,"samples":6}`, kept[0])
	kept = rows(t, dsn, `SELECT format('%s %s %s %s %s', gpubudget.unix_ms(starts_at), gpubudget.unix_ms(held_from), gpubudget.unix_ms(last_busy_at),
		gpubudget.unix_ms(idle_since), gpubudget.unix_ms(job_started_at)) FROM gpubudget.gpu_bucket`)
	require.Equal(t, fmt.Sprintf("%d %d %d %d %d", hour, hour, hour-7, hour+55_001, hour-5000), kept[0])
	kept = rows(t, dsn, "SELECT (to_jsonb(g) - '{first_seen,last_seen}'::text[])::text FROM gpubudget.gpu g")
	require.JSONEq(t, `{"cluster":"titan","node":"n1","uuid":"GPU-1","model":"H200","memory_mib":143771,"pci_bus_id":"0000:19:00.0","minor":3,
		"gres_index":0,"parent":null,"profile":"","compute_slices":null,"memory_slices":null}`, kept[0])
	kept = rows(t, dsn, "SELECT (to_jsonb(a) - '{started_at,seen_at,sampled_at,skew_ms}'::text[])::text FROM gpubudget.agent a WHERE abs(skew_ms) < 60000 AND seen_at > now() - interval '1 minute'")
	require.JSONEq(t, `{"cluster":"titan","node":"n1","incarnation":"`+anIncarnation+`","boot_id":"b","version":"v1","spooled":0,"gpus":8,"state":"ok"}`, kept[0])
}

// What is not known is NULL, and Postgres insists.
func TestUnknownIsNull(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	b := aBucket(thisHour()-3600_000, 1000)
	require.NoError(t, Send(t.Context(), pool, aReport(b)))
	require.Equal(t, []string{"1"}, rows(t, dsn, `SELECT count(*)::text FROM gpubudget.gpu_bucket
		WHERE num_nonnulls(busy_ms, shared_busy_ms, memory_mib_ms, memory_max_mib, energy_mj, process_ms, last_busy_at, idle_since, mps_percent, job_started_at) = 0`))
	n := func(v int64) *int64 { return &v }
	for name, spoil := range map[string]func(*tally.Bucket){
		"gpu_bucket_busy_valid":        func(b *tally.Bucket) { b.Busy = n(0) },
		"gpu_bucket_shared_busy_valid": func(b *tally.Bucket) { b.Shared, b.SharedBusy, b.SharedBusyKnown = 4, n(0), 5 },
		"gpu_bucket_memory_valid":      func(b *tally.Bucket) { b.MemoryKnown = 5 },
		"gpu_bucket_energy_valid":      func(b *tally.Bucket) { b.Energy, b.EnergyKnown = n(-1), 5 },
		"gpu_bucket_process_valid":     func(b *tally.Bucket) { b.Process, b.ProcessKnown = n(6), 5 },
		"gpu_bucket_parts_valid":       func(b *tally.Bucket) { b.Part = 1001 },
		"gpu_bucket_held_within":       func(b *tally.Bucket) { b.Until = b.Ends + 1 },
		"gpu_bucket_within":            func(b *tally.Bucket) { b.Ends = b.Starts + 86_400_001 },
		"gpu_bucket_job_valid":         func(b *tally.Bucket) { b.JobID = 0 },
		"gpu_bucket_source_valid":      func(b *tally.Bucket) { b.Source = "hearsay" },
	} {
		b := aBucket(thisHour()-3600_000, 1000)
		b.Seq = 2
		spoil(b)
		err := Send(t.Context(), pool, aReport(b))
		require.ErrorContains(t, err, name)
		require.True(t, refused(err))
	}
}

// What a report holds is not what is wrong while the server is restarted, has no room
// or may not be written; anything else is, also what nobody has thought of.
func TestWhatIsWrongWithTheReportItself(t *testing.T) {
	for code, want := range map[string]bool{
		"21000": true, "22P05": true, "23514": true, "54000": true, "P0001": true, codeAge: true, codeLess: true, "GB999": true,
		codeClock: false, codeLogin: false, codeNoRight: false, codeNoSchema: false, codeNoName: false,
		"08006": false, "25006": false, "28P01": false, "3D000": false, "40P01": false, "53100": false, "53300": false,
		"55P03": false, "57014": false, "57P01": false, "57P03": false, "58030": false, "XX000": false,
	} {
		require.Equal(t, want, refused(fmt.Errorf("send: %w", &pgconn.PgError{Code: code})), code)
	}
	require.False(t, refused(errAway))
}

// An agent's role adds usage and reads nothing.
func TestTheRoleCanOnlyAddUsage(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	tables := rows(t, dsn, `SELECT format('%s %s', c.relname, a.attname) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = 1
		WHERE c.relnamespace = 'gpubudget'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')`)
	require.Contains(t, tables, "ledger cluster")
	require.Contains(t, tables, "gpu_bucket cluster")
	require.Contains(t, tables, "agent_login cluster")
	for _, text := range tables {
		table, column, _ := strings.Cut(text, " ")
		for _, sql := range []string{
			"SELECT FROM %s LIMIT 1", "DELETE FROM %s WHERE false", "TRUNCATE %s", "INSERT INTO %s DEFAULT VALUES",
			"UPDATE %s SET " + column + " = DEFAULT WHERE false", "UPDATE %s SET " + column + " = DEFAULT",
		} {
			_, err := pool.Exec(t.Context(), fmt.Sprintf(sql, "gpubudget."+table))
			var denied *pgconn.PgError
			require.ErrorAs(t, err, &denied, sql, table)
			require.Equal(t, codeNoRight, denied.Code, "%s: %s", table, denied.Message)
		}
	}
	require.Empty(t, rows(t, dsn, `SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'gpubudget'::regnamespace AND CASE c.relkind
		WHEN 'S' THEN has_sequence_privilege('gpubudget_agent', c.oid, 'USAGE, SELECT, UPDATE')
		WHEN 'i' THEN false WHEN 'I' THEN false WHEN 'c' THEN false
		ELSE has_table_privilege('gpubudget_agent', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
			OR has_any_column_privilege('gpubudget_agent', c.oid, 'SELECT, INSERT, UPDATE, REFERENCES') END`), "nor of a column or a sequence")
	// Of the functions that act as the schema's owner it may call one.
	require.Equal(t, []string{"record_meter"}, rows(t, dsn, `SELECT p.proname::text FROM pg_proc p
		WHERE p.pronamespace = 'gpubudget'::regnamespace AND p.prosecdef AND p.prorettype <> 'trigger'::regtype
		AND has_function_privilege('gpubudget_agent', p.oid, 'EXECUTE')`))
	_, err := pool.Exec(t.Context(), "SELECT gpubudget.make_partitions()")
	require.ErrorContains(t, err, "permission denied")
}

func TestAClockThatIsFarOffIsRefused(t *testing.T) {
	pool := agentPool(t, pgtest.DB(t))
	for off, want := range map[time.Duration]string{
		301 * time.Second:  "the clock of node n1 is 30",
		-301 * time.Second: "s behind that of the database",
		time.Hour:          "s ahead of that of the database",
		295 * time.Second:  "", -295 * time.Second: "",
	} {
		r := aReport()
		r.Sent += off.Milliseconds()
		err := Send(t.Context(), pool, r)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		var e *pgconn.PgError
		require.ErrorAs(t, err, &e)
		require.Equal(t, codeClock, e.Code)
		require.False(t, refused(err), "nothing is wrong with the buckets")
	}
}

// Nodes and database are not brought to another release in the same instant: what an
// agent of a later one tells besides is left out, and what one of an earlier one does
// not know is not known.
func TestAgentsOfOtherReleases(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	hour := thisHour() - 3600_000
	text, err := json.Marshal(aReport(aBucket(hour, 1000)))
	require.NoError(t, err)
	for i, change := range []func(report, sign, bucket map[string]any){
		func(report, sign, bucket map[string]any) { // a later one
			report["clock"], sign["kernel"], bucket["tensor_ms"] = map[string]any{"source": "ptp"}, "6.1", 7
		},
		func(report, sign, bucket map[string]any) { // an earlier one
			delete(report, "gpus")
			delete(sign, "sampled_ms")
			for _, name := range []string{"mps_percent", "shared_ms", "energy_mj", "energy_known_ms", "process_ms", "process_known_ms", "shared_busy_ms", "shared_busy_known_ms", "last_busy_ms", "idle_since_ms"} {
				delete(bucket, name)
			}
		},
	} {
		var r map[string]any
		require.NoError(t, json.Unmarshal(text, &r))
		bucket := r["buckets"].([]any)[0].(map[string]any)
		bucket["job_id"] = i + 1
		change(r, r["agent"].(map[string]any), bucket)
		told, err := json.Marshal(r)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), "SELECT gpubudget.record_meter($1::jsonb)", string(told))
		require.NoError(t, err, string(told))
	}
	require.Equal(t, []string{"1 1000", "2 1000"}, rows(t, dsn, "SELECT format('%s %s', job_id, held_ms) FROM gpubudget.gpu_bucket ORDER BY 1"))
}

// A database that was never migrated, or to which agents write by another name.
func TestADatabaseWithoutTheSchema(t *testing.T) {
	n := newNode(t)
	n.dsn = pgtest.EmptyDB(t)
	n.start().prolog(7, "0").rounds(1).epilog(7).rounds(1)
	var w written
	n.writeOnce(t.Context(), &w)
	n.writeOnce(t.Context(), &w)
	require.Equal(t, 1, n.log.count("the database takes no report: what is counted waits in the spool"))
	require.Contains(t, n.log.String(), "run: gpubudget db migrate")
	require.Equal(t, 1, n.spool.Waiting())
}

// Partitions of the days ahead are there, and that of a day that had none is
// made when it is needed, by whoever comes first.
func TestPartitionsAreMadeAheadAndWhenNeeded(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	partitions := "SELECT substr(c.relname, 12) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'gpubudget.gpu_bucket'::regclass ORDER BY 1"
	var want []string
	today := time.Now().UTC()
	for day := -1; day < 8; day++ {
		want = append(want, today.AddDate(0, 0, day).Format("20060102"))
	}
	require.Equal(t, want, rows(t, dsn, partitions))

	owner, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer owner.Close()
	for _, day := range want {
		_, err := owner.Exec(t.Context(), "DROP TABLE gpubudget.gpu_bucket_"+day)
		require.NoError(t, err)
	}
	var group sync.WaitGroup
	failures := make([]error, 8)
	old := thisHour() - 30*86_400_000
	for i := range failures {
		group.Go(func() {
			b := aBucket(old, 1000)
			b.JobID += uint32(i)
			failures[i] = Send(context.Background(), pool, aReport(b))
		})
	}
	group.Wait()
	for _, err := range failures {
		require.NoError(t, err)
	}
	require.Equal(t, append([]string{old.Time().UTC().Format("20060102")}, want[1:]...), rows(t, dsn, partitions))
	require.Len(t, rows(t, dsn, heldRows), len(failures))

	for _, at := range []fairshare.Instant{thisHour() - 36*86_400_000, thisHour() + 7200_000} {
		err := Send(t.Context(), pool, aReport(aBucket(at, 1000)))
		require.ErrorContains(t, err, "is not of the last 35 days")
		require.True(t, refused(err))
	}
}

// What changes at every write changes within its page: a write costs no index
// anything.
func TestWritesStayWithinTheirPages(t *testing.T) {
	dsn := pgtest.DB(t)
	pool := agentPool(t, dsn)
	for seq := range int64(100) {
		var buckets []*tally.Bucket
		for gpu := range 8 {
			b := aBucket(thisHour()-3600_000, 1000*seq)
			b.GPU, b.Seq = fmt.Sprintf("GPU-%d", gpu), seq
			buckets = append(buckets, b)
		}
		require.NoError(t, Send(t.Context(), pool, aReport(buckets...)))
	}
	stats := func() string {
		return rows(t, dsn, `SELECT format('%s %s', sum(n_tup_upd), sum(n_tup_hot_upd) > sum(n_tup_upd) * 0.95)
			FROM pg_stat_user_tables WHERE relname LIKE 'gpu_bucket%'`)[0]
	}
	require.Eventually(t, func() bool { return strings.HasPrefix(stats(), "792 ") }, 20*time.Second, 100*time.Millisecond)
	require.Equal(t, "792 t", stats())
}

func TestAReportWithoutAName(t *testing.T) {
	pool := agentPool(t, pgtest.DB(t))
	for _, spoil := range []func(*Report){
		func(r *Report) { r.Cluster = "" }, func(r *Report) { r.Node = "a b" }, func(r *Report) { r.Node = strings.Repeat("n", 256) },
	} {
		r := aReport()
		spoil(r)
		require.ErrorContains(t, Send(t.Context(), pool, r), "a report names its cluster, its node and its time")
	}
}

// Whoever owns the schema need not be able to make roles: then somebody else
// does, and the owner grants what docs/agent.md says.
func TestAnOwnerWhoMayNotMakeRoles(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "gpubudget-pg-") //nolint:usetesting // the server's user must get through
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	server, err := pgserver.Start(t.Context(), dir, pgserver.Temporary())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	as := func(user, database string) *pgx.ConnConfig {
		cfg, err := pgx.ParseConfig(server.DSN(database))
		require.NoError(t, err)
		cfg.User = user
		return cfg
	}
	do := func(cfg *pgx.ConnConfig, statements ...string) {
		t.Helper()
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		defer conn.Close(t.Context())
		for _, sql := range statements {
			_, err := conn.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
	}
	super, owner := as("postgres", "postgres"), as("keeper", "gpubudget")
	do(super, "CREATE ROLE keeper LOGIN", "CREATE DATABASE gpubudget OWNER keeper")
	require.NoError(t, migrations.Up(t.Context(), owner, nil))

	do(super, "CREATE ROLE gpubudget_agent NOLOGIN", "CREATE ROLE node_agent LOGIN IN ROLE gpubudget_agent")
	do(owner, "GRANT USAGE ON SCHEMA gpubudget TO gpubudget_agent", "GRANT EXECUTE ON FUNCTION gpubudget.record_meter TO gpubudget_agent")
	conn, err := pgx.ConnectConfig(t.Context(), as("node_agent", "gpubudget"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	require.NoError(t, Send(t.Context(), conn, aReport(aBucket(thisHour()-20*86_400_000, 1000))))
	_, err = conn.Exec(t.Context(), "SELECT FROM gpubudget.ledger")
	require.ErrorContains(t, err, "permission denied")
}
