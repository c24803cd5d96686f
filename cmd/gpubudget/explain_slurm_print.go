// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/explain"
)

// printSlurm is printFinding for an explanation by Slurm's shares.
func (p *program) printSlurm(c *cli.Context, f *slurmFinding) error {
	switch {
	case c.Bool(optJSON):
		return output.JSON(p.stdout, slurmJSONOf(f))
	case c.Bool(optParsable2):
		return p.writeRecords(f.parts(), output.Parsable2, c.Bool(optNoHeader))
	case c.Bool(optParsable):
		return p.writeRecords(f.parts(), output.Parsable, c.Bool(optNoHeader))
	}
	return p.printSlurmText(f, c.Bool(optNoHeader))
}

func (p *program) printSlurmText(f *slurmFinding, noHeader bool) error {
	w := &pages{program: p, noHeader: noHeader}
	w.lines(headline(f.finding)...)
	if len(f.Path) > 0 {
		w.table(f.pathTable())
	} else {
		w.lines(f.withoutAssociation())
	}
	if len(f.rows) > 0 {
		w.table(factorsTable(f.finding))
		w.lines(f.weightLines()...)
	}
	w.lines(aheadLines(f.finding)...)
	if len(f.Ahead) > 0 {
		w.table(f.aheadTable())
	}
	if changes := f.changeLines(); len(changes) > 0 {
		w.lines(append([]string{"What would change it:"}, bullets(changes)...)...)
	}
	if !noHeader {
		w.lines(f.sources()...)
	}
	return w.err
}

// parts are the records of an explanation.
func (f *slurmFinding) parts() []part {
	var parts []part
	if f.finding.job != nil {
		parts = append(parts, part{"job", jobTable(f.finding)})
	}
	parts = append(parts, part{"path", f.pathTable()})
	if len(f.rows) > 0 {
		parts = append(parts, part{"factors", factorsTable(f.finding)})
	}
	changes := &output.Table{Columns: []output.Column{{Name: "Kind"}, {Name: "Text"}}}
	for i := range f.Changes {
		changes.Add(string(f.Changes[i].Kind), f.changeText(&f.Changes[i]))
	}
	return append(parts, part{"ahead", f.aheadTable()}, part{"change", changes})
}

// pathTable has the names and the digits of sshare.
func (f *slurmFinding) pathTable() *output.Table {
	t := &output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "User"}, {Name: "RawShares", Right: true}, {Name: "NormShares", Right: true},
		{Name: "RawUsage", Right: true}, {Name: "NormUsage", Right: true}, {Name: "EffectvUsage", Right: true}, {Name: "LevelFS", Right: true},
		{Name: "Place", Right: true}, {Name: "Rank", Right: true}, {Name: "FairShare", Right: true}}}
	for i := range f.Path {
		l := &f.Path[i]
		var raw, norm, level, place, rank, factor string
		if l.Depth > 0 {
			raw, norm = rawShares(l), sixDigits(l.UsageNorm)
		}
		if f.hasLevelFS(l) {
			level = sixDigits(l.LevelFS)
		}
		if l.Place > 0 {
			place = fmt.Sprintf("%s of %d", ordinal(l.Place), l.Of)
		}
		if l.Rank > 0 {
			rank = fmt.Sprintf("%d of %d", l.Rank, l.Users)
		}
		if f.hasFactor(l) {
			factor = sixDigits(l.Ratio)
		}
		t.Add(strings.Repeat(" ", l.Depth)+l.Account, userOf(l), raw, sixDigits(l.SharesNorm), rawUsage(l),
			norm, sixDigits(l.UsageEffective), level, place, rank, factor)
	}
	return t
}

func (f *slurmFinding) hasLevelFS(l *explain.SlurmLevel) bool {
	return f.standing.Policy.FairTree && l.Depth > 0 && !l.Assoc.ParentShares
}

// hasFactor tells whether an association has a factor: by Fair Tree users only.
func (f *slurmFinding) hasFactor(l *explain.SlurmLevel) bool {
	return l.Assoc.User != "" || !f.standing.Policy.FairTree && l.Depth > 0
}

func userOf(l *explain.SlurmLevel) string {
	if l.Partition != "" {
		return l.Assoc.User + " (" + l.Partition + ")"
	}
	return l.Assoc.User
}

func rawShares(l *explain.SlurmLevel) string {
	if l.Assoc.ParentShares {
		return "parent"
	}
	return strconv.FormatUint(uint64(l.Assoc.Shares), 10)
}

// rawUsage is without decimals, which Slurm cuts off.
func rawUsage(l *explain.SlurmLevel) string {
	usage := l.Shown.Usage
	if math.IsNaN(usage) {
		usage = math.Floor(l.Assoc.Usage)
	}
	return strconv.FormatFloat(usage, 'f', 0, 64)
}

func sixDigits(x float64) string {
	if math.IsInf(x, 1) {
		return "inf"
	}
	return fmt.Sprintf("%.6f", x)
}

func (f *slurmFinding) withoutAssociation() string {
	of := f.finding.Subject
	if of.Account == "" {
		return "It has no account and so no association: nothing of its priority is from fair share."
	}
	return fmt.Sprintf("Slurm has no association of user %s in account %s: nothing of its priority is from fair share.", of.User, of.Account)
}

