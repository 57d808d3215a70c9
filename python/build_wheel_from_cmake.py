# SPDX-License-Identifier: Apache-2.0
"""The build backend (PEP 517): builds library, program and CUDA module with CMake and packs them with
the Python files and the demo's models. It uses the standard library only.

    pip install ./python                       for this machine, with its libraries
    pip wheel --no-deps --config-settings portable=1 ./python
                                              for others: everything but an old glibc is inside

The environment variable FISTAPRUNER_BUILD names a build folder that is packed as it is. FISTAPRUNER_NVCC12
names a compiler of CUDA 12: a portable wheel then has a second CUDA module, which it makes.
"""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import zipfile

import wheel_contents

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CMAKE = (3, 25)  # of cmake_minimum_required()
# "#!python": pip puts its own interpreter there. The package is not imported, which takes longer.
SCRIPT = """#!python
import importlib.util, os, runpy
folder = os.path.dirname(importlib.util.find_spec("fistapruner").origin)
runpy.run_path(os.path.join(folder, "_command.py"), run_name="__main__")
"""


def _fail(text):
    raise SystemExit(f"fistapruner: {text}")


def _version():
    return re.search(r"project\(fistapruner VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def _project(key):
    return re.search(rf'^{key} = "(.*)"$', (HERE / "pyproject.toml").read_text(), re.M).group(1)


def _metadata():
    return (f"Metadata-Version: 2.1\nName: fistapruner\nVersion: {_version()}\nSummary: {_project('description')}\n"
            f"License: Apache-2.0\nRequires-Python: {_project('requires-python')}\nRequires-Dist: numpy\n"
            "Provides-Extra: cuda\nRequires-Dist: nvidia-cublas>=13,<14; extra == 'cuda'\n"
            "Requires-Dist: nvidia-cusolver>=12,<13; extra == 'cuda'\n"
            "Provides-Extra: cuda12\nRequires-Dist: nvidia-cublas-cu12; extra == 'cuda12'\n"
            "Requires-Dist: nvidia-cusolver-cu12; extra == 'cuda12'\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text())


def _run(*command):
    """A command whose output matters only if it fails; a configuration fails with one line."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return
    reason = re.search(r"^CMake Error.*:\n((?:\n|  .*\n)+)", done.stdout, re.M)
    if reason:
        text = " ".join(reason.group(1).split())
        _fail(text if "./setup" in text else f"{text}; ./setup --build installs what is needed")
    print(done.stdout[-4000:])
    _fail(f"'{' '.join(command)}' failed; its output is above")


def _build_folder(config_settings):
    given = os.environ.get("FISTAPRUNER_BUILD")
    if given:
        return ROOT / given
    preset = "wheel" if (config_settings or {}).get("portable") else "program"
    _run("cmake", "--preset", preset)
    _run("cmake", "--build", "--preset", preset)
    older = os.environ.get("FISTAPRUNER_NVCC12")
    if preset == "wheel" and older:
        _run("cmake", "--preset", "wheel-cuda12", f"-DCMAKE_CUDA_COMPILER={older}")
        _run("cmake", "--build", "--preset", "wheel-cuda12")
    return ROOT / "build" / preset


def _program_is_new_enough(name, wanted):
    if not shutil.which(name):
        return False
    text = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", text)
    return bool(found) and tuple(map(int, found.groups())) >= wanted


def get_requires_for_build_wheel(config_settings=None):
    """The first thing that pip asks for: the place to say what only the system can provide."""
    if os.environ.get("FISTAPRUNER_BUILD"):
        return []
    missing = [name for name in ("gcc", "pkg-config") if not shutil.which(name)]
    if missing:
        _fail(f"{' and '.join(missing)} not found; run ./setup --build in the clone, or install a wheel that is already built")
    requirements = ["cmake>=3.25"] if not _program_is_new_enough("cmake", CMAKE) else []
    requirements += ["ninja"] if not shutil.which("ninja") else []
    return requirements + (["ziglang"] if (config_settings or {}).get("portable") and not shutil.which("zig") else [])


def _pack(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in content.items():  # a fixed date: the same tree gives the same bytes
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            program = "/native/bin/" in name or "/native/lib/" in name or "/scripts/" in name
            entry.external_attr = (0o100755 if program else 0o100644) << 16  # pip wants the bit of a plain file too
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    native = wheel_contents.native_files(_build_folder(config_settings), ROOT)
    tag, portable = wheel_contents.platform_tag(native)
    name = f"fistapruner-{_version()}"
    content = {f"fistapruner/{path.name}": path.read_bytes() for path in sorted((HERE / "fistapruner").iterdir())
               if path.suffix == ".py" or path.name == "py.typed"}
    content.update({f"fistapruner/native/{inside}": path.read_bytes() for inside, path in native.items()})
    content[f"{name}.data/scripts/fistapruner"] = SCRIPT.encode()
    content[f"{name}.dist-info/METADATA"] = _metadata().encode()
    content[f"{name}.dist-info/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: fistapruner\nRoot-Is-Purelib: false\n" + "".join(
        f"Tag: py3-none-{part}\n" for part in tag.split("."))).encode()
    content[f"{name}.dist-info/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    if portable:
        content[f"{name}.dist-info/licenses/THIRD_PARTY.txt"] = wheel_contents.licences("lib/libfistapruner_cuda.so" in native).encode()
    record = ""
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    content[f"{name}.dist-info/RECORD"] = f"{record}{name}.dist-info/RECORD,,\n".encode()
    file = f"{name}-py3-none-{tag}.whl"  # works with any Python 3
    _pack(os.path.join(wheel_directory, file), content)
    return file
