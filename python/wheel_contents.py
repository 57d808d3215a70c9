# SPDX-License-Identifier: Apache-2.0
"""What a wheel holds besides Python files: the built files, the platform that they need, and the
licences of what is linked into them."""
import pathlib
import re
import subprocess
import sysconfig

SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
# What NVIDIA's Python packages provide and the CUDA module alone needs, if it is used at all.
CUDA = re.compile(r"lib(cublas|cusolver)\.so\.\d+")
CUDA_MODULE = "lib/libfistapruner_cuda.so"
CUDA12_MODULE = "lib/libfistapruner_cuda12.so"  # for machines with a driver or libraries of CUDA 12


def _same_build(program, module):
    """Whether a module belongs to the program, which would refuse it otherwise."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"build ([0-9a-f]+)", version).group(1).encode() in module.read_bytes()


def native_files(build, root):
    """{path in the folder native: file}, from a build folder in either of its two forms."""
    found = {}
    for inside, places in {"bin/fistapruner": ["bin/fistapruner", "fistapruner"],
                           "lib/libfistapruner.so.0": ["lib/libfistapruner.so.0", "src/libfistapruner.so.0"],
                           CUDA_MODULE: [CUDA_MODULE, "libfistapruner_cuda.so"],
                           CUDA12_MODULE: [CUDA12_MODULE, f"../wheel-cuda12/{CUDA12_MODULE}"] if build.name == "wheel" else [],
                           "lib/libfistapruner_mpi.so": ["libfistapruner_mpi.so"]}.items():
        for place in places:
            if (build / place).is_file():
                found[inside] = (build / place).resolve()
                break
    for inside in ("bin/fistapruner", "lib/libfistapruner.so.0"):
        if inside not in found:
            raise SystemExit(f"fistapruner: there is no {pathlib.Path(inside).name} in {build}; build the preset program or wheel there")
    if CUDA12_MODULE in found and not _same_build(found["bin/fistapruner"], found[CUDA12_MODULE]):
        raise SystemExit(f"fistapruner: {found[CUDA12_MODULE]} is of another build; build the preset wheel-cuda12 again or remove it")
    models = root / "models"
    for path in [models / "calibration.jsonl", models / "evaluation.jsonl", *sorted(models.glob("*-demo/*"))]:
        found[f"share/fistapruner/models/{path.relative_to(models).as_posix()}"] = path
    return found


def platform_tag(native):
    """The tag, and whether the files run on other systems. They do if they need only glibc's
    libraries; the newest symbol version says which glibc."""
    newest = 17  # the oldest version that tags can name is older, but nothing was tried there
    for inside, path in native.items():
        if not inside.startswith(("bin/", "lib/")):
            continue
        text = subprocess.run(["readelf", "-dVW", str(path)], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"Shared library: \[([^\]]+)\]", text)) - SYSTEM - {"libfistapruner.so.0"}
        if inside in (CUDA_MODULE, CUDA12_MODULE):
            needed = {name for name in needed if not CUDA.fullmatch(name)}
        if needed:
            return re.sub("[-.]", "_", sysconfig.get_platform()), False
        newest = max([newest, *(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text))])
    return f"manylinux_2_{newest}_x86_64" + (".manylinux2014_x86_64" if newest == 17 else ""), True


def _debian(package):
    return pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace")


def _zig(name):
    import ziglang
    return (pathlib.Path(ziglang.__file__).parent / name).read_text(errors="replace")


def licences(cuda):
    """One text about everything that cmake/Portable.cmake links in."""
    parts = [
        ("OpenBLAS, with LAPACK: BSD-3-Clause", _debian("libopenblas-openmp-dev")),
        ("jansson: MIT", _debian("libjansson-dev")),
        ("PCRE2: BSD-3-Clause", _debian("libpcre2-dev")),
        ("utf8proc: MIT, Unicode", _debian("libutf8proc-dev")),
        ("zlib: zlib", _debian("zlib1g-dev")),
        ("Zstandard: BSD-3-Clause", _debian("libzstd-dev")),
        ("gcc's libgomp, libgcc and libstdc++: GPL-3 with the GCC Runtime Library Exception, which allows "
         "programs of any licence", _debian("gcc-12-base")),
        ("glibc's start-up code: LGPL-2.1 or later, with an exception for linked programs", _zig("lib/libc/glibc/LICENSES")),
        ("zig's compiler-rt: MIT", _zig("LICENSE"))]
    if cuda:
        parts += [("LLVM's libunwind: Apache-2.0 with LLVM Exceptions", _zig("lib/libunwind/LICENSE.TXT")),
                  ("NVIDIA's CUDA runtime (libcudart_static.a): NVIDIA's licence",
                   "Part of libfistapruner_cuda.so and libfistapruner_cuda12.so, as attachment A of NVIDIA's licence for the CUDA Toolkit allows:\n"
                   "https://docs.nvidia.com/cuda/eula/\n")]
    rule = "=" * 80 + "\n"
    return ("This wheel contains, linked into its library, its program and its CUDA module:\n\n" +
            "".join(f"- {title}\n" for title, _ in parts) + "".join(f"\n{rule}{title}\n{rule}\n{text}" for title, text in parts))
