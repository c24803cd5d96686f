// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"math"
	"time"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/explain"
	"gpubudget/fairshare"
)

// The JSON of explain --json. What has no meaning is null or left out. A level
// fair share that is infinite is null beside level_fs_infinite.
type (
	explainJSON struct {
		Cluster     string        `json:"cluster"`
		At          time.Time     `json:"at"`
		WindowFrom  time.Time     `json:"window_from"`
		Lookback    int64         `json:"lookback_seconds"`
		Mode        string        `json:"mode"`
		Account     string        `json:"account"`
		User        string        `json:"user,omitempty"`
		Guest       bool          `json:"guest,omitempty"`
		Unallocated bool          `json:"unallocated,omitempty"`
		Stale       bool          `json:"stale"`
		QueueSeenAt *time.Time    `json:"queue_seen_at"` // null: the queue is Slurm's of now, or was never seen
		Job         *jobJSON      `json:"job,omitempty"`
		Path        []levelJSON   `json:"path"`
		Factors     []factorsJSON `json:"factors,omitempty"`
		Contract    *contractJSON `json:"contract,omitempty"`
		Ahead       []rivalJSON   `json:"ahead"`
		Changes     []changeJSON  `json:"changes"`
	}
	jobJSON struct {
		ID        string `json:"id"`
		JobID     uint32 `json:"job_id"`
		State     string `json:"state"`
		Reason    string `json:"reason,omitempty"`
		Partition string `json:"partition"`
		QOS       string `json:"qos"`
		Nice      int64  `json:"nice"`
		GPUs      int64  `json:"gpus"`
	}
	sideJSON struct {
		Account         string   `json:"account"`
		User            string   `json:"user,omitempty"`
		Users           bool     `json:"all_users,omitempty"` // of the account, as one
		LevelFS         *float64 `json:"level_fs"`
		LevelFSInfinite bool     `json:"level_fs_infinite"`
	}
	levelJSON struct {
		Depth int `json:"depth"`
		sideJSON
		Share          *float64            `json:"share_percent"`
		EqualPart      bool                `json:"equal_part,omitempty"` // share_percent is what that comes to
		ShareOfCluster *float64            `json:"share_of_cluster_percent"`
		Entitled       float64             `json:"entitled_hours"`
		EntitledMillis fairshare.GPUMillis `json:"entitled_gpu_milliseconds"`
		Used           float64             `json:"used_hours"`
		UsedMillis     fairshare.GPUMillis `json:"used_gpu_milliseconds"`
		Place          *int                `json:"place"`
		Of             *int                `json:"of"`
		Rank           *int                `json:"rank"`
		FairShare      *float64            `json:"fairshare"`
		Funded         *bool               `json:"funded,omitempty"` // of accounts
	}
	factorsJSON struct {
		Partition       string             `json:"partition"`
		Priority        uint32             `json:"priority"`
		Site            int64              `json:"site"`
		Age             float64            `json:"age"`
		Assoc           float64            `json:"assoc"`
		FairShare       float64            `json:"fairshare"`
		JobSize         float64            `json:"job_size"`
		PartitionFactor float64            `json:"partition_factor"`
		QOS             float64            `json:"qos"`
		Nice            int64              `json:"nice"`
		TRES            map[string]float64 `json:"tres,omitempty"`
	}
	rivalJSON struct {
		Account string       `json:"account"`
		Rank    *int         `json:"rank"`
		Jobs    int64        `json:"jobs"`
		GPUs    int64        `json:"gpus"`
		Cause   string       `json:"cause"`
		Column  string       `json:"column,omitempty"`
		Points  float64      `json:"points,omitempty"`
		Parting *partingJSON `json:"parting,omitempty"`
		Text    string       `json:"text"`
	}
	partingJSON struct {
		Below string `json:"below"`
		pairJSON
		Tied []pairJSON `json:"tied,omitempty"`
	}
	pairJSON struct {
		Mine   sideJSON `json:"mine"`
		Theirs sideJSON `json:"theirs"`
	}
	changeJSON struct {
		Kind      string     `json:"kind"`
		Mine      *sideJSON  `json:"mine,omitempty"`
		Theirs    *sideJSON  `json:"theirs,omitempty"`
		Rival     string     `json:"rival_account,omitempty"`
		RivalUser string     `json:"rival_user,omitempty"`
		Over      *float64   `json:"over_hours,omitempty"` // negative: less than was due
		PassesAt  *time.Time `json:"passes_at,omitempty"`
		Share     *float64   `json:"share_percent,omitempty"`
		Has       *float64   `json:"has_percent,omitempty"`
		Free      *float64   `json:"free_percent,omitempty"`
		Jobs      *int64     `json:"jobs,omitempty"`
		Points    *int64     `json:"points,omitempty"`
		Text      string     `json:"text"`
	}
)

