#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Completion scripts: every shell's script names all commands, each shell can read its own, and bash
# and fish complete some command lines as expected.
. "$2/tests/cli/common.sh"
export LC_ALL=C

expect 2 "one of bash\|zsh\|fish" help --completion csh
for shell in bash zsh fish; do
	expect_output "fistapruner help --completion $shell" help --completion "$shell"
	cp "$work/out" "$work/completion.$shell"
	for command in $("$program" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
		grep -q "$command" "$work/completion.$shell" || complain "$shell: no $command"
	done
done

# can_read SHELL: the shell is installed and can read its script.
can_read() {
	command -v "$1" >/dev/null || skip "$1 is not installed"
	"$1" -n "$work/completion.$1" 2>"$work/err" || complain "$1 cannot read its script"
}

# offers WANTED WORD...: what bash offers when the cursor is on the last word; '=' is a word of its
# own there.
offers() {
	wanted=$1
	shift
	bash -c '
		compopt() { :; } # works only inside a completion
		source "$0" || exit 1
		COMP_WORDS=(fistapruner "$@") COMP_CWORD=$#
		_fistapruner
		printf "%s\n" "${COMPREPLY[@]}"' "$work/completion.bash" "$@" 2>"$work/err" | sort | tr "\n" " " | sed "s/ $//" >"$work/out"
	[ ! -s "$work/err" ] && [ "$(cat "$work/out")" = "$wanted" ] || complain "bash, after '$*': wanted '$wanted'"
}
if part bash; then
	can_read bash
	offers "prune" pr
	offers "--method --metrics" prune good --met
	offers "sparsegpt" prune --method s
	methods=$("$program" help prune | sed -n 's/^ *--method \([a-z|]*\).*/\1/p' | tr '|' '\n' | sort | tr '\n' ' ')
	offers "${methods% }" prune good --method =
	offers "wanda" prune good --method = w
	offers "lambda_high= lambda_low= lambda_search= lambda_start=" prune good --set lambda_
	offers "bisection geometric" prune good --set lambda_search =
	offers "2:4 50%" inspect good --pattern ""
	mkdir target
	: >target.txt
	offers "target target.txt" prune good --calibration targ
	offers "target" prune good -o targ
	offers "good" eval goo
	offers "tokenize" help tok
	offers "" prune good --samples ""
	finish
fi

if part zsh; then
	can_read zsh
	finish
fi

# in_fish WANTED LINE: the same for fish.
in_fish() {
	XDG_CONFIG_HOME=$work HOME=$work fish --no-config -c "source '$work/completion.fish'; complete -C '$2'" 2>"$work/err" |
		cut -f 1 | sort | tr '\n' ' ' >"$work/out"
	[ "$(cat "$work/out")" = "$1 " ] || complain "fish, after '$2': wanted '$1'"
}
if part fish; then
	can_read fish
	in_fish "prune" "fistapruner pr"
	in_fish "--method --metrics" "fistapruner prune good --met"
	in_fish "auto cpu cuda" "fistapruner eval good --device "
	in_fish "lambda_high= lambda_low= lambda_search= lambda_start=" "fistapruner prune good --set lambda_"
	finish
fi
finish
