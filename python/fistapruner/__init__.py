# SPDX-License-Identifier: Apache-2.0
"""FISTAPruner: makes large language models sparse after training.

    prune_matrix()       one weight matrix, from the Gram matrix of its inputs
    prune_checkpoint()   a whole Hugging Face checkpoint
    distill()            all remaining weights of a pruned one, fitted to the dense model's predictions
    perplexity(), evaluate(), evaluate_tasks(), compare(), report_page(), inspect(), tokenize(),
    generate()
    pack(), unpack()     a checkpoint without its zeros, and back

    fistapruner.torch    models in memory: prune(), to_semi_structured()

Results are dictionaries that print as tables. Long calls show a bar in a terminal and in a notebook;
progress=False shows none, and progress=function gets (stage, done, total).

Settings are keyword arguments named like the flags of the command line and the names of --set, with
'_' for '-': method="wanda", preset="paper", samples=64, threads=4, refit_steps=50. settings() lists
them. Paths may be strings or path objects.
"""
import ctypes
import dataclasses
import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy

from . import _library
from ._results import Comparison, Document, Evaluation, Inspection, PruneResult, TaskResults
from ._session import (CheckError, Error, InputError, Interrupted, Log, Progress, Session, UsageError, encode, library, text_list)

__all__ = ["prune_matrix", "prune_checkpoint", "distill", "perplexity", "evaluate", "evaluate_tasks", "compare", "report_page", "inspect",
           "tokenize", "generate", "bench", "pack", "unpack", "settings", "Document", "PruneResult", "Evaluation", "TaskResults", "Comparison",
           "Inspection", "MatrixResult", "Setting", "Error", "UsageError", "InputError", "CheckError", "Interrupted"]
__version__: str = library.fp_version().decode()

