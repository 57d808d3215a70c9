#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Help is generated from the tables: every command has it, every documented flag is there, the man page is current.
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

# what the presets run, and the values that the default one really uses
expect_output "N:M always means N kept of M" help
for about in help "help prune" "help compare" "help --man"; do
	expect_output "does not run FISTA" $about
	expect_output "FISTAPruner as published" $about
	expect_output "[Ll]ayer.{1,2}wise reconstruction on the calibration text" $about
done
expect_output "^  iterations=K .*\\[0\\]" prune --help
expect_output "^  fit_steps=N" prune --help
grep -A1 "^  fit_steps=N" "$work/out" | grep -q "\[200\]" || complain "--help does not show the fit_steps of preset best"
expect_output "^  wanda +" prune --help
expect_output "^  setting +best +fast +paper +paper, OPT$" prune --help
expect_output "^  iterations +0 +0 +20 +20$" prune --help
expect_output "^  warm_start +dense +dense +wanda +sparsegpt$" compare --help

"$program" help --man >"$work/out" 2>"$work/err"
cmp -s "$work/out" "$source/docs/fistapruner.1" ||
	complain "docs/fistapruner.1 is old; make it with: fistapruner help --man >docs/fistapruner.1"
# no line of help is too long for a terminal of 100 columns
for command in prune eval compare inspect tokenize demo; do
	"$program" "$command" --help >"$work/out" 2>"$work/err"
	awk 'length > 100 { bad = 1 } END { exit bad }' "$work/out" || complain "$command --help has a line over 100 characters"
done
finish
