# SPDX-License-Identifier: Apache-2.0
"""The C interface for ctypes; tests/test_declarations.py compares it with the headers."""
import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import List

NAME = "libfistapruner.so.0"

LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
ProgressFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_int64, c_int64)
MetricsFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
TextFunction = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64)  # bytes and their number, without a NUL


class PruneRequest(Structure):
    _fields_ = [("model", c_char_p), ("output", c_char_p), ("calibration", POINTER(c_char_p)), ("calibration_count", c_int),
                ("dry_run", c_int), ("resume", c_int), ("ranks", c_int), ("metrics", MetricsFunction),
                ("metrics_data", c_void_p), ("kept", POINTER(c_int64)), ("hidden_errors", c_int), ("check", c_int)]


class DistillRequest(Structure):
    _fields_ = [("model", c_char_p), ("reference", c_char_p), ("output", c_char_p), ("calibration", POINTER(c_char_p)),
                ("calibration_count", c_int)]


class TasksRequest(Structure):
    _fields_ = [("model", c_char_p), ("tasks", POINTER(c_char_p)), ("task_count", c_int), ("sampled", MetricsFunction),
                ("sampled_data", c_void_p)]


class CompareRequest(Structure):
    _fields_ = [("model", c_char_p), ("calibration", POINTER(c_char_p)), ("calibration_count", c_int), ("text", c_char_p),
                ("recipe", c_char_p), ("methods", c_char_p), ("presets", c_char_p), ("corrections", c_char_p), ("patterns", c_char_p),
                ("samples", c_char_p), ("seeds", c_char_p), ("journal", c_char_p)]


class GenerateRequest(Structure):
    _fields_ = [("model", c_char_p), ("prompt", c_char_p), ("prompt_size", c_int64), ("batch", c_char_p), ("text", TextFunction),
                ("text_data", c_void_p), ("finished", MetricsFunction), ("finished_data", c_void_p)]


class MatrixProblem(Structure):
    _fields_ = [("rows", c_int64), ("cols", c_int64), ("weights", c_void_p), ("gram", c_void_p), ("target", c_void_p),
                ("energy", c_double), ("family", c_char_p)]


class MatrixReport(Structure):
    _fields_ = [("error", c_double), ("relative_error", c_double), ("sparsity", c_double), ("lambda", c_double),
                ("iterations", c_int64)]


class SettingInfo(Structure):
    _fields_ = [("kind", c_int), ("name", c_char_p), ("initial", c_char_p), ("minimum", c_double), ("maximum", c_double),
                ("choices", c_char_p), ("commands", c_char_p), ("help", c_char_p)]


class PresetInfo(Structure):
    _fields_ = [("name", c_char_p), ("title", c_char_p), ("description", c_char_p)]


class MethodInfo(Structure):
    _fields_ = [("name", c_char_p), ("title", c_char_p), ("description", c_char_p)]


class TaskInfo(Structure):
    _fields_ = [("name", c_char_p), ("file", c_char_p), ("source", c_char_p)]


STRUCTURES = {"fp_prune_request": PruneRequest, "fp_distill_request": DistillRequest, "fp_tasks_request": TasksRequest,
              "fp_compare_request": CompareRequest, "fp_generate_request": GenerateRequest,
              "fp_matrix_problem": MatrixProblem, "fp_matrix_report": MatrixReport, "fp_setting_info": SettingInfo,
              "fp_preset_info": PresetInfo, "fp_method_info": MethodInfo, "fp_task_info": TaskInfo}

