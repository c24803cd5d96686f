// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// What a GPU did between two rounds. An agent leaves ten seconds between them,
// and names no library: nvml.New("") takes the driver's.
func Example() {
	dir := simulated(simnvml.State{GPUs: []simnvml.GPU{
		{UUID: "GPU-1", Load: simnvml.Steady(75), SamplePeriod: 10_000},
		{UUID: "GPU-2"},
	}})
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of its own

	m, err := meter.Open(meter.Options{Driver: nvml.New(library)})
	if err != nil {
		log.Panic(err) // of a driver that hangs, too: let the supervisor start another process
	}
	defer m.Close()
	for range 2 {
		r, err := m.Sample()
		if err != nil {
			log.Panic(err)
		}
		for _, g := range r.GPUs {
			if g.Busy == nil {
				fmt.Println(g.UUID, "utilisation unknown")
				continue
			}
			fmt.Printf("%s busy %.0f%% of the time\n", g.UUID, 100*g.Busy.Busy.Seconds()/g.Busy.Known.Seconds())
		}
		time.Sleep(200 * time.Millisecond)
	}
	// Output:
	// GPU-1 utilisation unknown
	// GPU-2 utilisation unknown
	// GPU-1 busy 75% of the time
	// GPU-2 utilisation unknown
}

// simulated makes the simulated driver answer from a state.
func simulated(s simnvml.State) (dir string) {
	dir, err := os.MkdirTemp("", "gpubudget-gpus-")
	if err != nil {
		log.Panic(err)
	}
	path := filepath.Join(dir, "gpus")
	if err := s.Write(path); err != nil {
		log.Panic(err)
	}
	if err := os.Setenv(simnvml.Variable, path); err != nil {
		log.Panic(err)
	}
	return dir
}