func (p *program) findingJSON(f *finding) explainJSON {
	rec := f.record
	out := explainJSON{
		Cluster: rec.Cluster, At: rec.At.Truncate(time.Millisecond), WindowFrom: rec.Window.From.Time(),
		Lookback: int64(rec.Policy.Lookback / time.Second), Mode: rec.Policy.Mode,
		Account: f.Subject.Account, User: f.Subject.User, Guest: f.Guest, Unallocated: f.Unallocated, Stale: rec.Stale,
		Path: []levelJSON{}, Ahead: []rivalJSON{}, Changes: []changeJSON{},
	}
	if !f.live && !rec.QueueSeenAt.IsZero() {
		out.QueueSeenAt = &rec.QueueSeenAt
	}
	out.Job = jobOf(f)
	out.Contract = f.contract.json(p)
	for _, l := range f.Path {
		out.Path = append(out.Path, levelOf(f, l))
	}
	for i := range f.rows {
		out.Factors = append(out.Factors, factorsOf(&f.rows[i]))
	}
	for i := range f.Ahead {
		out.Ahead = append(out.Ahead, rivalOf(f, &f.Ahead[i]))
	}
	for i := range f.Changes {
		out.Changes = append(out.Changes, p.changeOf(f, &f.Changes[i]))
	}
	return out
}

func jobOf(f *finding) *jobJSON {
	if j := f.job; j != nil {
		return &jobJSON{j.ID, j.JobID, j.State, j.Reason, j.Partition, j.QOS, j.Nice, j.GPUs}
	}
	return nil
}

func sideOf(s explain.Side) sideJSON {
	out := sideJSON{Account: s.Account, User: s.User, Users: s.Users, LevelFSInfinite: math.IsInf(s.LevelFS, 1)}
	if !out.LevelFSInfinite {
		out.LevelFS = &s.LevelFS
	}
	return out
}

func levelOf(f *finding, l explain.Level) levelJSON {
	out := levelJSON{
		Depth: l.Depth, sideJSON: sideOf(l.Side), EqualPart: l.EqualPart,
		Entitled: l.Entitled.Hours(), EntitledMillis: l.Entitled, Used: l.Used.Hours(), UsedMillis: l.Used,
	}
	guest := l.User != "" && f.Guest
	if l.Depth == 0 || guest {
		out.LevelFS, out.LevelFSInfinite = nil, false
	}
	if !l.Users && !guest {
		share, ofCluster := percentOf(l.Share), percentNumber(l.ShareOfCluster)
		out.Share, out.ShareOfCluster = &share, &ofCluster
	}
	if l.Place > 0 {
		out.Place, out.Of = &l.Place, &l.Of
	}
	out.Rank = ifSet(l.Rank)
	if l.User != "" {
		out.FairShare = &l.Factor
	} else if !l.Users {
		out.Funded = &l.Funded
	}
	return out
}

func ifSet(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

func factorsOf(r *queue.Factors) factorsJSON {
	out := factorsJSON{
		Partition: r.In, Priority: r.Priority, Site: r.Site, Age: r.Age, Assoc: r.Assoc, FairShare: r.Fairshare,
		JobSize: r.JobSize, PartitionFactor: r.Partition, QOS: r.QOS, Nice: r.Nice,
	}
	for i, name := range r.TRESNames {
		if out.TRES == nil {
			out.TRES = map[string]float64{}
		}
		out.TRES[name] = r.TRES[i]
	}
	return out
}

func rivalOf(f *finding, r *explain.Rival) rivalJSON {
	out := rivalJSON{
		Account: r.Account, Rank: ifSet(r.Rank), Jobs: r.Jobs, GPUs: r.GPUs,
		Cause: string(r.Why.Cause), Column: r.Why.Column, Points: r.Why.Points, Text: whyText(f, r),
	}
	if p := r.Why.Parting; p != nil {
		out.Parting = &partingJSON{Below: p.Below, pairJSON: pairOf(p.Pair)}
		for _, tied := range p.Tied {
			out.Parting.Tied = append(out.Parting.Tied, pairOf(tied))
		}
	}
	return out
}

func pairOf(p explain.Pair) pairJSON { return pairJSON{sideOf(p.Mine), sideOf(p.Theirs)} }

func (p *program) changeOf(f *finding, c *explain.Change) changeJSON {
	out := changeJSON{Kind: string(c.Kind), Rival: c.Rival.Account, RivalUser: c.Rival.User, Text: p.changeText(f, c)}
	if c.Rival.Account != "" {
		mine, theirs := sideOf(c.Mine), sideOf(c.Theirs)
		out.Mine, out.Theirs = &mine, &theirs
	}
	switch c.Kind {
	case explain.Balance:
		over := c.Amount.Hours()
		out.Over = &over
	case explain.Wait:
		if c.At != 0 {
			at := c.At.Time()
			out.PassesAt = &at
		}
	case explain.Share:
		share, has, free := percentOf(c.Share), percentOf(c.Has), percentOf(c.Free)
		out.Share, out.Has, out.Free = &share, &has, &free
	case explain.Within:
		out.Jobs = &c.Jobs
	case explain.Points:
		out.Points = &c.Points
	case explain.Unfunded, explain.Allocate, explain.Usage:
	}
	return out
}
