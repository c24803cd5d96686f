// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gpubudget/agent/tally"
)

// Report is all that an agent tells the database: gpubudget.record_meter takes
// it as it is. Times are in milliseconds since 1970.
type Report struct {
	Cluster string          `json:"cluster"`
	Node    string          `json:"node"`
	Sent    int64           `json:"sent_ms"`
	Agent   Sign            `json:"agent"`
	GPUs    []GPU           `json:"gpus,omitempty"` // only if they may have changed
	Buckets []*tally.Bucket `json:"buckets,omitempty"`
}

// Sign is the agent's sign of life.
type Sign struct {
	Incarnation string `json:"incarnation"`
	BootID      string `json:"boot_id"`
	Started     int64  `json:"started_ms"`
	Version     string `json:"version"`
	Sampled     *int64 `json:"sampled_ms"` // nil: no sample yet
	Spooled     int    `json:"spooled"`
	GPUs        int    `json:"gpus"`
	State       string `json:"state"` // StateOK, or why GPUs are not measured
}

// StateOK is the state of an agent that sees all that its driver shows.
const StateOK = "ok"

// GPU is a GPU of the node or a MIG instance on one. What is not known is nil
// or empty.
type GPU struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model,omitempty"`
	MemoryMiB *int64 `json:"memory_mib,omitempty"`
	PCIBusID  string `json:"pci_bus_id,omitempty"`
	Minor     *int   `json:"minor,omitempty"`
	// GRESIndex is the device's place in gres.conf, what SLURM_JOB_GPUS calls
	// it.
	GRESIndex *int `json:"gres_index,omitempty"`
	// Parent is the UUID of the GPU that a MIG instance is a part of.
	Parent        string `json:"parent,omitempty"`
	Profile       string `json:"profile,omitempty"`
	ComputeSlices *int   `json:"compute_slices,omitempty"`
	MemorySlices  *int   `json:"memory_slices,omitempty"`
}

// executor is what pgx's connections, pools and transactions have in common here.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Send gives a report to the database: one statement, so one round trip and one
// transaction. It prepares nothing, so that any pooler may stand between.
func Send(ctx context.Context, db executor, r *Report) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write a report: %w", err)
	}
	_, err = db.Exec(ctx, "SELECT gpubudget.record_meter($1::jsonb)", pgx.QueryExecModeExec, string(text))
	return err
}

// Codes of the database's refusals.
const (
	codeClock    = "GB020" // the node's clock is off
	codeAge      = "GB021" // a bucket is too old, or lies in the future
	codeLess     = "GB022" // a bucket would be less, or is another node's
	codeLogin    = "GB023" // the login may not tell of the node
	codeNoRight  = "42501" // insufficient_privilege
	codeNoSchema = "42883" // undefined_function
	codeNoName   = "3F000" // invalid_schema_name
)

// passing are the classes of Postgres's codes that say nothing about what is in a
// report: rights, the schema, the server's state. They last until somebody or
// time mends them.
var passing = []string{
	"08",             // connection
	"25",             // transaction state: the server is read only
	"28",             // authorization
	"3D", "3F", "42", // no such database, schema, function; no right
	"40",       // rolled back: deadlock, serialization
	"53", "55", // resources; locks
	"57", "58", // an operator, a timeout; the system
	"F0", "XX", // the server's configuration; its internals
}

// refused tells whether the database won't take a report for what is in it, so that
// what may be sent has to be told apart from the rest: else it would wait for ever.
func refused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(e.Code) != 5 || e.Code == codeClock || e.Code == codeLogin {
		return false
	}
	return !slices.Contains(passing, e.Code[:2])
}
