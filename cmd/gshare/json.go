// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"gpubudget/fairshare"
	"gpubudget/report"
)

// The JSON of --json. What a row does not have is null; docs/gshare.md
// documents every key.
type (
	jsonOutput struct {
		Meta     jsonMeta      `json:"meta"`
		Clusters []jsonCluster `json:"clusters"`
	}
	jsonMeta struct {
		Command string `json:"command"`
		Version string `json:"version"`
	}
	jsonCluster struct {
		Cluster       string     `json:"cluster"`
		At            time.Time  `json:"at"`
		WindowFrom    time.Time  `json:"window_from"`
		WindowUntil   time.Time  `json:"window_until"`
		Lookback      int64      `json:"lookback_seconds"`
		Mode          string     `json:"mode"`
		CapacityGPUs  float64    `json:"capacity_gpus"`
		CapacityHours float64    `json:"capacity_gpu_hours"`
		SeenAt        *time.Time `json:"recorder_seen_at"`
		Lag           float64    `json:"recorder_lag_seconds"`
		QueueSeenAt   *time.Time `json:"queue_seen_at"`
		Stale         bool       `json:"stale"`
		UsedUntil     time.Time  `json:"used_until"`
		Rows          []jsonRow  `json:"rows"`
	}
	jsonRow struct {
		Account        string   `json:"account"`
		User           *string  `json:"user"`
		Parent         *string  `json:"parent"`
		Depth          int      `json:"depth"`
		State          string   `json:"state"`
		Share          *float64 `json:"share"`
		EqualPart      bool     `json:"equal_part"`
		ShareOfCluster *float64 `json:"share_of_cluster"`

		EntitledHours  *float64 `json:"entitled_gpu_hours"`
		UsedHours      float64  `json:"used_gpu_hours"`
		UsedMillis     int64    `json:"used_gpu_ms"`
		Ratio          *float64 `json:"ratio"`
		OwedHours      *float64 `json:"owed_gpu_hours"`
		DeliveredHours float64  `json:"delivered_gpu_hours"`
		Percent        *float64 `json:"delivered_percent"`
		StrictPercent  *float64 `json:"strict_percent"`
		UnallocHours   float64  `json:"unallocated_gpu_hours"`
		UnallocMillis  int64    `json:"unallocated_gpu_ms"`
		NoMinMillis    int64    `json:"unallocated_no_min_runtime_gpu_ms"`
		NoBudgetMillis int64    `json:"unallocated_no_budget_gpu_ms"`

		BusyHours   *float64 `json:"busy_gpu_hours"`
		Utilisation *float64 `json:"utilisation"`
		Metered     *float64 `json:"metered_percent"`
		EnergyKWh   *float64 `json:"energy_kwh"`

		LevelFS         *float64 `json:"level_fs"`
		LevelFSInfinite bool     `json:"level_fs_infinite"`
		FairShare       *float64 `json:"fairshare"`
		Rank            *int     `json:"rank"`

		PendingGPUs int64 `json:"pending_gpus"`
		PendingJobs int64 `json:"pending_jobs"`
		RunningGPUs int64 `json:"running_gpus"`
		RunningJobs int64 `json:"running_jobs"`
	}
)

func printJSON(w io.Writer, reports []*report.Report, rows [][]report.Row) error {
	out := jsonOutput{Meta: jsonMeta{"gshare", buildVersion()}, Clusters: []jsonCluster{}}
	for i, r := range reports {
		out.Clusters = append(out.Clusters, clusterJSON(r, rows[i]))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(out); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func clusterJSON(r *report.Report, rows []report.Row) jsonCluster {
	c := jsonCluster{
		Cluster: r.Cluster, At: r.At, WindowFrom: r.Window.From.Time(), WindowUntil: r.Window.Until.Time(),
		Lookback: int64(r.Policy.Lookback / time.Second), Mode: r.Policy.Mode,
		CapacityGPUs: float64(r.Capacity) / float64(fairshare.GPU), CapacityHours: r.CapacityTime.Hours(),
		SeenAt: timeIf(r.SeenAt), Lag: r.Lag.Seconds(), QueueSeenAt: timeIf(r.QueueSeenAt),
		Stale: r.Stale, UsedUntil: r.UsedUntil, Rows: []jsonRow{},
	}
	for i := range rows {
		c.Rows = append(c.Rows, rowJSON(&rows[i]))
	}
	return c
}

func rowJSON(row *report.Row) jsonRow {
	inTree := row.Place == report.InTree
	known := row.Place != report.Unbudgeted
	ratio, hasRatio := row.Ratio()
	percent, hasPercent := row.Percent()
	strict, hasStrict := row.StrictPercent()
	utilisation, hasUtilisation := row.Metered.Amounts.Utilisation()
	metered, hasMetered := row.Metered.Percent()
	out := jsonRow{
		Account: row.Account, User: valueIf(row.IsUser(), row.User), Parent: valueIf(row.Parent != "", row.Parent),
		Depth: row.Depth, State: state(row),
		Share: finiteIf(inTree, percentOf(row.Share)/100), EqualPart: row.EqualPart, ShareOfCluster: finiteIf(inTree, row.ShareOfCluster),
		EntitledHours: finiteIf(known, row.Entitled.Hours()),
		UsedHours:     row.Used.Hours(), UsedMillis: int64(row.Used),
		Ratio:     finiteIf(hasRatio, ratio),
		OwedHours: finiteIf(known && !row.IsUser(), row.Owed.Hours()), DeliveredHours: row.Delivered.Hours(),
		Percent: finiteIf(hasPercent, percent), StrictPercent: finiteIf(hasStrict, strict),
		UnallocHours: row.Unallocated.Hours(), UnallocMillis: int64(row.Unallocated),
		NoMinMillis: int64(row.NoMinRuntime), NoBudgetMillis: int64(row.NoBudget),
		LevelFS: finiteIf(hasLevelFS(row), row.LevelFS), LevelFSInfinite: hasLevelFS(row) && math.IsInf(row.LevelFS, 1),
		FairShare: finiteIf(row.IsUser() && row.Factor > 0, row.Factor), Rank: valueIf(row.Rank > 0, row.Rank),
		PendingGPUs: row.PendingGPUs, PendingJobs: row.PendingJobs, RunningGPUs: row.RunningGPUs, RunningJobs: row.RunningJobs,
		Utilisation: finiteIf(hasUtilisation, utilisation), Metered: finiteIf(hasMetered, metered),
	}
	if busy := row.Metered.Amounts.Busy; busy != nil {
		out.BusyHours = new(fairshare.GPUMillis(*busy).Hours())
	}
	if energy := row.Metered.Amounts.Energy; energy != nil {
		out.EnergyKWh = new(float64(*energy) / 3.6e9)
	}
	return out
}

func valueIf[T any](ok bool, v T) *T {
	if !ok {
		return nil
	}
	return &v
}

// finiteIf is v, or null: JSON has no infinity.
func finiteIf(ok bool, v float64) *float64 {
	return valueIf(ok && !math.IsInf(v, 0) && !math.IsNaN(v), v)
}

func timeIf(t time.Time) *time.Time { return valueIf(!t.IsZero(), t) }
