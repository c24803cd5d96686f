// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// systemPath finds Slurm's daemons too, which lie in sbin.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (c *Cluster) mungeSocket() string { return c.path("munge", "socket") }

// authInfo lets credentials expire soon: a requeued job waits until its old
// one has.
func (c *Cluster) authInfo() string { return "socket=" + c.mungeSocket() + ",cred_expire=5" }

func (c *Cluster) writeConfig() error {
	key := make([]byte, 128)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	host, _, _ = strings.Cut(host, ".")
	for _, f := range []struct {
		name    string
		content string
		owner   account
		mode    os.FileMode
	}{
		{"etc/munge.key", string(key), c.munge, 0o400},
		{"etc/slurm.conf", c.slurmConf(host), account{}, 0o644},
		{"etc/gres.conf", c.gresConf(), account{}, 0o644},
		{"etc/mig-minors", c.opts.MIGMinors, account{}, 0o644},
		{"etc/cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", account{}, 0o644},
		{"etc/slurmdbd.conf", c.slurmdbdConf(), c.slurm, 0o600},
		{"etc/gpubudget.conf", c.gpubudgetConf(), account{}, 0o644},
		{"etc/plugstack.conf", c.plugstackConf(), account{}, 0o644},
	} {
		path := c.path(f.name)
		if err := os.WriteFile(path, []byte(f.content), f.mode); err != nil {
			return err
		}
		if err := os.Chown(path, int(f.owner.uid), int(f.owner.gid)); err != nil {
			return err
		}
	}
	return nil
}

