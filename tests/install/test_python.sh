#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package: from the source tree, and as a wheel that is made of this build's library.
. "$2/tests/cli/common.sh"
build=$(dirname "$program")
! sanitized || skip "Python cannot load a sanitized library"
! grep -q 'FP_STATIC:BOOL=ON' "$build/CMakeCache.txt" || skip "a static build has no shared library"
python=
for candidate in python3 /usr/bin/python3; do
	if "$candidate" -c "import numpy" 2>/dev/null; then
		python=$candidate
		break
	fi
done
[ -n "$python" ] || skip "there is no python3 with numpy"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
export FISTAPRUNER_LIBRARY="$build/src/libfistapruner.so.0" FISTAPRUNER_PROGRAM="$program" MATERIAL="$work/material"

# The tests compare bytes with the program's, which chooses the kernel of an OpenBLAS that does not
# know the processor.
kernel=$(PYTHONPATH="$source/python" "$python" -c "from fistapruner import library; print((library.fp_openblas_kernel() or b'').decode())")
[ -z "$kernel" ] || export OPENBLAS_CORETYPE="$kernel"

part pip || PYTHONPATH="$source/python" "$python" -W error -m unittest discover -s "$source/python/tests" || exit 1

# The wheel as pip builds it; then, without the variable and outside of the tree, with its own
# library.
(cd "$source/python" && "$python" -c "import build_wheel_from_cmake as b, sys; print(b.build_wheel(sys.argv[1]))" "$work") || exit 1
unset FISTAPRUNER_LIBRARY
mkdir "$work/site"
if part pip; then
	"$python" -m pip --version >/dev/null 2>&1 || skip "pip is not installed"
	"$python" -m pip install -q --no-index --no-deps --target "$work/site" "$work"/*.whl || exit 1
else
	"$python" -m zipfile -e "$work"/*.whl "$work/site" || exit 1
fi
cp -r "$source/python/tests" "$work/tests"
rm "$work/tests/test_declarations.py" # needs the headers
(cd "$work" && PYTHONPATH="$work/site" "$python" -m unittest discover -s "$work/tests") || exit 1
(cd "$work" && PYTHONPATH="$work/site" "$python" -c "
import fistapruner, sys
assert fistapruner.__file__.startswith(sys.argv[1]) and fistapruner.library._name.startswith(sys.argv[1]), fistapruner.library._name
" "$work/site") || exit 1
finish
