#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package: as it lies in the tree, and as a wheel built from this build's library. $1 is the program, $2 the source folder.
set -u
program=$1
source=$2
build=$(dirname "$program")
if grep -q 'FP_SANITIZE:STRING=ON\|FP_SANITIZE:STRING=thread\|FP_STATIC:BOOL=ON' "$build/CMakeCache.txt"; then
	echo "skipped: Python cannot load a sanitized library, and a static build has none"
	exit 77
fi
python=
for candidate in python3 /usr/bin/python3; do
	if "$candidate" -c "import numpy" 2>/dev/null; then
		python=$candidate
		break
	fi
done
[ -n "$python" ] || {
	echo "skipped: no python3 with numpy"
	exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
export FISTAPRUNER_LIBRARY="$build/src/libfistapruner.so.0" FISTAPRUNER_PROGRAM="$program" MATERIAL="$work/material"
"$python" "$source/tests/cli/make_material.py" "$MATERIAL" || exit 1

PYTHONPATH="$source/python" "$python" -W error -m unittest discover -s "$source/python/tests" || exit 1

# The wheel by the hook that pip calls; then, without the variable and away from the tree, with its own library.
(cd "$source/python" && "$python" -c "import build_wheel_from_cmake as b, sys; print(b.build_wheel(sys.argv[1]))" "$work") || exit 1
unset FISTAPRUNER_LIBRARY
mkdir "$work/site"
if "$python" -m pip --version >/dev/null 2>&1; then
	"$python" -m pip install -q --no-index --no-deps --target "$work/site" "$work"/*.whl || exit 1
else
	echo "pip is not there: the wheel is only unpacked"
	"$python" -m zipfile -e "$work"/*.whl "$work/site" || exit 1
fi
cp -r "$source/python/tests" "$work/tests"
rm "$work/tests/test_declarations.py" # needs the headers
(cd "$work" && PYTHONPATH="$work/site" "$python" -m unittest discover -s "$work/tests") || exit 1
(cd "$work" && PYTHONPATH="$work/site" "$python" -c "
import fistapruner, sys
assert fistapruner.__file__.startswith(sys.argv[1]) and fistapruner.library._name.startswith(sys.argv[1]), fistapruner.library._name
" "$work/site") || exit 1
echo "all as expected"
