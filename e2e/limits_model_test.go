// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// figures are what an association or a QOS has used, as slurmctld shows it: of
// TRES, and what running jobs may still use of them, in whole minutes.
type figures struct {
	raw, wall     float64 // billed seconds; minutes
	mins, runMins map[string]int64
}

// seconds are the same before slurmctld makes minutes of them.
type seconds struct {
	raw, wall float64
	tres, run map[string]float64
}

// piece is a stretch of time in which a job held what it was allocated.
type piece struct {
	account, user, qos, partition string
	start, end                    int64 // end is 0 while it runs
	tres                          map[string]int64
}

// liveJob is a job that runs or is suspended.
type liveJob struct {
	piece

	limit int64 // seconds
}

// span is a stretch of time.
type span struct{ from, until int64 }

// accountant knows what slurmctld must show of every association and QOS, given
// what its own record says about jobs: the model that both priority plugins are
// held to.
type accountant struct {
	parents     map[string]string  // of accounts; the topmost have none
	usageFactor map[string]float64 // of QOS, where it is not 1
	partQOS     map[string]string  // of partitions
}

// keys are the associations and QOS that a piece counts for.
func (a *accountant) keys(p piece) []string {
	keys := []string{p.account + "/" + p.user, p.account + "/"}
	for parent := a.parents[p.account]; parent != ""; parent = a.parents[parent] {
		keys = append(keys, parent+"/")
	}
	keys = append(keys, "root/", "qos "+p.qos)
	if qos := a.partQOS[p.partition]; qos != "" && qos != p.qos {
		keys = append(keys, "qos "+qos)
	}
	return keys
}

func (a *accountant) factor(p piece) float64 {
	if f, ok := a.usageFactor[p.qos]; ok {
		return f
	}
	return 1
}

// counted is for how many seconds a piece has been counted when the last period
// ended at ran: until its end if it has one, since a job that ends is counted at
// once. What slurmctld forgot when it was killed is lost.
func counted(p piece, ran int64, lost []span) float64 {
	end := p.end
	if end == 0 {
		end = ran
	}
	sum := max(end-p.start, 0)
	for _, l := range lost {
		sum -= max(min(end, l.until)-max(p.start, l.from), 0)
	}
	return float64(sum)
}

// held is what a job may still use, in seconds.
func (a *accountant) held(job liveJob, ran int64) float64 {
	return math.Trunc(float64(max(job.limit-max(ran-job.start, 0), 0)) * a.factor(job.piece))
}

// expect is what slurmctld must show. The deviation is what a side is known to
// count beside that.
func (a *accountant) expect(pieces []piece, live []liveJob, ran int64, lost []span, also deviation) map[string]*seconds {
	all := map[string]*seconds{}
	of := func(key string) *seconds {
		if all[key] == nil {
			all[key] = &seconds{tres: map[string]float64{}, run: map[string]float64{}}
		}
		return all[key]
	}
	for _, p := range slices.Concat(pieces, also.pieces) {
		used := counted(p, ran, lost) * a.factor(p)
		for _, key := range a.keys(p) {
			u := of(key)
			u.raw += used * float64(p.tres["billing"])
			u.wall += used
			for name, count := range p.tres {
				u.tres[name] += used * float64(count)
			}
		}
	}
	run := func(p piece, rest float64) {
		for _, key := range a.keys(p) {
			for name, count := range p.tres {
				of(key).run[name] += rest * float64(count)
			}
		}
	}
	for _, job := range live {
		run(job.piece, a.held(job, ran))
	}
	for _, h := range also.held {
		run(h.piece, h.seconds)
	}
	return all
}

// deviation is what priority/multifactor is known to count wrongly:
// docs/limits.md has the reasons.
type deviation struct {
	pieces []piece // used a second time
	held   []held  // still to be used, too much of it
	// unsteady are associations and QOS that may still use too much, by how
	// much depends on the moment.
	unsteady []string
}

type held struct {
	piece

	seconds float64
}