Path = Union[str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class MatrixResult:
    """weights: V, float32
    error: ‖V X* − W X‖_F
    lambda_: that of the result, 0 if the method has none"""

    weights: numpy.ndarray
    error: float
    relative_error: float
    sparsity: float
    lambda_: float
    iterations: int

    def _rows(self) -> List[Any]:
        return [("weights", " × ".join(map(str, self.weights.shape))), ("sparsity", f"{self.sparsity:.2%}"), ("error", f"{self.error:.6g}"),
                ("relative_error", f"{self.relative_error:.4g}"), ("lambda", f"{self.lambda_:.4g}"), ("iterations", str(self.iterations))]

    def __str__(self) -> str:
        return "\n".join(f"{key:<14}  {value}" for key, value in self._rows())

    def _repr_html_(self) -> str:
        return "<table>" + "".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in self._rows()) + "</table>"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A row of the settings table. choices: the allowed words of a choice, separated by '|'."""

    name: str
    kind: str
    initial: str
    choices: str
    help: str


def _matrix(value: Any, name: str, shape: Sequence[Optional[int]]) -> numpy.ndarray:
    array = numpy.ascontiguousarray(value, dtype=numpy.float32)
    if array.ndim != 2 or any(wanted not in (None, got) for wanted, got in zip(shape, array.shape)):
        wanted_text = " × ".join("any" if size is None else str(size) for size in shape)
        raise UsageError(f"{name} must have the shape {wanted_text}, but has {' × '.join(map(str, array.shape)) or 'none'}")
    return array


def _least_energy(A: numpy.ndarray, C: numpy.ndarray) -> float:
    """tr(C A⁺ Cᵀ), the smallest ‖WX‖² consistent with A and C. It omits only error that no V can
    reduce."""
    values, vectors = numpy.linalg.eigh(A.astype(numpy.float64))
    kept = values > 1e-7 * max(values[-1], 0.0)
    projected = C.astype(numpy.float64) @ vectors[:, kept]
    return float((projected**2 / values[kept]).sum())


def prune_matrix(W: Any, A: Any, C: Any = None, *, energy: Optional[float] = None, pattern: str = "50%",
                 family: Optional[str] = None, progress: Progress = None, **settings: Any) -> MatrixResult:
    """Minimises ‖V X* − W X‖_F over all V with the pattern.

    W         weights, outputs × inputs, as in nn.Linear; W X is the operator's output for its dense
              inputs X (inputs × tokens)
    A         X* X*ᵀ, inputs × inputs, for the inputs X* of the pruned operator; with activations as
              rows it is x.T @ x
    C         W X X*ᵀ, outputs × inputs; None: X* = X
    energy    ‖W X‖²_F, with C; None: the smallest value consistent with A and C
    pattern   a share of zeros ("50%"), or N:M: N kept of M consecutive entries of a row ("2:4")
    family    "opt": presets use the paper's values for OPT

    Arrays may be anything that numpy can read. They are converted to float32 and not changed.
    """
    weights = _matrix(W, "W", (None, None))
    rows, cols = weights.shape
    gram = _matrix(A, "A", (cols, cols))
    target = None if C is None else _matrix(C, "C", (rows, cols))
    if target is not None and energy is None:
        energy = _least_energy(gram, target)
    result = numpy.empty_like(weights)
    report = _library.MatrixReport()
    problem = _library.MatrixProblem(rows, cols, weights.ctypes.data, gram.ctypes.data,
                                     None if target is None else target.ctypes.data, energy or 0.0,
                                     None if family is None else encode(family))
    with Session({"pattern": pattern, **settings}, progress) as session:
        session.check(library.fp_prune_matrix(result.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), ctypes.byref(report),
                                              session.context, ctypes.byref(problem), session.settings))
    return MatrixResult(result, report.error, report.relative_error, report.sparsity, getattr(report, "lambda"), report.iterations)


def _paths(value: Union[None, Path, Sequence[Path]]) -> Sequence[Path]:
    if value is None:
        return []
    return [value] if isinstance(value, (str, os.PathLike)) else value


def prune_checkpoint(model: Path, output: Optional[Path], calibration: Union[None, Path, Sequence[Path]] = None, *,
                     dry_run: bool = False, resume: bool = False, check: bool = False, progress: Progress = True,
                     metrics: Optional[Callable[[Dict[str, Any]], None]] = None, log: Optional[Log] = None,
                     **settings: Any) -> PruneResult:
    """Prunes `model` (a directory, or org/name[@revision] in the Hugging Face cache) and writes the
    directory `output`, which must not exist, or be empty. Returns the document that
    `fistapruner prune --json` prints.

    calibration   one or several text files; "self" or None: the model writes the text
    resume        continue an earlier identical call that was interrupted or killed
    check         also measure perplexity and divergence on calibration windows that the run does not use
    progress      True: a bar where one can be seen; False: none; or a function of (stage, done, total), whose
                  exceptions end the run without output
    metrics       called with a dictionary after each operator
    log           called with (level, text)
    """
    texts = _paths(calibration)
    with Session(settings, progress, log) as session:
        listener = _library.MetricsFunction(session.guarded(lambda _, line: metrics(json.loads(line)))) if metrics else \
            _library.MetricsFunction()
        request = _library.PruneRequest(encode(model), None if output is None else encode(output), text_list(texts), len(texts),
                                        int(dry_run), int(resume), 0, listener, None, None, 0, int(check))
        return session.document(PruneResult, library.fp_prune, ctypes.byref(request), session.settings)


def distill(model: Path, output: Path, reference: Path, calibration: Union[None, Path, Sequence[Path]] = None, *,
            progress: Progress = True, log: Optional[Log] = None, **settings: Any) -> Document:
    """Fits all remaining weights of the pruned checkpoint `model` to the predictions of `reference`, the dense model, on
    windows of the calibration text ("self" or None: `reference` writes it), and writes the directory `output`. Zeros stay
    zeros. The whole model must fit into memory. Returns the document that `fistapruner distill --json` prints: kl_before, kl_after, steps, …"""
    texts = _paths(calibration)
    with Session(settings, progress, log) as session:
        request = _library.DistillRequest(encode(model), encode(reference), encode(output), text_list(texts), len(texts))
        return session.document(Document, library.fp_distill, ctypes.byref(request), session.settings)


def evaluate(model: Path, text: Path, *, reference: Optional[Path] = None, progress: Progress = True,
             **settings: Any) -> Evaluation:
    """The document that `fistapruner eval --json` prints: perplexity, windows, tokens, protocol, …

    With a reference (the dense model) also kl, kl_stderr, kl_median, kl_p99, top1 and perplexity_ratio.
    """
    with Session(settings, progress) as session:
        return session.document(Evaluation, library.fp_evaluate_against, encode(model), None if reference is None else encode(reference),
                                encode(text), session.settings)


def perplexity(model: Path, text: Path, *, progress: Progress = True, **settings: Any) -> float:
    """Perplexity of a model on a text file, for example
    perplexity("pruned", "wiki.test.raw", protocol="wikitext2")."""
    return float(evaluate(model, text, progress=progress, **settings)["perplexity"])


def evaluate_tasks(model: Path, tasks: Mapping[str, Path], *, progress: Progress = True, **settings: Any) -> TaskResults:
    """Zero-shot accuracy on tasks, {name: file}."""
    with Session(settings, progress) as session:
        pairs = text_list([f"{name}={os.fspath(file)}" for name, file in tasks.items()])
        request = _library.TasksRequest(encode(model), pairs, len(pairs), _library.MetricsFunction(), None)
        return session.document(TaskResults, library.fp_evaluate_tasks, ctypes.byref(request), session.settings)


def compare(model: Path, calibration: Union[None, Path, Sequence[Path]], text: Path, *, recipe: Optional[str] = None,
            journal: Optional[Path] = None, progress: Progress = True, methods: Optional[Sequence[str]] = None,
            presets: Optional[Sequence[str]] = None, corrections: Optional[Sequence[str]] = None,
            patterns: Optional[Sequence[str]] = None, samples: Optional[Sequence[int]] = None, seeds: Optional[Sequence[int]] = None,
            **settings: Any) -> Comparison:
    """Evaluates the dense model, and prunes and evaluates it for every combination of method,
    preset, correction, pattern, sample count and seed. A list that is None is the recipe's. With a
    journal an interrupted comparison continues where it stopped. No pruned model is written.
    calibration as in prune_checkpoint()."""
    texts = _paths(calibration)
    lists = [None if values is None else encode(",".join(map(str, values)))
             for values in (methods, presets, corrections, patterns, samples, seeds)]
    with Session(settings, progress) as session:
        request = _library.CompareRequest(encode(model), text_list(texts), len(texts), encode(text),
                                          None if recipe is None else encode(recipe), *lists,
                                          None if journal is None else encode(journal))
        return session.document(Comparison, library.fp_compare, ctypes.byref(request), session.settings)


def report_page(document: Mapping[str, Any]) -> str:
    """A document of prune_checkpoint() or compare() as one self-contained HTML page."""
    with Session() as session:
        return session.text(library.fp_report_page, json.dumps(document).encode())


def inspect(model: Path, pattern: Optional[str] = None, *, progress: Progress = True) -> Inspection:
    """Architecture, parameters and sparsity. With a pattern, raises CheckError if an operator
    violates it."""
    with Session(progress=progress) as session:
        return session.document(Inspection, library.fp_inspect, encode(model), None if pattern is None else encode(pattern))


def pack(model: Path, output: Path, *, progress: Progress = True) -> Document:
    """Writes the safetensors checkpoint `model` as the directory `output`, which must not exist, or be
    empty, with every sparse matrix stored without its zeros. All functions read it like `model`. Returns
    the document that `fistapruner pack --json` prints."""
    with Session({}, progress) as session:
        return session.document(Document, library.fp_pack, encode(model), encode(output))


def unpack(model: Path, output: Path, *, progress: Progress = True) -> Document:
    """The files of a packed checkpoint as they were before pack(), to the byte."""
    with Session({}, progress) as session:
        return session.document(Document, library.fp_unpack, encode(model), encode(output))


def tokenize(model: Path, text: str) -> List[int]:
    """The token ids of a text, with the special tokens that the model's tokenizer adds."""
    content = text.encode()
    with Session() as session:
        ids: List[int] = session.document(Document, library.fp_tokenize, encode(model), None, content, len(content))["ids"]
        return ids


