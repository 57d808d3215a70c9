#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Help comes from the tables: every command has it, every documented flag is there, the man page is in step.
. "$2/tests/cli/common.sh"

expect_output "^fistapruner [0-9]+\.[0-9]+\.[0-9]+ \((commit [0-9a-f]{12}(-dirty)?, )?build [0-9a-f]{16}\)$" --version
expect_output "^usage: fistapruner COMMAND" --help
expect_output "^usage: fistapruner COMMAND" help
for command in $("$program" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
	expect_output "^usage: fistapruner $command" "$command" --help
	expect_output "^usage: fistapruner $command" help "$command"
	expect_output "^  -h, --help" "$command" -h
	grep -q "^## $command" "$source/docs/cli.md" || [ "$command" = help ] || complain "docs/cli.md lacks $command"
done
expect_output "[-][-]sequence-length N" eval --help
expect_output "N kept of M" inspect --help
expect 2 "no such command: 'nothing'" help nothing

"$program" help --man >"$work/out" 2>"$work/err"
cmp -s "$work/out" "$source/docs/fistapruner.1" ||
	complain "docs/fistapruner.1 is old; make it with: fistapruner help --man >docs/fistapruner.1"
# the longest line of any help fits a wide terminal
for command in eval inspect tokenize; do
	"$program" "$command" --help >"$work/out" 2>"$work/err"
	awk 'length > 100 { bad = 1 } END { exit bad }' "$work/out" || complain "$command --help has a line over 100 characters"
done
finish
