// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"math"

	"gpubudget/explain"
)

// The JSON of explain --json by Slurm's shares. What has no meaning is null or left
// out. A level fair share that is infinite is null beside level_fs_infinite.
type (
	slurmJSON struct {
		Cluster  string            `json:"cluster"`
		Shares   string            `json:"shares"` // slurm
		Plugin   string            `json:"priority_type"`
		FairTree bool              `json:"fair_tree"`
		Apart    bool              `json:"ties_apart"`
		Behind   bool              `json:"behind"` // usage or shares have changed since slurmctld's last pass
		Account  string            `json:"account"`
		User     string            `json:"user,omitempty"`
		Job      *jobJSON          `json:"job,omitempty"`
		Path     []slurmLevelJSON  `json:"path"`
		Factors  []factorsJSON     `json:"factors,omitempty"`
		Weight   uint32            `json:"weight_fairshare"`
		Ahead    []rivalJSON       `json:"ahead"`
		Changes  []slurmChangeJSON `json:"changes"`
	}
	slurmLevelJSON struct {
		Depth           int      `json:"depth"`
		Account         string   `json:"account"`
		User            string   `json:"user,omitempty"`
		Partition       string   `json:"partition,omitempty"`
		RawShares       *uint32  `json:"raw_shares"` // null: parent's
		NormShares      float64  `json:"norm_shares"`
		RawUsage        float64  `json:"raw_usage"`
		NormUsage       float64  `json:"norm_usage"`
		EffectiveUsage  float64  `json:"effective_usage"`
		LevelFS         *float64 `json:"level_fs"`
		LevelFSInfinite bool     `json:"level_fs_infinite"`
		Place           *int     `json:"place"`
		Of              *int     `json:"of"`
		Rank            *int     `json:"rank"`
		FairShare       *float64 `json:"fairshare"`
	}
	slurmChangeJSON struct {
		Kind      string    `json:"kind"`
		Mine      *sideJSON `json:"mine,omitempty"`
		Theirs    *sideJSON `json:"theirs,omitempty"`
		Rival     string    `json:"rival_account,omitempty"`
		RivalUser string    `json:"rival_user,omitempty"`
		RawUsage  *float64  `json:"raw_usage,omitempty"`
		RawShares *uint32   `json:"raw_shares,omitempty"`
		Has       *uint32   `json:"has_raw_shares,omitempty"`
		Points    *int64    `json:"points,omitempty"`
		Text      string    `json:"text"`
	}
)

func slurmJSONOf(f *slurmFinding) slurmJSON {
	s := f.SlurmExplanation
	out := slurmJSON{
		Cluster: f.settings.Cluster, Shares: "slurm", Plugin: f.settings.Plugin, FairTree: f.standing.Policy.FairTree,
		Apart: f.standing.Policy.FairTree && f.standing.Policy.TiesApart, Behind: f.standing.Behind,
		Account: s.Subject.Account, User: s.Subject.User, Weight: f.settings.Weight,
		Path: []slurmLevelJSON{}, Ahead: []rivalJSON{}, Changes: []slurmChangeJSON{},
	}
	out.Job = jobOf(f.finding)
	for i := range s.Path {
		out.Path = append(out.Path, f.levelJSON(&s.Path[i]))
	}
	for i := range f.rows {
		out.Factors = append(out.Factors, factorsOf(&f.rows[i]))
	}
	for i := range s.Ahead {
		out.Ahead = append(out.Ahead, rivalOf(f.finding, &s.Ahead[i]))
	}
	for i := range s.Changes {
		out.Changes = append(out.Changes, f.changeJSON(&s.Changes[i]))
	}
	return out
}

func (f *slurmFinding) levelJSON(l *explain.SlurmLevel) slurmLevelJSON {
	out := slurmLevelJSON{
		Depth: l.Depth, Account: l.Account, User: l.Subject.User, Partition: l.Partition, NormShares: l.SharesNorm,
		RawUsage: l.Assoc.Usage, NormUsage: l.UsageNorm, EffectiveUsage: l.UsageEffective, Rank: ifSet(l.Rank),
	}
	if !l.Assoc.ParentShares {
		out.RawShares = &l.Assoc.Shares
	}
	if f.hasLevelFS(l) {
		if out.LevelFSInfinite = math.IsInf(l.LevelFS, 1); !out.LevelFSInfinite {
			out.LevelFS = &l.LevelFS
		}
	}
	if l.Place > 0 {
		out.Place, out.Of = &l.Place, &l.Of
	}
	if f.hasFactor(l) {
		out.FairShare = &l.Ratio
	}
	return out
}

func (f *slurmFinding) changeJSON(c *explain.SlurmChange) slurmChangeJSON {
	out := slurmChangeJSON{Kind: string(c.Kind), Rival: c.Rival.Account, RivalUser: c.Rival.User, Text: f.changeText(c)}
	if c.Kind == explain.Points {
		out.Points = &c.Points
		return out
	}
	mine, theirs := sideOf(c.Mine), sideOf(c.Theirs)
	out.Mine, out.Theirs = &mine, &theirs
	if c.Kind == explain.Usage {
		out.RawUsage = &c.Usage
	} else {
		out.RawShares, out.Has = &c.Shares, &c.Has
	}
	return out
}
