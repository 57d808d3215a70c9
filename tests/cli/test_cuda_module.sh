#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Which CUDA module the program takes, by the driver's version and by the libraries that are found: with a driver and modules
# that are made here, and which say that they belong to another build.
. "$2/tests/cli/common.sh"
compiler=${CC:-cc}
command -v "$compiler" >/dev/null || skip "there is no C compiler"
! sanitized || skip "a sanitized program warns of the driver made here"
model=$source/models/llama-demo
mkdir bin libraries
cp "$program" bin/fistapruner
program=$PWD/bin/fistapruner
export LD_LIBRARY_PATH="$PWD/libraries" FAKE_DRIVER=13000
unset FISTAPRUNER_CUDA_MODULE

shared() {
	"$compiler" -shared -fPIC -x c - -o "$@" 2>"$work/err" || complain "the compiler fails"
}
echo '#include <stdlib.h>
int cuDriverGetVersion(int *out) { *out = atoi(getenv("FAKE_DRIVER")); return 0; }' | shared libraries/libcuda.so.1
for version in 12 13; do
	echo "int blas$version(void) { return 0; }" | shared libraries/libblas_of_cuda.so.$version -Wl,-soname,libblas_of_cuda.so.$version
done
module() {
	echo "int blas$2(void);
int unused(void) { return blas$2(); }
const char *fp_module_build_id(void) { return \"cuda$2\"; }" | shared "bin/$1" -Wl,--no-as-needed -x none libraries/libblas_of_cuda.so."$2"
}
module libfistapruner_cuda.so 13
module libfistapruner_cuda12.so 12

# takes DRIVER PATTERN: with this driver the message is this one, in one line
takes() {
	FAKE_DRIVER=$1 "$program" inspect "$model" >/dev/null 2>&1 || complain "inspect"
	FAKE_DRIVER=$1 "$program" generate "$model" --prompt a --device cuda -q >"$work/out" 2>"$work/err"
	grep -q "$2" "$work/err" || complain "driver $1: not '$2'"
	[ "$(wc -l <"$work/err")" -eq 1 ] || complain "driver $1: more than one line"
}
takes 13000 "libfistapruner_cuda.so belongs to another build.*of build cuda13"
takes 12040 "libfistapruner_cuda12.so belongs to another build.*of build cuda12"
mv libraries/libblas_of_cuda.so.13 .
takes 13000 "libfistapruner_cuda12.so belongs to another build.*of build cuda12"
mv libraries/libblas_of_cuda.so.12 .
takes 13000 "libfistapruner_cuda.so cannot be loaded: libblas_of_cuda.so.13: .*pip install nvidia-cublas"
takes 12040 "libfistapruner_cuda12.so cannot be loaded: libblas_of_cuda.so.12: .*-cu12"
mv libblas_of_cuda.so.12 libraries
rm bin/libfistapruner_cuda12.so # a build with one module
takes 13000 "libfistapruner_cuda.so cannot be loaded: libblas_of_cuda.so.13: .*pip install nvidia-cublas"
takes 12040 "libfistapruner_cuda.so cannot be loaded: libblas_of_cuda.so.13: "
mv libblas_of_cuda.so.13 libraries
takes 12040 "libfistapruner_cuda.so belongs to another build"
finish