// differences are the lines that say where slurmctld shows something else than
// the model; slack is how many seconds of a TRES the model may be ahead.
func differences(got map[string]figures, want map[string]*seconds, slack float64, unsteady []string) []string {
	var lines []string
	say := func(key, what string, got, want any) {
		lines = append(lines, fmt.Sprintf("%s %s is %v, not %v", key, what, got, want))
	}
	keys := slices.Concat(slices.Collect(maps.Keys(got)), slices.Collect(maps.Keys(want)))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		g, w := got[key], want[key]
		if w == nil {
			w = &seconds{}
		}
		if math.Abs(g.raw-w.raw) > 0.01+slack {
			say(key, "UsageRaw", g.raw, w.raw)
		}
		if math.Abs(g.wall-w.wall/60) > 0.006+slack/60 { // it is printed with two digits
			say(key, "GrpWall", g.wall, w.wall/60)
		}
		if want := minutes(w.tres, 0); !between(g.mins, minutes(w.tres, slack), want) {
			say(key, "GrpTRESMins", g.mins, want)
		}
		if !maps.Equal(g.runMins, minutes(w.run, 0)) && !slices.Contains(unsteady, key) {
			say(key, "GrpTRESRunMins", g.runMins, minutes(w.run, 0))
		}
	}
	return lines
}

func between(got, low, high map[string]int64) bool {
	for name, n := range got {
		if n > high[name] {
			return false
		}
	}
	for name, n := range low {
		if n > got[name] {
			return false
		}
	}
	return true
}

// minutes are whole minutes of TRES, as far as there are any.
func minutes(of map[string]float64, slack float64) map[string]int64 {
	m := map[string]int64{}
	for name, n := range of {
		if n := int64(n-slack) / 60; n > 0 {
			m[name] = n
		}
	}
	return m
}

// ---- what slurmctld shows ----

var (
	assocLine  = regexp.MustCompile(`Account=(\S+) UserName=([^\s(]*)`)
	qosLine    = regexp.MustCompile(`^QOS=([^\s(]+)`)
	rawField   = regexp.MustCompile(`UsageRaw(?:/Norm/Efctv)?=([\d.]+)`)
	wallField  = regexp.MustCompile(`GrpWall=\w+\(([\d.]+)\)`)
	minsField  = regexp.MustCompile(`GrpTRESMins=(\S*)`)
	runField   = regexp.MustCompile(`GrpTRESRunMins=(\S*)`)
	usedTRES   = regexp.MustCompile(`([\w/]+)=\w+\((\d+)\)`)
	numbers    = regexp.MustCompile(`(QOS=\w+)\(\d+\)`) // of QOS, by the order they were made in
	whichNodes = regexp.MustCompile(`node=\w+\(\d+\)`)  // is for the scheduler to say
	// What has to do with the clock, or with shares.
	moving = regexp.MustCompile(`(SharesRaw|UsageRaw|GrpWall|GrpTRESMins|GrpTRESRunMins)\S*`)
)

func parseFigures(line string) (figures, error) {
	f := figures{mins: map[string]int64{}, runMins: map[string]int64{}}
	var err error
	for _, number := range []struct {
		field *regexp.Regexp
		to    *float64
	}{{rawField, &f.raw}, {wallField, &f.wall}} {
		found := number.field.FindStringSubmatch(line)
		if found == nil {
			return f, fmt.Errorf("no %v in %q", number.field, line)
		}
		if *number.to, err = strconv.ParseFloat(found[1], 64); err != nil {
			return f, err
		}
	}
	for _, list := range []struct {
		field *regexp.Regexp
		to    map[string]int64
	}{{minsField, f.mins}, {runField, f.runMins}} {
		found := list.field.FindStringSubmatch(line)
		if found == nil {
			return f, fmt.Errorf("no %v in %q", list.field, line)
		}
		for _, tres := range usedTRES.FindAllStringSubmatch(found[1], -1) {
			n, err := strconv.ParseInt(tres[2], 10, 64)
			if err != nil {
				return f, err
			}
			if n > 0 {
				list.to[tres[1]] = n
			}
		}
	}
	return f, nil
}