def generate(model: Path, prompt: Optional[str] = None, *, batch: Optional[Path] = None,
             text: Optional[Callable[[str], None]] = None, progress: Progress = None, log: Optional[Log] = None,
             **settings: Any) -> Document:
    """Continues a prompt, or with `batch` the prompts of a file of JSON lines ({"prompt": …}). Returns the
    document that `fistapruner generate --json` prints: results[] with text, ids, tokens and stop, and
    tokens_per_second.

    text   called with the parts of the text as they come; not with a batch

    generate("pruned", "Once upon a time", max_tokens=100, temperature=0.8, top_p=0.95, seed=1)
    """
    if (prompt is None) == (batch is None):
        raise UsageError("generate() needs either a prompt or a batch")
    content = (prompt or "").encode()
    with Session(settings, progress, log) as session:
        listener = _library.TextFunction(session.guarded(
            lambda _, place, size: text(ctypes.string_at(place, size).decode()))) if text else _library.TextFunction()
        request = _library.GenerateRequest(encode(model), content, len(content), None if batch is None else encode(batch), listener, None,
                                           _library.MetricsFunction(), None)
        return session.document(Document, library.fp_generate, ctypes.byref(request), session.settings)


def bench(model: Optional[Path] = None, *, progress: Progress = None, log: Optional[Log] = None, **settings: Any) -> Document:
    """Read bandwidth and matrix products of a device; with a model also its tokens per second, with
    weights dense and without their zeros. Returns the document that `fistapruner bench --json` prints."""
    with Session(settings, progress, log) as session:
        return session.document(Document, library.fp_bench, None if model is None else encode(model), session.settings)


def settings() -> List[Setting]:
    """Every setting with its default. A preset may change the defaults."""
    kinds, rows, index = ("int", "real", "flag", "text", "choice"), [], 0
    row = library.fp_setting_at(index)
    while row:
        info = row.contents
        rows.append(Setting(info.name.decode(), kinds[info.kind], info.initial.decode(), info.choices.decode(), info.help.decode()))
        index += 1
        row = library.fp_setting_at(index)
    return rows
