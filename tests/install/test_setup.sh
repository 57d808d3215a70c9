#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ./setup knows the packages of each system by /etc/os-release, and says what to do on others.
set -u
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
	echo "FAILED: $*"
	failures=$((failures + 1))
}

# list SYSTEM FLAG...: the packages of a system that calls itself so ("ID VERSION_CODENAME ID_LIKE").
list() {
	set -f
	# shellcheck disable=SC2086 # three words
	printf 'ID=%s\nVERSION_CODENAME=%s\nID_LIKE="%s"\n' $1 >"$work/release"
	shift
	FP_OS_RELEASE=$work/release "$source/setup" "$@" --list 2>"$work/err"
}

# has SYSTEM FLAG PACKAGE: a line of the list is this package.
has() {
	list "$1" $2 | grep -qx -e "$3" || complain "$1 $2: no $3"
}

for row in "debian bookworm -:libopenblas-openmp-dev" "ubuntu jammy debian:libopenblas-openmp-dev" \
	"linuxmint wilma ubuntu:libopenblas-openmp-dev" "fedora - -:openblas-devel" "rocky - fedora:openblas-devel" "arch - -:openblas" \
	"manjaro - arch:openblas"; do
	has "${row%:*}" --build "${row#*:}"
	! list "${row%:*}" --build | grep -qx -e '-' || complain "$row: '-' is no package"
	[ "$(list "${row%:*}" "" 2>/dev/null | wc -l)" -eq 0 ] || complain "$row: an empty word was taken as a flag"
done
has "debian bookworm -" --wheel gcc-12-source
has "ubuntu jammy debian" "" libclang-common-14-dev
has "ubuntu noble debian" "" libomp-18-dev
! list "debian bookworm -" --build | grep -q cmocka || complain "--build lists a package for tests"

if list "void - -" --build; then
	complain "an unknown system was accepted"
fi
grep -q "is not in the table.*libjansson-dev" "$work/err" || complain "unknown system: $(cat "$work/err")"
[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
