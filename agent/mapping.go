// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpubudget/agent/tally"
)

// mapping keeps dcgm-exporter's folder of which job a GPU is held by: a file for
// each GPU, named by the driver's number of it ("3"), or by that and the number
// of the GPU instance ("3.1"), with a job id a line.
type mapping struct {
	dir   string
	wrote map[string]string // name: content
}

func newMapping(dir string) *mapping { return &mapping{dir: dir} }

var mappingName = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// write brings the files up to date. Files of GPUs that nobody holds are
// removed.
func (m *mapping) write(devices []device, holdings []tally.Holding) error {
	if m.dir == "" {
		return nil
	}
	if m.wrote == nil {
		if err := m.adopt(); err != nil {
			return err
		}
	}
	wanted := mappingFiles(devices, holdings)
	var errs []error
	for name, content := range wanted {
		if m.wrote[name] == content {
			continue
		}
		if err := m.replace(name, content); err != nil {
			errs = append(errs, err)
			continue
		}
		m.wrote[name] = content
	}
	for name := range m.wrote {
		if _, ok := wanted[name]; ok {
			continue
		}
		if err := os.Remove(filepath.Join(m.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(m.wrote, name)
	}
	return errors.Join(errs...)
}

// adopt takes over what is in the folder, so that what an agent before this one
// has written goes when its job has.
func (m *mapping) adopt() error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil { //nolint:gosec // the exporter, another user, reads it
		return err
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	m.wrote = map[string]string{}
	for _, e := range entries {
		if mappingName.MatchString(e.Name()) {
			m.wrote[e.Name()] = "of another"
		}
	}
	return nil
}

func (m *mapping) replace(name, content string) error {
	temp := filepath.Join(m.dir, ".new")
	if err := os.WriteFile(temp, []byte(content), 0o644); err != nil { //nolint:gosec // the exporter, another user, reads it
		return err
	}
	return os.Rename(temp, filepath.Join(m.dir, name))
}

func mappingFiles(devices []device, holdings []tally.Holding) map[string]string {
	names := map[string]string{}
	for i := range devices {
		d := &devices[i]
		name := strconv.Itoa(d.Index)
		if d.GI != nil {
			name = fmt.Sprintf("%d.%d", d.Index, *d.GI)
		}
		names[d.UUID] = name
	}
	jobs := map[string][]uint32{}
	for i := range holdings {
		h := &holdings[i]
		if name, ok := names[h.GPU]; ok && h.Until == tally.Open && !slices.Contains(jobs[name], h.JobID) {
			jobs[name] = append(jobs[name], h.JobID)
		}
	}
	files := make(map[string]string, len(jobs))
	for name, ids := range jobs {
		slices.Sort(ids)
		var content strings.Builder
		for _, id := range ids {
			fmt.Fprintln(&content, id)
		}
		files[name] = content.String()
	}
	return files
}
