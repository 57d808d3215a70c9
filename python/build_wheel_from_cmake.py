# SPDX-License-Identifier: Apache-2.0
"""The build backend (PEP 517): builds the shared library with CMake and packs it with the Python
files. It uses the standard library only.

FISTAPRUNER_LIBRARY names a shared library that is already built. Without it `cmake --preset program`
runs in the source tree.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
LIBRARY = "libfistapruner.so.0"


def _version():
    return re.search(r"project\(fistapruner VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def _built_library():
    given = os.environ.get("FISTAPRUNER_LIBRARY")
    if given:
        return pathlib.Path(given)
    subprocess.run(["cmake", "--preset", "program"], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", "--preset", "program", "--target", "fistapruner_shared"], cwd=ROOT, check=True)
    return ROOT / "build" / "program" / "src" / LIBRARY


def _project(key):
    return re.search(rf'^{key} = "(.*)"$', (HERE / "pyproject.toml").read_text(), re.M).group(1)


def _metadata():
    return (f"Metadata-Version: 2.1\nName: fistapruner\nVersion: {_version()}\nSummary: {_project('description')}\n"
            f"License: Apache-2.0\nRequires-Python: {_project('requires-python')}\nRequires-Dist: numpy\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text())


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")  # works with any Python 3
    info = f"fistapruner-{_version()}.dist-info"
    content = {f"fistapruner/{path.name}": path.read_bytes() for path in sorted((HERE / "fistapruner").iterdir())
               if path.suffix == ".py" or path.name == "py.typed"}
    content[f"fistapruner/{LIBRARY}"] = _built_library().resolve().read_bytes()
    content[f"{info}/METADATA"] = _metadata().encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: fistapruner\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    content[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = ""
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"fistapruner-{_version()}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():  # a fixed date: the same tree gives the same bytes
            entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if path.endswith(LIBRARY) else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return name
