#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `cmake --install` into a new folder, which is then moved, and projects that use it: by pkg-config
# and by find_package, from C and C++, shared and static. $1 is the program in its build folder, $2
# the source folder.
set -u
export LC_ALL=C
build=$(dirname "$1")
source=$2
here=$source/tests/install
if grep -q 'FP_SANITIZE:STRING=ON\|FP_SANITIZE:STRING=thread\|FP_STATIC:BOOL=ON' "$build/CMakeCache.txt"; then
	echo "SKIPPED: programs that link a sanitized or static library need the flags of its build"
	exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
failures=0

complain() {
	echo "FAILED: $*"
	failures=$((failures + 1))
}

# attempt WHAT COMMAND...: the command must succeed; if it fails its output is shown.
attempt() {
	what=$1
	shift
	"$@" >"$work/log" 2>&1 || {
		complain "$what"
		tail -n 30 "$work/log"
	}
}

attempt "cmake --install" cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved"
root=$work/moved
library=$(find "$root" -name libfistapruner.so.0)
[ -n "$library" ] || {
	complain "there is no libfistapruner.so.0"
	exit 1
}
folder=$(dirname "$library")

# The program, its manual page and the demo's models, by relative paths.
attempt "the installed program runs" "$root/bin/fistapruner" --version
attempt "the demo's models are where the installed program looks" \
	"$root/bin/fistapruner" inspect "$root/share/fistapruner/models/opt-demo"
[ -s "$root/share/man/man1/fistapruner.1" ] || complain "there is no manual page"
for completion in bash-completion/completions/fistapruner zsh/site-functions/_fistapruner fish/vendor_completions.d/fistapruner.fish; do
	[ -s "$root/share/$completion" ] || complain "there is no $completion"
done
[ -s "$root/share/fistapruner/models/calibration.jsonl" ] || complain "there is no calibration text"
if grep -rlI -e "$source" "$root" >"$work/log" 2>/dev/null; then
	complain "installed text files name the source folder: $(cat "$work/log")"
fi

# The library exports the functions of the public headers and nothing else; symbols.txt lists them,
# so that a change of the interface is noticed.
nm -D --defined-only "$library" | awk '{ print $3 }' | sort >"$work/exported"
cat "$root"/include/fistapruner/*.h | tr '\n' ' ' | grep -o 'FP_API [a-z][^;(#]*(' |
	grep -v __attribute__ |
	sed 's/($//; s/.*[ *]//' | sort >"$work/declared"
diff "$here/symbols.txt" "$work/declared" >"$work/log" ||
	complain "the headers declare (>) other functions than tests/install/symbols.txt, where new ones are added: $(cat "$work/log")"
diff "$here/symbols.txt" "$work/exported" >"$work/log" ||
	complain "the library exports (>) other symbols than tests/install/symbols.txt has: $(cat "$work/log")"
readelf -d "$library" | grep -q 'SONAME.*\[libfistapruner.so.0\]' || complain "the SONAME is not libfistapruner.so.0"

# Each header alone, in C and C++.
for header in "$root"/include/fistapruner/*.h; do
	attempt "$header as C" cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c "$header"
	attempt "$header as C++" c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" -fsyntax-only -x c++ "$header"
done

# By pkg-config.
PKG_CONFIG_PATH=$folder/pkgconfig
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion fistapruner)" = "$("$1" --version | grep -o '[0-9][0-9.]*' | head -n 1)" ] ||
	complain "pkg-config gives another version"
# shellcheck disable=SC2046 # the flags are words
attempt "a program built by pkg-config" \
	cc "$source/examples/prune_matrix.c" -o "$work/by_pkg_config" $(pkg-config --cflags --libs fistapruner)
attempt "that program runs" env LD_LIBRARY_PATH="$folder" "$work/by_pkg_config"
mkdir "$work/archive" # -lfistapruner takes the shared library where both are
cp "$folder/libfistapruner.a" "$work/archive"
# shellcheck disable=SC2046
attempt "a program built by pkg-config --static" cc "$source/examples/prune_matrix.c" -o "$work/by_static" \
	$(pkg-config --cflags fistapruner) -L"$work/archive" $(pkg-config --static --libs-only-l --libs-only-other fistapruner) \
	$(pkg-config --static --libs-only-L fistapruner) \
	-Wl,-rpath,"$(pkg-config --static --libs-only-L fistapruner | tr ' ' '\n' | grep openblas | sed 's/^-L//')"
attempt "that program runs" "$work/by_static"
ldd "$work/by_static" | grep -q fistapruner && complain "the static program needs the shared library"

# By find_package.
attempt "find_package" cmake -G Ninja -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$root" \
	-DEXAMPLE="$source/examples/prune_matrix.c"
attempt "the consumers build" cmake --build "$work/consumer"
for consumer in shared_consumer static_consumer cpp_consumer; do
	attempt "$consumer runs" "$work/consumer/$consumer"
done
ldd "$work/consumer/shared_consumer" | grep -q 'libfistapruner.so.0' || complain "shared_consumer does not use the shared library"
ldd "$work/consumer/static_consumer" | grep -q fistapruner && complain "static_consumer uses the shared library"

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