# name: (result, arguments). A text that the caller frees is declared as a void pointer, because
# ctypes converts c_char_p to bytes and loses the address.
FUNCTIONS = {
    "fp_version": (c_char_p, []),
    "fp_build_id": (c_char_p, []),
    "fp_build_commit": (c_char_p, []),
    "fp_openblas_kernel": (c_char_p, []),
    "fp_text_free": (None, [c_void_p]),
    "fp_context_new": (c_void_p, []),
    "fp_context_free": (None, [c_void_p]),
    "fp_context_message": (c_char_p, [c_void_p]),
    "fp_context_set_log": (None, [c_void_p, LogFunction, c_void_p, c_int]),
    "fp_context_set_progress": (None, [c_void_p, ProgressFunction, c_void_p]),
    "fp_context_set_interrupt": (None, [c_void_p, POINTER(c_int)]),
    "fp_settings_new": (c_int, [POINTER(c_void_p), c_void_p]),
    "fp_settings_free": (None, [c_void_p]),
    "fp_settings_set": (c_int, [c_void_p, c_void_p, c_char_p, c_char_p]),
    "fp_settings_assign": (c_int, [c_void_p, c_void_p, c_char_p]),
    "fp_settings_get": (c_int, [c_void_p, c_void_p, c_char_p, c_char_p, c_size_t]),
    "fp_setting_at": (POINTER(SettingInfo), [c_size_t]),
    "fp_method_at": (POINTER(MethodInfo), [c_size_t]),
    "fp_task_at": (POINTER(TaskInfo), [c_size_t]),
    "fp_preset_at": (POINTER(PresetInfo), [c_size_t]),
    "fp_preset_value": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "fp_method_title": (c_char_p, [c_char_p, c_char_p]),
    "fp_status_name": (c_char_p, [c_int]),
    "fp_status_text": (c_char_p, [c_int]),
    "fp_status_exit_code": (c_int, [c_int]),
    "fp_prune": (c_int, [POINTER(c_void_p), c_void_p, POINTER(PruneRequest), c_void_p]),
    "fp_distill": (c_int, [POINTER(c_void_p), c_void_p, POINTER(DistillRequest), c_void_p]),
    "fp_evaluate": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p, c_void_p]),
    "fp_evaluate_against": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p, c_char_p, c_void_p]),
    "fp_evaluate_tasks": (c_int, [POINTER(c_void_p), c_void_p, POINTER(TasksRequest), c_void_p]),
    "fp_compare": (c_int, [POINTER(c_void_p), c_void_p, POINTER(CompareRequest), c_void_p]),
    "fp_report_page": (c_int, [POINTER(c_void_p), c_void_p, c_char_p]),
    "fp_inspect": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p]),
    "fp_pack": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p]),
    "fp_unpack": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p]),
    "fp_bench": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_void_p]),
    "fp_tokenize": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, c_char_p, c_char_p, c_int64]),
    "fp_generate": (c_int, [POINTER(c_void_p), c_void_p, POINTER(GenerateRequest), c_void_p]),
    "fp_prune_matrix": (c_int, [POINTER(c_float), POINTER(MatrixReport), c_void_p, POINTER(MatrixProblem), c_void_p]),
}


def _candidates() -> List[str]:
    """FISTAPRUNER_LIBRARY, or the libraries of the wheel, of this tree and of the system."""
    chosen = os.environ.get("FISTAPRUNER_LIBRARY")
    if chosen:
        return [chosen]
    here = pathlib.Path(__file__).resolve().parent
    found = [str(path) for path in [here / "native" / "lib" / NAME] if path.exists()]
    root = here.parent.parent
    found += [str(path) for preset in ("default", "program") for path in [root / "build" / preset / "src" / NAME] if path.exists()]
    return found + [NAME]


def _open(path: str) -> ctypes.CDLL:
    """Limits how long the library's own OpenMP threads spin before they sleep, as the program does
    (src/cli/main.c); they read the variable when they are loaded."""
    limited = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ)
    if limited:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        return ctypes.CDLL(path)
    finally:
        if limited:
            del os.environ["GOMP_SPINCOUNT"]


def load() -> ctypes.CDLL:
    failures = []
    for path in _candidates():
        try:
            library = _open(path)
            break
        except OSError as error:
            failures.append(str(error))
    else:
        raise ImportError(f"{NAME} cannot be loaded ({'; '.join(failures)}); install it, or set FISTAPRUNER_LIBRARY to its path")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
