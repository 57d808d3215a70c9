# SPDX-License-Identifier: Apache-2.0
# Sourced by test scripts: expectations on exit code, stdout and stderr. $1 is the program, $2 the
# source folder, $3 the part to run; without it the script runs everything that is in no part.
set -u
program=$1
source=$2
wanted_part=${3-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$source/tests/cli/make_material.py" "$work/material" || exit 1
cd "$work/material" || exit 1
failures=0

# part NAME: true if this part is to run. A part that runs ends with `finish`. tests/CMakeLists.txt
# looks for lines that begin with `if part NAME; then` and makes each of them a test of its own.
part() {
	[ "$wanted_part" = "$1" ]
}

# skip REASON...: ends the script; CTest shows the test as skipped.
skip() {
	echo "SKIPPED: $*"
	exit 77
}

# sanitized: true for a build with AddressSanitizer or ThreadSanitizer.
sanitized() {
	grep -q 'FP_SANITIZE:[A-Z]*=\(ON\|thread\)' "$(dirname "$program")/CMakeCache.txt"
}

complain() {
	echo "FAILED: $*"
	echo "  stdout: $(head -c 400 "$work/out")"
	echo "  stderr: $(head -c 800 "$work/err")"
	failures=$((failures + 1))
}

# expect CODE PATTERN ARGUMENT...: the program ends with this exit code and its stderr matches the
# pattern.
expect() {
	wanted=$1
	pattern=$2
	shift 2
	"$program" "$@" >"$work/out" 2>"$work/err" </dev/null
	code=$?
	if [ "$code" -ne "$wanted" ]; then
		complain "'$*' gave exit code $code, wanted $wanted"
	elif ! grep -Eqi -e "$pattern" "$work/err"; then
		complain "'$*' does not print '$pattern' on stderr"
	elif [ "$wanted" -ne 0 ] && [ "$wanted" -ne 5 ] && [ -s "$work/out" ]; then
		complain "'$*' failed but printed a result"
	fi
}

# expect_output PATTERN ARGUMENT...: the program succeeds and a line of its stdout matches the
# pattern.
expect_output() {
	pattern=$1
	shift
	if ! "$program" "$@" >"$work/out" 2>"$work/err" </dev/null; then
		complain "'$*' failed"
	elif ! grep -Eq -e "$pattern" "$work/out"; then
		complain "'$*' does not print '$pattern'"
	fi
}

# expect_json EXPRESSION ARGUMENT...: stdout is one JSON document d for which the Python expression
# holds.
expect_json() {
	expression=$1
	shift
	"$program" "$@" --json >"$work/out" 2>"$work/err" </dev/null
	python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
sys.exit(0 if $expression else 1)" "$work/out" || complain "'$*': not $expression"
}

finish() {
	[ "$failures" -eq 0 ] || exit 1
	echo "all as expected"
	exit 0
}
