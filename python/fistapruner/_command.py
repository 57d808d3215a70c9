# SPDX-License-Identifier: Apache-2.0
"""Starts the program that is in a wheel, and finds NVIDIA's libraries. Imports nothing of the package:
the command `fistapruner` runs this file alone, because that is quicker."""
import importlib.util
import os
import sys
from typing import List

NATIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
CUDA_LIBRARIES = ("libcublas.so.13", "libcusolver.so.12")  # what the CUDA module of a wheel needs


def cuda_folders() -> List[str]:
    """Folders of NVIDIA's Python packages with these libraries, unless the module finds them by
    itself, beside the package. They are elsewhere if the package is in a virtual environment that
    sees the packages of the system, for example."""
    beside = os.path.join(os.path.dirname(os.path.dirname(NATIVE)), "nvidia")
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    found = []
    for root in list(spec.submodule_search_locations or []) if spec else []:
        for package in sorted(os.listdir(root)) if os.path.isdir(root) else []:
            folder = os.path.join(root, package, "lib")
            if any(os.path.exists(os.path.join(folder, name)) for name in CUDA_LIBRARIES):
                if os.path.realpath(root) == os.path.realpath(beside):
                    return []
                found.append(folder)
    return found


def main() -> None:
    program = os.path.join(NATIVE, "bin", "fistapruner")
    folders = cuda_folders()
    if folders:
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(([before] if before else []) + folders)
    try:
        os.execv(program, sys.argv)
    except OSError as error:
        sys.exit(f"fistapruner: {program} cannot be started: {error.strerror}; install the wheel again")


if __name__ == "__main__":
    main()
