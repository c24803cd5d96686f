// SPDX-License-Identifier: GPL-2.0-or-later

// Package assoc reads Slurm's associations as sacctmgr writes them, in a
// listing or a dump file, and makes an account tree of them.
package assoc

import (
	"bufio"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"gpubudget/fairshare"
)

// Inherit is the raw share of Fairshare=parent.
const Inherit int64 = -1

// slurmInherit is how Slurm writes Inherit as a number.
const slurmInherit = 0x7fffffff

// Association is one row: an account, or a user in an account.
type Association struct {
	Line      int // where it stands in the input
	Cluster   string
	Account   string
	Parent    string // of an account; "" for root and where it is not known
	User      string // "" for the account itself
	Partition string
	Share     int64 // raw share, or Inherit
}

// Listing is what was read.
type Listing struct {
	Associations []Association
	// HasParents tells whether the parents of the accounts are known. Slurm's
	// own default format leaves them out.
	HasParents bool
}

// Command is the sacctmgr command whose output has all that is needed.
const Command = "sacctmgr -P show assoc format=cluster,account,parentname,user,partition,share"

// Read reads the output of "sacctmgr show assoc" with -P or -p, with or
// without -n and tree, or a file that "sacctmgr dump" wrote. Errors name the
// line.
func Read(r io.Reader) (*Listing, error) {
	lines, err := readLines(r)
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("there are no associations in it: use %s, or sacctmgr dump", Command)
	}
	first := lines[0]
	switch {
	case isDump(first.text):
		return readDump(lines)
	case strings.Contains(first.text, "|"):
		return readTable(lines)
	}
	return nil, fmt.Errorf("line %d: neither a table with | between its columns nor a dump: use %s, or sacctmgr dump", first.number, Command)
}

// line is a line of the input that holds something.
type line struct {
	number int
	text   string
}

// readLines leaves out empty lines and comments.
func readLines(r io.Reader) ([]line, error) {
	var lines []line
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for n := 1; scanner.Scan(); n++ {
		text := strings.TrimRight(scanner.Text(), "\r\n")
		if trimmed := strings.TrimSpace(text); trimmed != "" && trimmed[0] != '#' {
			lines = append(lines, line{n, text})
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read associations: %w", err)
	}
	return lines, nil
}

// parseShare reads a raw share: a number, or "parent" as a word or as Slurm's
// number for it.
func parseShare(text string) (int64, error) {
	if strings.EqualFold(text, "parent") {
		return Inherit, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > slurmInherit {
		return 0, fmt.Errorf("%q is not a share: a number from 0 to %d, or parent", text, slurmInherit-1)
	}
	if n == slurmInherit {
		return Inherit, nil
	}
	return n, nil
}

// Clusters is the names of the clusters in the listing, sorted.
func (l *Listing) Clusters() []string {
	seen := map[string]bool{}
	var names []string
	for _, a := range l.Associations {
		if !seen[a.Cluster] {
			seen[a.Cluster] = true
			names = append(names, a.Cluster)
		}
	}
	sort.Strings(names)
	return names
}

// Of is the part of the listing that is about one cluster.
func (l *Listing) Of(cluster string) *Listing {
	out := &Listing{HasParents: l.HasParents}
	for _, a := range l.Associations {
		if a.Cluster == cluster {
			out.Associations = append(out.Associations, a)
		}
	}
	return out
}

// TakeParents takes the parents of the accounts from another listing of the
// same cluster.
func (l *Listing) TakeParents(from *Listing) error {
	parent := map[string]string{}
	for _, a := range from.Associations {
		if a.User == "" {
			parent[a.Account] = a.Parent
		}
	}
	for i := range l.Associations {
		a := &l.Associations[i]
		if a.User != "" {
			continue
		}
		p, ok := parent[a.Account]
		if !ok {
			return fmt.Errorf("line %d: Slurm knows no account %s now: use the output of %s", a.Line, a.Account, Command)
		}
		a.Parent = p
	}
	l.HasParents = true
	return nil
}

// Flatten puts every account directly below root.
func (l *Listing) Flatten() {
	for i := range l.Associations {
		if a := &l.Associations[i]; a.User == "" && a.Account != fairshare.RootAccount {
			a.Parent = fairshare.RootAccount
		}
	}
	l.HasParents = true
}