// weightLines say how sprio's column follows from the path.
func (f *slurmFinding) weightLines() []string {
	n := len(f.Path)
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("FAIRSHARE is PriorityWeightFairShare times FairShare: %d x %s.", f.settings.Weight, sixDigits(f.Path[n-1].Factor))}
}

func (f *slurmFinding) aheadTable() *output.Table {
	t := &output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "Jobs", Right: true}, {Name: "GPUs", Right: true}, {Name: "Why"}}}
	for i := range f.Ahead {
		r := &f.Ahead[i]
		t.Add(r.Account, strconv.FormatInt(r.Jobs, 10), strconv.FormatInt(r.GPUs, 10), whyText(f.finding, r))
	}
	return t
}

// standingText compares two by classic fair share.
func standingText(mine explain.Subject, r *explain.Rival, s *explain.Standing) string {
	return fmt.Sprintf("%s has FairShare %s (usage %s of shares %s), %s %s (%s of %s)",
		subjectName(r.First), sixDigits(s.TheirsRatio), sixDigits(s.Theirs.UsageEffective), sixDigits(s.Theirs.SharesNorm),
		subjectName(mine), sixDigits(s.MineRatio), sixDigits(s.Mine.UsageEffective), sixDigits(s.Mine.SharesNorm))
}

// changeLines is a sentence for each change, and what becomes of usage.
func (f *slurmFinding) changeLines() (lines []string) {
	fair := false
	for i := range f.Changes {
		lines = append(lines, f.changeText(&f.Changes[i]))
		fair = fair || f.Changes[i].Kind != explain.Points
	}
	if fair {
		lines = append(lines, f.decayText())
	}
	return lines
}

func (f *slurmFinding) changeText(c *explain.SlurmChange) string {
	if c.Kind == explain.Points {
		return fmt.Sprintf("%d more points pass the next job; a nice that is as much lower gives them", c.Points)
	}
	if c.Kind == explain.Usage {
		return fmt.Sprintf("once %s has added %.0f to its RawUsage and %s nothing, %s is no longer behind by fair share",
			subjectName(c.Rival), c.Usage, sideName(c.Mine), subjectName(f.finding.Subject))
	}
	return fmt.Sprintf("with Fairshare=%d, not %d, it is not either: %s", c.Shares, c.Has, f.setShares(c))
}

func sideName(s explain.Side) string {
	return subjectName(explain.Subject{Account: s.Account, User: s.User})
}

// subjectName is an account, or a user in one.
func subjectName(s explain.Subject) string {
	if s.User != "" {
		return s.User + " in " + s.Account
	}
	return s.Account
}

// setShares is the command that sets a share.
func (f *slurmFinding) setShares(c *explain.SlurmChange) string {
	if c.Mine.User != "" {
		return fmt.Sprintf("sacctmgr modify user where name=%s account=%s cluster=%s set fairshare=%d", c.Mine.User, c.Mine.Account, f.settings.Cluster, c.Shares)
	}
	return fmt.Sprintf("sacctmgr modify account where name=%s cluster=%s set fairshare=%d", c.Mine.Account, f.settings.Cluster, c.Shares)
}

// decayText says what time alone does.
func (f *slurmFinding) decayText() string {
	text := "usage does not decay (PriorityDecayHalfLife=0)"
	if f.settings.HalfLife != "" {
		text = fmt.Sprintf("usage halves in %s (PriorityDecayHalfLife), everybody's alike: by itself that changes no order", f.settings.HalfLife)
	}
	if f.settings.Reset != "" {
		text += fmt.Sprintf("; it is set to zero %s (PriorityUsageResetPeriod)", f.settings.Reset)
	}
	return text
}

// sources says what it all rests on.
func (f *slurmFinding) sources() []string {
	how := "classic fair share"
	switch {
	case f.standing.Policy.FairTree && f.standing.Policy.TiesApart:
		how = "Fair Tree, ties kept apart"
	case f.standing.Policy.FairTree:
		how = "Fair Tree"
	case f.standing.Policy.DepthOblivious:
		how = "classic fair share, DEPTH_OBLIVIOUS"
	}
	lines := []string{fmt.Sprintf("%s, Slurm's shares by %s, %s; queue as squeue and sprio show it now", f.settings.Cluster, how, f.settings.Plugin)}
	if f.standing.Behind {
		lines = append(lines, f.behindText())
	}
	if f.shadow != "" {
		lines = append(lines, "By the ledger, which is in the shadow (Shadow=yes): "+f.shadow)
	}
	return lines
}

// behindText says what the next pass makes of what has happened since the last.
func (f *slurmFinding) behindText() string {
	const text = "Usage or shares have changed since slurmctld's last pass, of which these figures are"
	n := len(f.Path)
	if n == 0 {
		return text + "."
	}
	l, next := &f.Path[n-1], f.standing.Next(f.place)
	switch {
	case f.hasLevelFS(l) && l.Assoc.User != "":
		return fmt.Sprintf("%s: the next gives %s LevelFS %s and FairShare %s.", text, l.Assoc.User, sixDigits(next.LevelFS), sixDigits(next.Factor))
	case l.Assoc.User != "":
		return fmt.Sprintf("%s: the next gives %s FairShare %s.", text, l.Assoc.User, sixDigits(next.Factor))
	case f.hasLevelFS(l):
		return fmt.Sprintf("%s: the next gives %s LevelFS %s.", text, l.Account, sixDigits(next.LevelFS))
	}
	return text + "."
}