// parseAssocMgr reads scontrol -o show assoc_mgr. The rest is all in it that
// doesn't move with the clock.
func parseAssocMgr(text string) (shown map[string]figures, rest string, err error) {
	shown = map[string]figures{}
	var rests []string
	for line := range strings.Lines(text) {
		var key string
		if m := assocLine.FindStringSubmatch(line); m != nil {
			key = m[1] + "/" + m[2]
		} else if m := qosLine.FindStringSubmatch(line); m != nil {
			key = "qos " + m[1]
		} else {
			continue
		}
		if shown[key], err = parseFigures(line); err != nil {
			return nil, "", err
		}
		line = numbers.ReplaceAllString(line, "$1")
		rests = append(rests, key+": "+whichNodes.ReplaceAllString(moving.ReplaceAllString(line, "$1"), "node="))
	}
	slices.Sort(rests)
	return shown, strings.Join(rests, ""), nil
}

// parseTRES reads "cpu=60,mem=1000M,node=1". Memory is in MB.
func parseTRES(text string) (map[string]int64, error) {
	tres := map[string]int64{}
	for item := range strings.SplitSeq(text, ",") {
		name, count, ok := strings.Cut(item, "=")
		if !ok {
			continue
		}
		unit := int64(1)
		switch {
		case strings.HasSuffix(count, "G"):
			unit = 1024
		case strings.HasSuffix(count, "T"):
			unit = 1024 * 1024
		}
		n, err := strconv.ParseFloat(strings.TrimRight(count, "MGT"), 64)
		if err != nil {
			return nil, fmt.Errorf("TRES %q: %w", text, err)
		}
		tres[name] = int64(n * float64(unit))
	}
	return tres, nil
}

// parseTime is a time as Slurm's commands print it, 0 if there is none.
func parseTime(text string) (int64, error) {
	switch text {
	case "", "Unknown", "None", "N/A":
		return 0, nil
	}
	at, err := time.Parse("2006-01-02T15:04:05", text)
	return at.Unix(), err
}

// parseLimit is a time limit as scontrol prints it, in seconds.
func parseLimit(text string) (int64, error) {
	days, clock, ok := strings.Cut(text, "-")
	if !ok {
		days, clock = "0", text
	}
	var d, h, m, s int64
	if _, err := fmt.Sscanf(days+" "+clock, "%d %d:%d:%d", &d, &h, &m, &s); err != nil {
		return 0, fmt.Errorf("time limit %q: %w", text, err)
	}
	return ((d*24+h)*60+m)*60 + s, nil
}

