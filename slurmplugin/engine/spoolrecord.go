// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// spoolRecord is one line of the spool: exactly one of its fields but Seq is
// set. A later record about the same thing replaces an earlier one.
type spoolRecord struct {
	Seq        uint64           `json:"seq"`
	Run        *spoolRun        `json:"run,omitempty"`
	Demand     *spoolDemand     `json:"demand,omitempty"`
	Capacity   *spoolCapacity   `json:"capacity,omitempty"`
	Preemption *spoolPreemption `json:"preemption,omitempty"`
}

// spoolRun is a run as it was at Seen. Times are Unix seconds, Seen is in
// milliseconds.
type spoolRun struct {
	JobID       uint32            `json:"job"`
	Restart     uint32            `json:"restart,omitempty"`
	ArrayJobID  uint32            `json:"array,omitempty"`
	ArrayTaskID uint32            `json:"task,omitempty"`
	HetJobID    uint32            `json:"het,omitempty"`
	Account     string            `json:"account"`
	User        string            `json:"user"`
	Partition   string            `json:"partition,omitempty"`
	QOS         string            `json:"qos,omitempty"`
	Nodes       string            `json:"nodes,omitempty"`
	GPUs        int64             `json:"gpus"`
	Parts       int64             `json:"parts,omitempty"`
	GPUType     string            `json:"type,omitempty"`
	Allocated   *bool             `json:"allocated,omitempty"`   // absent: nobody knows yet
	MinRuntime  *int64            `json:"min_runtime,omitempty"` // absent: likewise, or of an older release
	Asked       *int64            `json:"asked,omitempty"`       // absent: the job said nothing
	Limit       int64             `json:"limit,omitempty"`
	Served      int64             `json:"served,omitempty"`
	Start       int64             `json:"start"`
	Origin      int64             `json:"origin"`
	End         *int64            `json:"end,omitempty"`
	EndState    string            `json:"state,omitempty"`
	Suspended   int64             `json:"suspended,omitempty"`
	Since       *int64            `json:"since,omitempty"`
	Before      int64             `json:"before,omitempty"`
	Configuring bool              `json:"configuring,omitempty"`
	Seen        fairshare.Instant `json:"seen"`
}

// spoolDemand is all demand of one bucket, as one incarnation has counted it.
type spoolDemand struct {
	Incarnation string                   `json:"incarnation"`
	From        fairshare.Instant        `json:"from"`
	Until       fairshare.Instant        `json:"until"`
	Seen        fairshare.Instant        `json:"seen"`
	Accounts    map[string]demandAmounts `json:"accounts"`
}

// spoolCapacity is a change of the cluster's capacity.
type spoolCapacity struct {
	At    fairshare.Instant   `json:"at"`
	GPUs  fairshare.MilliGPUs `json:"milligpus"`
	Types string              `json:"types,omitempty"`
}

func (s *spoolCapacity) holding() fairshare.Holding {
	return fairshare.Holding{Type: s.Types, GPUs: int64(s.GPUs / fairshare.GPU)}
}

// runKey is what the database knows a run by, in one cluster.
type runKey struct {
	job   uint32
	start int64
}

func (s *spoolRun) key() runKey { return runKey{s.JobID, s.Start} }

func (r *run) key() runKey { return runKey{r.JobID, r.StartedAt.Unix()} }

func spooledRun(r *run) *spoolRun {
	s := &spoolRun{
		JobID: r.JobID, Restart: r.Restart, ArrayJobID: r.ArrayJobID, ArrayTaskID: r.ArrayTaskID, HetJobID: r.HetJobID,
		Account: r.Account, User: r.User, Partition: r.Partition, QOS: r.QOS, Nodes: r.Nodes,
		GPUs: r.GPUs, Parts: r.Parts, GPUType: r.GPUType,
		Start: r.StartedAt.Unix(), Origin: r.origin, End: unixOf(r.EndedAt), EndState: r.EndState,
		Suspended: int64(r.Suspended / time.Second), Since: unixOf(r.SuspendedSince), Before: r.before,
		Configuring: r.configuring, Seen: fairshare.At(r.SeenAt),
		MinRuntime: secondsOf(r.MinRuntime),
		Limit:      int64(r.terms.limit / time.Second), Served: int64(r.terms.served / time.Second),
	}
	if r.terms.asked >= 0 {
		s.Asked = secondsOf(&r.terms.asked)
	}
	if r.decided {
		allocated := r.Allocated
		s.Allocated = &allocated
	}
	return s
}

func unixOf(t *time.Time) *int64 {
	if t == nil {
		return nil
	}
	s := t.Unix()
	return &s
}

func timeOf(s *int64) *time.Time {
	if s == nil {
		return nil
	}
	t := seconds(*s)
	return &t
}

func secondsOf(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	s := int64(*d / time.Second)
	return &s
}

func durationOf(s *int64) *time.Duration {
	if s == nil {
		return nil
	}
	d := bounded(*s)
	return &d
}

// terms are what the run is judged by, if it hasn't been.
func (s *spoolRun) terms() askedTerms {
	t := askedTerms{asked: fairshare.NotAsked, limit: bounded(s.Limit), served: bounded(s.Served)}
	if s.Asked != nil {
		t.asked = bounded(*s.Asked)
	}
	return t
}

// usageRun is the run as the database takes it. If nobody knew yet whether it
// is allocated, the caller decides.
func (s *spoolRun) usageRun(cluster string) usage.Run {
	return usage.Run{
		Cluster: cluster, JobID: s.JobID, Restart: s.Restart,
		ArrayJobID: s.ArrayJobID, ArrayTaskID: s.ArrayTaskID, HetJobID: s.HetJobID,
		Account: s.Account, User: s.User, Partition: s.Partition, QOS: s.QOS, Nodes: s.Nodes,
		GPUs: s.GPUs, Parts: s.Parts, GPUType: s.GPUType, Allocated: s.Allocated != nil && *s.Allocated, MinRuntime: durationOf(s.MinRuntime),
		StartedAt: seconds(s.Start), EndedAt: timeOf(s.End), EndState: s.EndState,
		Suspended: time.Duration(s.Suspended) * time.Second, SuspendedSince: timeOf(s.Since),
		SeenAt: s.Seen.Time(),
	}
}

// restored is the run as the tracker goes on with it.
func (s *spoolRun) restored(cluster string) *run {
	return &run{
		Run: s.usageRun(cluster), origin: s.Origin, before: s.Before,
		configuring: s.Configuring, decided: s.Allocated != nil, terms: s.terms(),
	}
}

// buckets are the rows of the database.
func (s *spoolDemand) buckets() []usage.DemandBucket {
	rows := make([]usage.DemandBucket, 0, len(s.Accounts))
	for account, amounts := range s.Accounts {
		row := usage.DemandBucket{
			Period: fairshare.Period{From: s.From, Until: s.Until}, Account: account,
			Pending: amounts.Pending, Running: amounts.Running, SeenAt: s.Seen.Time(),
		}
		if amounts.Begun != 0 {
			row.BegunAt = amounts.Begun.Time()
		}
		rows = append(rows, row)
	}
	return rows
}
