#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package: from the source tree, and as a wheel that is made of this build's library.
. "$2/tests/cli/common.sh"
build=$(dirname "$program")
! sanitized || skip "Python cannot load a sanitized library"
! grep -q 'FP_STATIC:BOOL=ON' "$build/CMakeCache.txt" || skip "a static build has no shared library"
python=
for candidate in ${FP_PYTHON:-python3} /usr/bin/python3; do
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

if part torch; then
	"$python" -c "import torch, transformers" 2>/dev/null || skip "there is no transformers; FP_PYTHON names a python3 that has it"
	SOURCE="$source" PYTHONPATH="$source/python" "$python" -m unittest discover -s "$source/python/tests" -p "test_torch.py" || exit 1
	finish
fi
[ -n "$wanted_part" ] || PYTHONPATH="$source/python" "$python" -W error -m unittest discover -s "$source/python/tests" -p "test_[!t]*.py" || exit 1

if part portable; then
	# the wheel that needs nothing but glibc: its own OpenBLAS, which it uses with the right kernel
	build=$source/build/wheel
	program=$build/bin/fistapruner
	[ -x "$program" ] || skip "there is no build/wheel; make it by: cmake --preset wheel && cmake --build --preset wheel"
	"$python" -c "import ziglang" 2>/dev/null || skip "there is no ziglang, whose licences the wheel lists"
	export FISTAPRUNER_PROGRAM="$program"
	unset OPENBLAS_CORETYPE
	nm -D --defined-only "$build/lib/libfistapruner.so.0" | awk '{ print $3 }' | sort | diff - "$source/tests/install/symbols.txt" ||
		complain "the portable library exports something else"
fi

# Without a compiler the build ends with one line that says what to do.
(cd "$source/python" && PATH=/nowhere "$("$python" -c "import sys; print(sys.executable)")" -c \
	"import build_wheel_from_cmake as b; b.get_requires_for_build_wheel()") >"$work/out" 2>"$work/err"
grep -q "^fistapruner: gcc and pkg-config not found; run ./setup --build" "$work/err" || complain "no compiler"
[ "$(cat "$work/out" "$work/err" | wc -l)" -eq 1 ] || complain "no compiler: more than one line"

# The wheel as pip builds it; then, without the variable and outside of the tree, with its own
# library.
(cd "$source/python" && FISTAPRUNER_BUILD=$build "$python" -c "import build_wheel_from_cmake as b, sys; print(b.build_wheel(sys.argv[1]))" \
	"$work") || exit 1
unset FISTAPRUNER_LIBRARY
mkdir "$work/site"
if part pip; then
	"$python" -m pip --version >/dev/null 2>&1 || skip "pip is not installed"
	"$python" -m pip install -q --no-index --no-deps --target "$work/site" "$work"/*.whl || exit 1
	command=$work/site/bin/fistapruner
else
	"$python" -m zipfile -e "$work"/*.whl "$work/site" || exit 1
	chmod +x "$work/site/fistapruner/native/bin/fistapruner"
	command="$python $(echo "$work/site"/*.data/scripts/fistapruner)"
fi
# The command that the wheel installs is the program, and finds the demo's models.
[ "$(PYTHONPATH="$work/site" $command --version)" = "$("$program" --version)" ] || complain "the wheel's command is not the program"
[ -s "$work/site/fistapruner/native/share/fistapruner/models/opt-demo/model.safetensors" ] || complain "the wheel has no demo models"
if [ "$wanted_part" = portable ]; then
	set -- "$work"/*-manylinux_2_*_x86_64*.whl
	[ -e "$1" ] || complain "the tag is not manylinux: $(echo "$work"/*.whl)"
	grep -q "OpenBLAS" "$work/site"/*.dist-info/licenses/THIRD_PARTY.txt || complain "the wheel does not list licences"
	PYTHONPATH="$work/site" "$python" -c "from fistapruner import library; assert library.fp_openblas_kernel() is None" ||
		complain "the portable library has a slow kernel"
fi
cp -r "$source/python/tests" "$work/tests"
rm "$work/tests/test_declarations.py" "$work/tests/test_torch.py" # need the headers, and torch
(cd "$work" && PYTHONPATH="$work/site" "$python" -m unittest discover -s "$work/tests") || exit 1
(cd "$work" && PYTHONPATH="$work/site" "$python" -c "
import fistapruner, sys
assert fistapruner.__file__.startswith(sys.argv[1]) and fistapruner.library._name.startswith(sys.argv[1]), fistapruner.library._name
" "$work/site") || exit 1
finish
