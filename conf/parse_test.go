// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	c, err := Parse("gpubudget.conf", `# a comment
  # another
Cluster=Titan
dsn = host=/run/pg port=5433 user=gpubudget password=a#b   # the ledger
REFRESHINTERVAL=2.5
CalcInterval = 10
SpoolDir="/var/spool/gpu budget # 1"
DebugLevel=5
Shares=Slurm
FairTreeTies=SLURM
Shadow=Yes
`)
	require.NoError(t, err)
	require.Equal(t, Conf{
		Path:            "gpubudget.conf",
		Cluster:         "titan",
		DSN:             "host=/run/pg port=5433 user=gpubudget password=a#b",
		RefreshInterval: 2500 * time.Millisecond,
		CalcInterval:    10 * time.Second,
		SpoolDir:        "/var/spool/gpu budget # 1",
		DebugLevel:      "debug",
		Shares:          SharesSlurm,
		FairTreeTies:    TiesSlurm,
		Shadow:          true,
		Agent:           defaultAgent(),
	}, c)
}

func TestParseOfNothingGivesTheDefaults(t *testing.T) {
	c, err := Parse("x", "\n\n#Cluster=a\n")
	require.NoError(t, err)
	want := Defaults()
	want.Path = "x"
	require.Equal(t, want, c)
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"misspelt key", "\nClutser=a", `g.conf:2: unknown key "Clutser": did you mean Cluster?`},
		{"foreign key", "PluginDir=/x", `g.conf:1: unknown key "PluginDir": known are Cluster, DSN, RefreshInterval, CalcInterval, SpoolDir, DebugLevel, Shares, FairTreeTies, Shadow, AgentNode, AgentJobsDir, AgentSpoolDir, AgentSocket, AgentMappingDir, AgentGresConf, AgentLibrary, AgentMetrics, AgentKeepConnection, AgentInterval, AgentWriteInterval`},
		{"no equals sign", "Cluster titan", `g.conf:1: "Cluster titan" is not Key=Value`},
		{"no key", "=titan", `g.conf:1: "=titan" is not Key=Value`},
		{"no value", "Cluster=", `g.conf:1: Cluster: has no value: give one or remove the line`},
		{"no interval", "CalcInterval=  # none", `g.conf:1: CalcInterval: has no value: give one or remove the line`},
		{"twice", "Cluster=a\n\ncluster=b", `g.conf:3: Cluster is set a second time (first in line 1): remove one of the two`},
		{"two names", "Cluster=a b", `g.conf:1: Cluster: "a b" is not a cluster's name: use ClusterName of slurm.conf`},
		{"not a number", "RefreshInterval=1m", `g.conf:1: RefreshInterval: "1m" is not a number of seconds`},
		{"NaN", "RefreshInterval=NaN", `g.conf:1: RefreshInterval: NaN seconds: must be from 0.1 to 86400`},
		{"negative", "RefreshInterval=-1", `g.conf:1: RefreshInterval: -1 seconds: must be from 0.1 to 86400`},
		{"too long", "CalcInterval=1e300", `g.conf:1: CalcInterval: 1e300 seconds: must be from 0.1 to 86400`},
		{"relative folder", "SpoolDir=spool", `g.conf:1: SpoolDir: "spool" is not an absolute path`},
		{"level", "DebugLevel=loud", `g.conf:1: DebugLevel: "loud" is not a log level: known are quiet, fatal, error, info, verbose, debug, debug2, debug3, debug4, debug5`},
		{"shares", "Shares=mine", `g.conf:1: Shares: "mine" is not known: it is one of ledger, slurm`},
		{"no shares", "Shares=", `g.conf:1: Shares: has no value: give one or remove the line`},
		{"switch", "Shadow=1", `g.conf:1: Shadow: "1" is not known: it is one of yes, no`},
		{"no folder", "AgentJobsDir=", `g.conf:1: AgentJobsDir: has no value: give one or remove the line`},
		{"relative", "AgentSocket=a.sock", `g.conf:1: AgentSocket: "a.sock" is not an absolute path`},
		{"address", "AgentMetrics=9838", `g.conf:1: AgentMetrics: "9838" is no address: give HOST:PORT, :PORT or no`},
		{"open quote", `DSN="host=x`, `g.conf:1: a double quote is not closed`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("g.conf", tc.text)
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestUsesDatabase(t *testing.T) {
	for text, want := range map[string]bool{
		"":                            true,
		"DSN=host=x":                  true,
		"Shares=ledger":               true,
		"Shares=slurm":                false,
		"Shares=slurm\nDSN=host=x":    true,
		"Shares=slurm\nCluster=titan": false,
	} {
		c, err := Parse("x", text)
		require.NoError(t, err)
		require.Equal(t, want, c.UsesDatabase(), text)
	}
}

// Whatever is in the file, it is refused or gives intervals within the limits.
func TestParseNeverLetsAnIntervalOutOfItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"RefreshInterval", "CalcInterval"}).Draw(t, "key")
		value := rapid.OneOf(
			rapid.StringMatching(`[-+]?[0-9]{0,12}\.?[0-9]{0,12}(e[-+]?[0-9]{1,3})?`),
			rapid.SampledFrom([]string{"inf", "-Inf", "nan", "0x1p-2", "1_0"}),
		).Draw(t, "value")
		c, err := Parse("x", key+"="+value)
		if err != nil {
			return
		}
		got := c.RefreshInterval
		if key == "CalcInterval" {
			got = c.CalcInterval
		}
		require.GreaterOrEqual(t, got, 100*time.Millisecond)
		require.LessOrEqual(t, got, 24*time.Hour)
	})
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	named := filepath.Join(dir, "named.conf")
	inEnv := filepath.Join(dir, "env.conf")
	require.NoError(t, os.WriteFile(named, []byte("Cluster=named\n"), 0o600))
	require.NoError(t, os.WriteFile(inEnv, []byte("Cluster=env\n"), 0o600))

	t.Setenv(PathVariable, inEnv)
	c, err := Load(named)
	require.NoError(t, err)
	require.Equal(t, "named", c.Cluster, "the argument goes before the environment")

	c, err = Load("")
	require.NoError(t, err)
	require.Equal(t, "env", c.Cluster)
	require.Equal(t, inEnv, c.Path)

	missing := filepath.Join(dir, "missing.conf")
	_, err = Load(missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)

	t.Setenv(PathVariable, missing)
	_, err = Load("")
	require.ErrorIs(t, err, os.ErrNotExist, "a file that the environment names must exist")
}

func TestLoadWithoutAnyFileGivesTheDefaults(t *testing.T) {
	c, err := load("", filepath.Join(t.TempDir(), "missing.conf"))
	require.NoError(t, err)
	require.Equal(t, Defaults(), c)
}

func TestLoadRefusesAFileItMayNotRead(t *testing.T) {
	_, err := load("", t.TempDir()) // a folder is no file
	require.Error(t, err)
}