// slurmConf is slurm.conf: everything that takes time in production is short.
func (c *Cluster) slurmConf(host string) string {
	srunFirst, srunLast := c.ports.srun()
	lines := []string{
		"ClusterName=" + c.opts.Name,
		"SlurmctldHost=" + host + "(127.0.0.1)",
		"SlurmUser=" + c.slurm.name,
		"SlurmdUser=root",
		"AuthType=auth/munge",
		"AuthInfo=" + c.authInfo(),
		"CredType=cred/munge",
		fmt.Sprintf("SlurmctldPort=%d", c.ports.slurmctld()),
		fmt.Sprintf("SrunPortRange=%d-%d", srunFirst, srunLast),
		"SlurmctldPidFile=" + c.path("state", "slurmctld.pid"),
		"SlurmdPidFile=" + c.path("run", "slurmd.%n.pid"),
		"StateSaveLocation=" + c.path("state"),
		"SlurmdSpoolDir=" + c.path("spool", "%n"),
		"SlurmctldLogFile=" + c.Log("slurmctld"),
		"SlurmdLogFile=" + c.Log("slurmd.%n"),
		"SlurmctldDebug=verbose",
		"SlurmdDebug=info",
		"PluginDir=" + c.plugin,
		"MpiDefault=none",
		"SwitchType=switch/none",
		"ProctrackType=proctrack/linuxproc",
		"TaskPlugin=task/none",
		"JobAcctGatherType=jobacct_gather/none",
		"ReturnToService=2",
		"PropagateResourceLimits=NONE",
		"SchedulerType=sched/backfill",
		"SchedulerParameters=bf_interval=2,batch_sched_delay=0,sched_min_interval=0,bf_max_job_test=1000",
		"SelectType=select/cons_tres",
		"SelectTypeParameters=CR_Core",
		"GresTypes=gpu",
		"MaxJobCount=200000",
		"MaxArraySize=100001",
		"MinJobAge=30",
		"KillWait=2",
		"SlurmdTimeout=60",
		"SlurmctldTimeout=30",
		"MessageTimeout=20",
		"PriorityType=priority/" + c.opts.Priority,
		"PriorityCalcPeriod=1",
		"PriorityDecayHalfLife=7-0",
		"PriorityMaxAge=7-0",
		"PriorityWeightAge=1000",
		"PriorityWeightFairshare=100000",
		"PriorityWeightQOS=10000",
		"SlurmdParameters=config_overrides",
	}
	if c.opts.Priority == Gpubudget {
		lines = append(lines, "PriorityParameters=gpubudget_conf="+c.Conf())
	}
	if c.opts.Preempt {
		lines = append(lines, "PreemptType=preempt/gpubudget", "PreemptMode=REQUEUE")
		lines = override(lines, "SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_max_job_test=1000,preempt_strict_order,preempt_reorder_count=8")
	}
	if c.opts.Submit {
		lines = append(lines, "JobSubmitPlugins=gpubudget")
	}
	if c.opts.Slurmdbd {
		lines = append(lines,
			"AccountingStorageType=accounting_storage/slurmdbd",
			"AccountingStorageHost=127.0.0.1",
			fmt.Sprintf("AccountingStoragePort=%d", c.ports.slurmdbd()),
			"AccountingStoragePass="+c.mungeSocket(),
			"AccountingStorageTRES=gres/gpu",
			"AccountingStorageEnforce=associations,limits,qos",
		)
	}
	lines = append(lines, c.nodeLines(host)...)
	lines = append(lines, "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
	lines = append(lines, c.agentHooks()...)
	for _, line := range c.opts.SlurmConf {
		lines = override(lines, line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// nodeLines are the nodes of slurm.conf.
func (c *Cluster) nodeLines(host string) (lines []string) {
	node := func(names, gres string, port int) string {
		return fmt.Sprintf("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d Boards=1 SocketsPerBoard=1 "+
			"CoresPerSocket=%[4]d ThreadsPerCore=1 RealMemory=1000 Gres=%s State=UNKNOWN",
			names, host, port, c.opts.CPUsPerNode, gres)
	}
	for n := 1; n <= c.opts.Nodes; n++ {
		lines = append(lines, node(nodeName(n), cmp.Or(c.opts.GresOfNodes[nodeName(n)], c.opts.NodeGres), c.ports.slurmd(n)))
	}
	if c.opts.Hollow > 0 {
		lines = append(lines, node(fmt.Sprintf("h[1-%d]", c.opts.Hollow), c.opts.NodeGres, c.ports.slurmd(1)))
	}
	return lines
}

// override puts line in the place of the one with the same key, or at the end.
func override(lines []string, line string) []string {
	key, _, _ := strings.Cut(line, "=")
	repeats := strings.EqualFold(key, "NodeName") || strings.EqualFold(key, "PartitionName")
	at := slices.IndexFunc(lines, func(old string) bool {
		oldKey, _, _ := strings.Cut(old, "=")
		return strings.EqualFold(key, oldKey)
	})
	if at < 0 || repeats {
		return append(lines, line)
	}
	lines[at] = line
	return lines
}

// plugstackConf loads the option --min-runtime where there is a use for it.
func (c *Cluster) plugstackConf() string {
	if !c.opts.Preempt {
		return ""
	}
	return "required " + c.path("plugins", "spank_gpubudget.so") + "\n"
}

func (c *Cluster) gresConf() string {
	if len(c.opts.GresConf) > 0 {
		return strings.ReplaceAll(strings.Join(c.opts.GresConf, "\n"), "%s", c.path("gpus")) + "\n"
	}
	return fmt.Sprintf("NodeName=n[1-%d] Name=gpu File=%s/gpu[0-%d]\n", c.opts.Nodes, c.path("gpus"), c.opts.GPUsPerNode-1)
}

func (c *Cluster) slurmdbdConf() string {
	return strings.Join([]string{
		"AuthType=auth/munge",
		"AuthInfo=" + c.authInfo(),
		"DbdHost=localhost",
		"DbdAddr=127.0.0.1",
		fmt.Sprintf("DbdPort=%d", c.ports.slurmdbd()),
		"SlurmUser=" + c.slurm.name,
		"DebugLevel=info",
		"LogFile=" + c.Log("slurmdbd"),
		"PidFile=" + c.path("state", "slurmdbd.pid"),
		"StorageType=accounting_storage/mysql",
		"StorageHost=127.0.0.1",
		fmt.Sprintf("StoragePort=%d", c.ports.mariadb()),
		"StorageLoc=" + mariadbDatabase,
		"StorageUser=" + mariadbUser,
		"StoragePass=" + mariadbUser,
	}, "\n") + "\n"
}

func (c *Cluster) gpubudgetConf() string {
	settings := map[string]string{
		"Cluster":         c.opts.Name,
		"DSN":             c.DSN(),
		"RefreshInterval": "1",
		"CalcInterval":    "1",
	}
	for key, value := range c.opts.Conf {
		for known := range settings {
			if strings.EqualFold(key, known) {
				delete(settings, known)
			}
		}
		settings[key] = value
	}
	return confText(settings)
}

// confText is a file of settings.
func confText(settings map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", key, settings[key])
	}
	return text.String()
}
