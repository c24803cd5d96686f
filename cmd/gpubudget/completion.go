// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// bashScript asks the program itself what can come next. Without an answer
// bash completes file names.
const bashScript = `# bash completion of gpubudget
_gpubudget() {
    local IFS=$'\n'
    COMPREPLY=($(gpubudget __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _gpubudget gpubudget
`

const zshScript = `#compdef gpubudget
# zsh completion of gpubudget
_gpubudget() {
    local -a answers
    answers=("${(@f)$(gpubudget __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    answers=(${answers:#})
    if (( ${#answers} )); then
        compadd -- "${answers[@]}"
    else
        _files
    fi
}
if [[ "${funcstack[1]}" = "_gpubudget" ]]; then
    _gpubudget "$@"
else
    compdef _gpubudget gpubudget
fi
`

func (p *program) completionCommand() *cli.Command {
	script := func(shell, text string, examples ...string) *cli.Command {
		return &cli.Command{
			Name:        shell,
			Usage:       "print the script for " + shell,
			Description: describe("Commands, options, accounts, users, clusters and settings are completed.", examples...),
			Action: func(c *cli.Context) error {
				if err := wantArguments(c, 0); err != nil {
					return err
				}
				_, err := fmt.Fprint(p.stdout, text)
				return err
			},
		}
	}
	return &cli.Command{
		Name:  "completion",
		Usage: "print a script that completes commands in the shell",
		Subcommands: []*cli.Command{
			script("bash", bashScript,
				"source <(gpubudget completion bash)",
				"gpubudget completion bash > /etc/bash_completion.d/gpubudget"),
			script("zsh", zshScript,
				"source <(gpubudget completion zsh)",
				"gpubudget completion zsh > /usr/local/share/zsh/site-functions/_gpubudget"),
		},
	}
}
