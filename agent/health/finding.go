// SPDX-License-Identifier: GPL-2.0-or-later

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"
)

// Fatal are the Xid errors after which a GPU is not to be given to a job before
// somebody has looked at it, and what each means. docs/agent.md lists them. Those
// that a faulty program causes (13, 31, 43, 45, ...), and those that the GPU has
// dealt with (63, 92, 94), are not among them.
var Fatal = map[uint64]string{
	48:  "uncorrectable memory error",
	62:  "internal microcontroller halted",
	64:  "rows of memory could not be remapped",
	74:  "NVLink error",
	79:  "fallen off the bus",
	95:  "memory error that was not contained",
	119: "GSP does not answer",
	120: "GSP error",
	140: "unrecovered memory error",
	143: "failed to initialize",
}

// Finding is a reason why jobs should not run on the node.
type Finding struct {
	// Key tells the occurrence from others; "" of what lasts, and is found as long
	// as it does.
	Key  string
	Text string
}

// driverPatience is how long the driver may be away: it is reloaded now and then.
const driverPatience = time.Minute

// Findings are the reasons why jobs should not run on the node, the gravest first.
func (s *State) Findings() []Finding {
	var found []Finding
	if s.Driver != "" && s.Expected && s.Since != nil && s.At.Sub(*s.Since) >= driverPatience {
		found = append(found, Finding{Text: fmt.Sprintf("the driver has not answered since %s: %s", stamp(*s.Since), s.Driver)})
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.Lost != "" {
			found = append(found, Finding{Text: fmt.Sprintf("%s lost since %s: %s", g.name(), stamp(*g.LostSince), g.Lost)})
		}
	}
	for i := range s.GPUs {
		found = append(found, s.GPUs[i].events()...)
	}
	return found
}

// events are what happened to the GPU, and may be over.
func (g *GPU) events() (found []Finding) {
	for _, x := range g.Xids {
		if means, fatal := Fatal[x.Code]; fatal {
			found = append(found, Finding{
				Key:  fmt.Sprintf("%s xid %d %d", g.UUID, x.Code, x.At.UnixMilli()),
				Text: fmt.Sprintf("%s Xid %d (%s) at %s", g.name(), x.Code, means, stamp(x.At)),
			})
		}
	}
	if g.Uncorrected > 0 && g.UncorrectedAt != nil {
		found = append(found, Finding{
			Key:  fmt.Sprintf("%s ecc %d %d", g.UUID, g.Uncorrected, g.UncorrectedAt.UnixMilli()),
			Text: fmt.Sprintf("%s %d uncorrected memory errors, the last by %s", g.name(), g.Uncorrected, stamp(*g.UncorrectedAt)),
		})
	}
	return found
}

// name is the GPU as an operator finds it.
func (g *GPU) name() string {
	number := "GPU"
	if g.Index >= 0 {
		number += " " + strconv.Itoa(g.Index)
	}
	if g.PCI != "" {
		return number + " (" + g.PCI + ")"
	}
	return number + " (" + g.UUID + ")"
}

func stamp(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05") }

// Told are the occurrences for which the node was drained already: who puts it
// back into service knows of them.
type Told struct {
	BootID string   `json:"boot_id"`
	Keys   []string `json:"keys"`
}

// LoadTold reads what the node was drained for in this boot.
func LoadTold(spoolDir, bootID string) (*Told, error) {
	t, err := load(spoolDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if t == nil || t.BootID != bootID {
		t = &Told{BootID: bootID}
	}
	return t, nil
}

// New are the findings that the node was not drained for yet.
func (t *Told) New(found []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f Finding) bool { return f.Key != "" && slices.Contains(t.Keys, f.Key) })
}

// Add notes that it was drained for these.
func (t *Told) Add(spoolDir string, found []Finding) error {
	for _, f := range found {
		if f.Key != "" && !slices.Contains(t.Keys, f.Key) {
			t.Keys = append(t.Keys, f.Key)
		}
	}
	return write(toldPath(spoolDir), t)
}

func toldPath(spoolDir string) string { return Path(spoolDir) + ".told" }

func load(spoolDir string) (*Told, error) {
	text, err := os.ReadFile(toldPath(spoolDir))
	if err != nil {
		return nil, err
	}
	t := new(Told)
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("%s: %w", toldPath(spoolDir), err)
	}
	return t, nil
}
