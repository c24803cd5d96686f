// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strings"
)

// printCompletion prints a script for a shell to read. Names of accounts and
// users are looked up as they are needed.
func (p *program) printCompletion(shell string) error {
	var options []string
	for _, flag := range flags() {
		for _, name := range flag.Names() {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			options = append(options, dashes+name)
		}
	}
	script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion}[shell]
	if !ok {
		return usagef("no completion for shell %q: there is one for bash and one for zsh", shell)
	}
	_, err := fmt.Fprint(p.stdout, strings.NewReplacer(
		"@OPTIONS@", strings.Join(options, " "),
		"@FIELDS@", strings.Join(namesOf(columns), " "),
	).Replace(script))
	return err
}

const bashCompletion = `# bash completion for gshare. Load it with:
#   source <(gshare --completion=bash)
_gshare_list() { # complete the last word of a comma-separated list
	local prefix=""
	[[ $cur == *,* ]] && prefix="${cur%,*},"
	COMPREPLY=($(compgen -P "$prefix" -W "$1" -- "${cur##*,}"))
	compopt -o nospace
}
_gshare() {
	local cur prev
	COMPREPLY=()
	cur="${COMP_WORDS[COMP_CWORD]}"
	prev="${COMP_WORDS[COMP_CWORD-1]}"
	if [[ $prev == = && $COMP_CWORD -ge 2 ]]; then
		prev="${COMP_WORDS[COMP_CWORD-2]}"
	elif [[ $cur == = ]]; then
		cur=""
	fi
	case "$prev" in
		-A|--accounts) _gshare_list "$(gshare -anP -o Account 2>/dev/null | tr -d ' ' | sort -u)" ;;
		-u|--users) _gshare_list "$(gshare -aUnP -o User 2>/dev/null | sort -u)" ;;
		-o|--format) _gshare_list "@FIELDS@" ;;
		--completion) COMPREPLY=($(compgen -W "bash zsh" -- "$cur")) ;;
		--conf) COMPREPLY=($(compgen -f -- "$cur")) ;;
		*) COMPREPLY=($(compgen -W "@OPTIONS@" -- "$cur")) ;;
	esac
}
complete -F _gshare gshare
`

const zshCompletion = `#compdef gshare
# zsh completion for gshare. Load it with:
#   source <(gshare --completion=zsh)
_gshare() {
	local -a options accounts users fields
	options=(@OPTIONS@)
	fields=(@FIELDS@)
	case "${words[CURRENT-1]}" in
		-A|--accounts)
			accounts=(${(f)"$(gshare -anP -o Account 2>/dev/null | tr -d ' ' | sort -u)"})
			_values -s , account $accounts ;;
		-u|--users)
			users=(${(f)"$(gshare -aUnP -o User 2>/dev/null | sort -u)"})
			_values -s , user $users ;;
		-o|--format) _values -s , field $fields ;;
		--completion) _values shell bash zsh ;;
		--conf) _files ;;
		*) compadd -- $options ;;
	esac
}
compdef _gshare gshare
`