// pieces are what slurmdbd has on record of all jobs that have begun.
func (s *side) pieces(ctx context.Context) ([]piece, error) {
	rows, err := s.Rows(ctx, "root", "sacct", "--allusers", "--duplicates", "--allocations", "--parsable2", "--noheader",
		"--starttime=now-1day", "--format=Account,User,QOS,Partition,Start,End,AllocTRES,Submit")
	if err != nil {
		return nil, err
	}
	var pieces []piece
	for _, row := range rows {
		p := piece{account: row[0], user: row[1], qos: row[2], partition: row[3]}
		if p.start, err = parseTime(row[4]); err != nil {
			return nil, err
		}
		if p.start == 0 || row[6] == "" { // it waits, or was cancelled when it did
			continue
		}
		if p.end, err = parseTime(row[5]); err != nil {
			return nil, err
		}
		// A job that has changed its size was submitted anew then, but has its
		// first start.
		submit, err := parseTime(row[7])
		if err != nil {
			return nil, err
		}
		p.start = max(p.start, submit)
		if p.tres, err = parseTRES(row[6]); err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

var jobField = regexp.MustCompile(`(\w+)=(\S*)`)

// began is when each job has begun, by its number.
func (s *side) began(ctx context.Context) (map[uint32]int64, error) {
	rows, err := s.Rows(ctx, "root", "squeue", "--noheader", "--states=all", "--format=%A|%t|%S")
	if err != nil {
		return nil, err
	}
	began := map[uint32]int64{}
	for _, row := range rows {
		id, err := strconv.ParseUint(row[0], 10, 32)
		if err != nil {
			return nil, err
		}
		if row[1] == "PD" {
			continue
		}
		if began[uint32(id)], err = parseTime(row[2]); err != nil {
			return nil, err
		}
	}
	return began, nil
}

// within asks for something that must not be asked for while a period ends,
// and returns when the last one ended.
func (s *side) within(ask func() error) (ran int64, err error) {
	for range 50 {
		before, _, err := s.lastPeriod()
		if err != nil {
			return 0, err
		}
		if err = ask(); err != nil {
			return 0, err
		}
		after, _, err := s.lastPeriod()
		if err != nil || after == before {
			return after, err
		}
	}
	return 0, errors.New("periods end too often for this machine")
}

// figures are all that scontrol shows, and the rest of it.
func (s *side) figures(ctx context.Context) (shown map[string]figures, rest string, ran int64, err error) {
	text := ""
	ran, err = s.within(func() error {
		text, err = s.Exec(ctx, "root", "scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")
		return err
	})
	if err != nil {
		return nil, "", 0, err
	}
	shown, rest, err = parseAssocMgr(text)
	return shown, rest, ran, err
}

// sshare are all figures of associations that sshare shows.
func (s *side) sshare(ctx context.Context) (shown map[string]figures, ran int64, err error) {
	var rows [][]string
	ran, err = s.within(func() error {
		rows, err = s.Rows(ctx, "root", "sshare", "--all", "--parsable2", "--noheader", "--format=Account,User,RawUsage,GrpTRESRaw,TRESRunMins")
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	shown = map[string]figures{}
	for _, row := range rows {
		var f figures
		if f.raw, err = strconv.ParseFloat(row[2], 64); err != nil {
			return nil, 0, err
		}
		for i, to := range map[int]*map[string]int64{3: &f.mins, 4: &f.runMins} {
			if *to, err = parseTRES(row[i]); err != nil {
				return nil, 0, err
			}
			maps.DeleteFunc(*to, func(_ string, n int64) bool { return n == 0 })
		}
		shown[row[0]+"/"+row[1]] = f
	}
	return shown, ran, nil
}

// live are the jobs that run or are suspended, as slurmctld has them.
func (s *side) live(ctx context.Context) ([]liveJob, error) {
	text, err := s.Exec(ctx, "root", "scontrol", "--oneliner", "show", "jobs")
	if err != nil {
		return nil, err
	}
	var jobs []liveJob
	for line := range strings.Lines(text) {
		f := map[string]string{}
		for _, m := range jobField.FindAllStringSubmatch(line, -1) {
			if _, twice := f[m[1]]; !twice {
				f[m[1]] = m[2]
			}
		}
		if f["JobState"] != "RUNNING" && f["JobState"] != "SUSPENDED" {
			continue
		}
		user, _, _ := strings.Cut(f["UserId"], "(")
		job := liveJob{piece: piece{account: f["Account"], user: user, qos: f["QOS"], partition: f["Partition"]}}
		if job.start, err = parseTime(f["StartTime"]); err != nil {
			return nil, err
		}
		if job.limit, err = parseLimit(f["TimeLimit"]); err != nil {
			return nil, err
		}
		if job.tres, err = parseTRES(f["TRES"]); err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// ---- the file that both plugins keep ----

func (s *side) stateFile() string { return filepath.Join(s.Dir(), "state", "priority_last_decay_ran") }

// lastPeriod is when the last period ended, and when usage was last reset.
func (s *side) lastPeriod() (ran, reset int64, err error) {
	for range 100 { // priority/multifactor takes it away before it puts the new one there
		var text []byte
		if text, err = os.ReadFile(s.stateFile()); err == nil && len(text) == 16 {
			return int64(binary.BigEndian.Uint64(text)), int64(binary.BigEndian.Uint64(text[8:])), nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, 0, fmt.Errorf("read %s: %w", s.stateFile(), err)
}

// setLastReset moves the last reset; slurmctld must not run.
func (s *side) setLastReset(reset int64) error {
	ran, _, err := s.lastPeriod()
	if err != nil {
		return err
	}
	text := binary.BigEndian.AppendUint64(nil, uint64(ran))
	text = binary.BigEndian.AppendUint64(text, uint64(reset))
	return os.WriteFile(s.stateFile(), text, 0o600)
}
