// SPDX-License-Identifier: GPL-2.0-or-later

// Command lib is libgpubudget.so, built with -buildmode=c-shared: bridge.h's
// calls, each handed to the engine. This is the only file of the project with
// exported functions.
//
// It is loaded into slurmctld, which must outlive any fault of ours. So every
// call recovers its panics, nothing here exits, and os/signal is not used: a Go
// library then leaves slurmctld's signal handlers in place, but for those of
// synchronous faults and SIGPIPE, which it passes on unless Go code met them.
package main

/*
#include <stdlib.h>
#include "../bridge.h"

static inline void gpub_host_log(gpub_log_fn fn, int level, const char *message)
{
	fn(level, message);
}
*/
import "C"

import (
	"errors"
	"unsafe"

	"gpubudget/fairshare"
	"gpubudget/slurmplugin/engine"
)

func main() {}

// gpub_abi is the GPUB_ABI that this library was built with.
//
//export gpub_abi
func gpub_abi() C.uint32_t { return C.GPUB_ABI }

// gpub_job_size is sizeof(struct gpub_job) as this library was built: a second
// look at what gpub_abi promises.
//
//export gpub_job_size
func gpub_job_size() C.uint32_t { return C.uint32_t(unsafe.Sizeof(C.struct_gpub_job{})) }

// gpub_start starts the engine and its goroutines. The host's strings are
// copied; its log function is called until gpub_stop returns.
//
//export gpub_start
func gpub_start(host *C.struct_gpub_host) C.int {
	return C.int(guard("gpub_start", func() error {
		if host == nil {
			return errors.New("no host given")
		}
		if host.abi != C.GPUB_ABI {
			return errABI
		}
		fn := host.log
		setLog(func(level int, message string) {
			if fn == nil {
				return
			}
			text := C.CString(message)
			defer C.free(unsafe.Pointer(text))
			C.gpub_host_log(fn, C.int(level), text)
		})
		return start(engine.Host{
			Cluster:      goString(host.cluster),
			SlurmVersion: goString(host.slurm_version),
			ConfPath:     goString(host.conf_path),
			StateDir:     goString(host.state_dir),
			Version:      version,
			Log:          log,
		})
	}))
}

// gpub_stop spools what is not written yet and ends all goroutines; it returns
// within about 2 s and no log call comes after it.
//
//export gpub_stop
func gpub_stop() {
	guard("gpub_stop", stop)
	setLog(nil)
}

// gpub_configure takes slurm.conf's priority settings, at start and after each
// reconfigure, and has gpubudget.conf read again.
//
//export gpub_configure
func gpub_configure(w *C.struct_gpub_weights) C.int {
	return C.int(withEngine("gpub_configure", func(e *engine.Engine) error {
		if w == nil {
			return errors.New("no weights given")
		}
		e.Configure(fairshare.Weights{
			Age: uint32(w.age), Assoc: uint32(w.assoc), Fairshare: uint32(w.fairshare),
			JobSize: uint32(w.job_size), Partition: uint32(w.partition), QOS: uint32(w.qos),
			TRES: weightsOf(w), MaxAge: uint32(w.max_age),
			FavorSmall: w.favor_small != 0, Damping: uint32(w.damp_factor), Flags: fairshare.Flags(w.flags),
		}, uint64(w.generation))
		return nil
	}))
}

// weightsOf copies the TRES weights, which slurmctld may free.
func weightsOf(w *C.struct_gpub_weights) []float64 {
	if w.tres == nil {
		return nil
	}
	shared := unsafe.Slice((*float64)(unsafe.Pointer(w.tres)), int(w.tres_count))
	return append([]float64(nil), shared...)
}

// gpub_interval_ms is the time between two passes in milliseconds, 0 to use
// PriorityCalcPeriod.
//
//export gpub_interval_ms
func gpub_interval_ms() C.int {
	var ms int64
	withEngine("gpub_interval_ms", func(e *engine.Engine) error {
		ms = e.CalcInterval().Milliseconds()
		return nil
	})
	return C.int(ms)
}

// gpub_pass_begin begins a pass over all jobs.
//
//export gpub_pass_begin
func gpub_pass_begin(nowMS C.int64_t, c *C.struct_gpub_cluster) C.int {
	return C.int(withEngine("gpub_pass_begin", func(e *engine.Engine) error {
		if c == nil {
			return errors.New("no cluster given")
		}
		e.BeginPass(int64(nowMS), *(*engine.Cluster)(unsafe.Pointer(c)))
		return nil
	}))
}

// gpub_pass_observe shows jobs to the pass, whatever their state: every job of
// the list once in a pass.
//
//export gpub_pass_observe
func gpub_pass_observe(jobs *C.struct_gpub_job, n C.uint32_t) C.int {
	return C.int(withEngine("gpub_pass_observe", func(e *engine.Engine) error {
		e.Observe(unsafe.Slice((*engine.Job)(unsafe.Pointer(jobs)), int(n)))
		return nil
	}))
}

// gpub_pass_end ends the pass: jobs that it did not show are gone.
//
//export gpub_pass_end
func gpub_pass_end() C.int {
	return C.int(withEngine("gpub_pass_end", func(e *engine.Engine) error { return e.EndPass() }))
}

