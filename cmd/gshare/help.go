// SPDX-License-Identifier: GPL-2.0-or-later

package main

// helpText is what --help prints, as the cli package fills it in.
const helpText = `Usage: gshare [OPTIONS]

Shows what share of the GPUs accounts and users are due over the lookback
window, what they got, and who is served next. Without -a or -u it shows your
own accounts and those above them, or all accounts if you are in none.

Options:
{{range .VisibleFlags}}  {{.}}
{{end}}
Hours are GPU-hours within the window. Ratio is used by entitled: at each level
of the tree the account that has the lowest is served next.

Examples:
  gshare                       your own accounts
  gshare -a                    everybody
  gshare -la                   everybody, all columns
  gshare -A vision,nlp -a      two accounts and their users
  gshare -u ada -U             one user's own rows
  gshare -anP -o Acc,User,UsedH,EntitledH
                               for a script
  gshare -a -o account%-30,used%14,ratio
                               columns of your own choice and width
  gshare -a --json             everything, in full precision

Exit status: 0, 1 on an error, 2 if the command line is wrong.
Environment: GPUBUDGET_CONF names the configuration file; PG* variables,
pg_service.conf and the password file are libpq's.
`
