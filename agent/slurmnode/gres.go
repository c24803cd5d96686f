// SPDX-License-Identifier: GPL-2.0-or-later

package slurmnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpubudget/internal/hostlist"
)

// Slot is what gres.conf means by a number of SLURM_JOB_GPUS.
type Slot struct {
	// Files are its device files; several of a MIG instance.
	Files []string
}

// Gres is what gres.conf says of the GPUs of one node.
type Gres struct {
	// Slots are the GPUs in the order in which slurmd numbers them.
	Slots []Slot
	// AutoDetect is set if slurmd looks for GPUs itself. Then they are numbered
	// by PCI address, whatever the order in the file, and Slots only say which
	// of them count.
	AutoDetect bool
}

// ReadGres reads gres.conf at path for a node. A file that is not there says
// nothing.
func ReadGres(path, node string) (Gres, error) {
	var g Gres
	if err := g.read(path, node, 0); err != nil {
		return Gres{}, fmt.Errorf("read %s: %w", path, err)
	}
	return g, nil
}

func (g *Gres) read(path, node string, depth int) error {
	if depth > 8 {
		return errors.New("files include each other")
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && depth == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	for line := range strings.Lines(joined) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.EqualFold(fields[0], "include") {
			other := fields[1]
			if !filepath.IsAbs(other) {
				other = filepath.Join(filepath.Dir(path), other)
			}
			if err := g.read(other, node, depth+1); err != nil {
				return err
			}
			continue
		}
		if err := g.line(fields, node); err != nil {
			return err
		}
	}
	return nil
}

func (g *Gres) line(fields []string, node string) error {
	keys := map[string]string{}
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		keys[strings.ToLower(key)] = strings.Trim(value, `"`)
	}
	if nodes, ok := keys["nodename"]; ok {
		names, err := hostlist.Expand(nodes)
		if err != nil {
			return err
		}
		if !slices.Contains(names, node) {
			return nil
		}
	}
	if how, ok := keys["autodetect"]; ok {
		g.AutoDetect = !strings.EqualFold(how, "off")
	}
	if !strings.EqualFold(keys["name"], "gpu") {
		return nil
	}
	if file, ok := keys["file"]; ok {
		files, err := hostlist.Expand(file)
		if err != nil {
			return err
		}
		for _, f := range files {
			g.Slots = append(g.Slots, Slot{Files: []string{f}})
		}
		return nil
	}
	if several, ok := keys["multiplefiles"]; ok {
		files, err := hostlist.Expand(several)
		if err != nil {
			return err
		}
		g.Slots = append(g.Slots, Slot{Files: files})
	}
	return nil
}

// Minor is the number that the name of a device file ends with: that of
// /dev/nvidia3 is 3. ok is false if it ends with none.
func Minor(file string) (minor int, ok bool) {
	digits := file[len(strings.TrimRight(file, "0123456789")):]
	n, err := strconv.Atoi(digits)
	return n, err == nil
}

// Place is where a MIG compute instance is: on which GPU, by its minor number,
// and within which GPU instance.
type Place struct{ Minor, GPUInstance, ComputeInstance int }

// MIGPlaces reads what the driver's capability devices, /dev/nvidia-caps/nvidia-capN,
// give access to, by N. The file is there only where the driver knows MIG.
func MIGPlaces(path string) (map[int]Place, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there are none
	}
	if err != nil {
		return nil, fmt.Errorf("read which device is which MIG instance: %w", err)
	}
	places := map[int]Place{}
	for line := range strings.Lines(string(text)) {
		var p Place
		var capability int
		// Others are of a whole GPU instance, or of the driver's settings.
		if n, err := fmt.Sscanf(line, "gpu%d/gi%d/ci%d/access %d", &p.Minor, &p.GPUInstance, &p.ComputeInstance, &capability); err == nil && n == 4 {
			places[capability] = p
		}
	}
	return places, nil
}