// gpub_rank ranks everybody as of the pass that has ended and says all of the
// table but its arrays, for which the caller then makes room.
//
//export gpub_rank
func gpub_rank(x *C.struct_gpub_extremes, table *C.struct_gpub_table) C.int {
	return C.int(withEngine("gpub_rank", func(e *engine.Engine) error {
		if x == nil || table == nil {
			return errors.New("no extremes or no table given")
		}
		return e.Rank((*engine.Extremes)(unsafe.Pointer(x)), (*engine.Table)(unsafe.Pointer(table)))
	}))
}

// gpub_fill fills the arrays of the table.
//
//export gpub_fill
func gpub_fill(table *C.struct_gpub_table) C.int {
	return C.int(withEngine("gpub_fill", func(e *engine.Engine) error {
		if table == nil {
			return errors.New("no table given")
		}
		return e.FillTable((*engine.Table)(unsafe.Pointer(table)))
	}))
}

// gpub_observe shows one job between passes, as it ends or changes size.
//
//export gpub_observe
func gpub_observe(job *C.struct_gpub_job, nowMS C.int64_t) C.int {
	return C.int(withEngine("gpub_observe", func(e *engine.Engine) error {
		if job == nil {
			return errors.New("no job given")
		}
		e.Sight((*engine.Job)(unsafe.Pointer(job)), int64(nowMS))
		return nil
	}))
}

// gpub_standings fills in what sshare shows of associations, and where they
// stand in the table that was made last.
//
//export gpub_standings
func gpub_standings(assocs *C.struct_gpub_assoc, n C.uint32_t) C.int {
	return C.int(withEngine("gpub_standings", func(e *engine.Engine) error {
		e.Standings(unsafe.Slice((*engine.Assoc)(unsafe.Pointer(assocs)), int(n)))
		return nil
	}))
}

// gpub_shares tells whose shares the next pass goes by, as enum gpub_shares has
// it. Without an engine they are the ledger's.
//
//export gpub_shares
func gpub_shares() C.int {
	shares := C.int(C.GPUB_SHARES_LEDGER)
	withEngine("gpub_shares", func(e *engine.Engine) error {
		if e.GoesBySlurm() {
			shares = C.GPUB_SHARES_SLURM
		}
		return nil
	})
	return shares
}

// gpub_slurm_shares works out how Slurm's associations stand.
//
//export gpub_slurm_shares
func gpub_slurm_shares(assocs *C.struct_gpub_slurm_assoc, n C.uint32_t) C.int {
	return C.int(withEngine("gpub_slurm_shares", func(e *engine.Engine) error {
		return e.SlurmShares(unsafe.Slice((*engine.SlurmAssoc)(unsafe.Pointer(assocs)), int(n)))
	}))
}

// gpub_candidates tells which running jobs a request may evict, and in which
// order.
//
//export gpub_candidates
func gpub_candidates(placing *C.struct_gpub_placing, nowMS C.int64_t) C.int {
	return C.int(withEngine("gpub_candidates", func(e *engine.Engine) error {
		if placing == nil || placing.request == nil {
			return errors.New("no request given")
		}
		e.Candidates((*engine.Placing)(unsafe.Pointer(placing)), int64(nowMS))
		return nil
	}))
}

// gpub_preempted tells of a job that is evicted so that another can start.
//
//export gpub_preempted
func gpub_preempted(victim, request, requeues C.uint32_t, nowMS C.int64_t) C.int {
	return C.int(withEngine("gpub_preempted", func(e *engine.Engine) error {
		e.Preempted(uint32(victim), uint32(request), requeues != 0, int64(nowMS))
		return nil
	}))
}

// gpub_drains is 1 if jobs are to make room for the repair of nodes.
//
//export gpub_drains
func gpub_drains() C.int { return yes("gpub_drains", (*engine.Engine).Drains) }

// gpub_may_leave is 1 if nothing protects a job that runs on a node which is
// being drained.
//
//export gpub_may_leave
func gpub_may_leave(job, het C.uint32_t, nowMS C.int64_t) C.int {
	return yes("gpub_may_leave", func(e *engine.Engine) bool { return e.MayLeave(uint32(job), uint32(het), int64(nowMS)) })
}

// yes is 1 if the engine says so, 0 if not or if it fails.
func yes(name string, says func(*engine.Engine) bool) C.int {
	var answer C.int
	withEngine(name, func(e *engine.Engine) error {
		if says(e) {
			answer = 1
		}
		return nil
	})
	return answer
}

// gpub_left tells of a job that is requeued from a node which is being drained.
//
//export gpub_left
func gpub_left(job C.uint32_t, node *C.char, nowMS C.int64_t) C.int {
	return C.int(withEngine("gpub_left", func(e *engine.Engine) error {
		e.Left(uint32(job), goString(node), int64(nowMS))
		return nil
	}))
}

// gpub_submit judges a job that is submitted.
//
//export gpub_submit
func gpub_submit(submission *C.struct_gpub_submission) C.int {
	return C.int(withEngine("gpub_submit", func(e *engine.Engine) error {
		if submission == nil {
			return errors.New("no submission given")
		}
		e.Submit((*engine.Submission)(unsafe.Pointer(submission)))
		return nil
	}))
}

// gpub_wanted is 1 if something has changed since the last pass began that
// should not wait for the next, else 0.
//
//export gpub_wanted
func gpub_wanted() C.int {
	var wanted C.int
	withEngine("gpub_wanted", func(e *engine.Engine) error {
		if e.Wanted() {
			wanted = 1
		}
		return nil
	})
	return wanted
}

// goString is a copy of a C string, "" for NULL.
func goString(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}
