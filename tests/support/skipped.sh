#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# skipped.sh BUILD_FOLDER: the reasons of the tests that the last run of ctest skipped. ctest runs
# it at its end, before it gives its log the final name.
log=$1/Testing/Temporary/LastTest.log
[ ! -e "$log.tmp" ] || log=$log.tmp
[ -e "$log" ] || exit 0
awk '
/^[0-9]+\/[0-9]+ Test: / { name = $3 }
/^SKIPPED: / && !seen[name $0]++ {
	if (!count++) print "\nReasons of the skipped tests:"
	print "\t" name ": " substr($0, 10)
}
' "$log"
