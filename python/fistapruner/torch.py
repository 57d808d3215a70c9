# SPDX-License-Identifier: Apache-2.0
"""For PyTorch models in memory: prune() and to_semi_structured().

    import fistapruner.torch
    model = transformers.AutoModelForCausalLM.from_pretrained(...)
    windows = ...                                    # token ids, windows × length
    print(fistapruner.torch.prune(model, windows, pattern="2:4"))
    print(fistapruner.torch.to_semi_structured(model, tokens=4096))
"""
import copy
import ctypes
import re
import time
import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from . import _progress, prune_matrix
from ._decoder import (Call, Statistics, capture_calls, check_model, check_weight, dense_parameters, find_groups, find_layers, inputs_of,
                       operators_in, vocabulary_of, window_list)
from ._results import PruneResult
from ._semi_structured import SemiStructuredResult, to_semi_structured
from ._session import Error, Progress, Session, UsageError, encode, library

__all__ = ["prune", "to_semi_structured", "SemiStructuredResult"]

_OF_CHECKPOINTS = ("basis", "quantize", "allocate", "adapt", "sampler", "samples", "sequence_length")
_SEQUENTIAL = ("wanda", "sparsegpt", "admm", "alps")  # their scripts feed a layer with the pruned layers before it


def _preset_value(preset: str, family: str, name: str) -> str:
    with Session() as session:
        text = ctypes.create_string_buffer(512)
        session.check(library.fp_preset_value(session.context, encode(preset), encode(family), encode(name), text, len(text)))
        return text.value.decode()


class _Run:
    """One call of prune(). `dense` and `pruned` are the hidden states before the current layer, a
    tensor for each window; they are the same list while they do not differ."""

    def __init__(self, prefix: str, layers: Sequence[nn.Module], calls: List[Call], hidden: List[torch.Tensor], feed: str, mix: float,
                 chosen: Any, solve: Any, progress: Any):
        self.prefix, self.layers, self.calls = prefix, layers, calls
        self.dense = self.pruned = hidden
        self.feed, self.mix, self.chosen, self.solve, self.progress = feed, mix, chosen, solve, progress
        self.operators: List[Dict[str, Any]] = []
        self.total = sum(chosen(self.name(index, name)) for index, name, _ in operators_in(layers))

    def name(self, index: int, name: str) -> str:
        return f"{self.prefix}.{index}.{name}.weight"

    def prune_layer(self, index: int) -> None:
        layer, call = self.layers[index], self.calls[index]
        dense = copy.deepcopy(layer)
        corrected = self.feed in ("intra", "cross")
        groups = find_groups(layer, call, self.dense[0])
        groups = [kept for kept in ([name for name in names if self.chosen(self.name(index, name))] for names in groups) if kept]
        if not corrected:
            for names, statistics in zip(groups, self.measure(dense, call, self.pruned, groups)):
                self.prune_group(index, names, statistics)
        for position, names in enumerate(groups if corrected else []):
            # with "intra" both inputs are equal until an operator of the layer is pruned
            both = self.feed == "cross" and index > 0 or position > 0
            self.prune_group(index, names, self.measure_both(dense, layer, call, names) if both
                             else self.measure(dense, call, self.dense, [names])[0])
        before = self.dense
        if self.feed != "sequential":
            self.dense = [call.run(dense, hidden) for hidden in before]
        if self.feed in ("sequential", "cross"):
            self.pruned = [call.run(layer, hidden) for hidden in self.pruned]
            self.dense = self.pruned if self.feed == "sequential" else self.dense
        else:
            self.pruned = self.dense

    @staticmethod
    def measure(layer: nn.Module, call: Call, inputs: List[torch.Tensor], groups: List[List[str]]) -> List[Statistics]:
        """One pass for all groups."""
        sums = [Statistics() for _ in groups]
        names = [group[0] for group in groups]
        for hidden in inputs if names else []:
            found = inputs_of(layer, call, hidden, names)
            for name, statistics in zip(names, sums):
                statistics.add(found[name])
        return sums

    def measure_both(self, dense: nn.Module, pruned: nn.Module, call: Call, names: List[str]) -> Statistics:
        statistics = Statistics()
        for before, hidden in zip(self.dense, self.pruned):
            d = inputs_of(dense, call, before, names[:1])[names[0]]
            statistics.add(inputs_of(pruned, call, hidden, names[:1])[names[0]], d)
        return statistics

    def prune_group(self, index: int, names: List[str], statistics: Statistics) -> None:
        A = statistics.own.float().cpu().numpy()
        for name in names:
            linear = self.layers[index].get_submodule(name)
            W = linear.weight.detach().double()
            C, energy = statistics.target(W, self.mix) if statistics.cross is not None else (None, None)
            try:
                solution = self.solve(W.float().cpu().numpy(), A, None if C is None else C.float().cpu().numpy(), energy)
            except Error as error:
                error.args = (f"{self.name(index, name)}: {error}",)
                raise
            linear.weight.copy_(torch.from_numpy(solution.weights))
            self.operators.append({"name": self.name(index, name), "layer": index, "operator": name.rsplit(".", 1)[-1],
                                   "sparsity": float((linear.weight == 0).double().mean()),
                                   "relative_error": statistics.relative_error(W, linear.weight.detach().double())})
            if self.progress:
                self.progress("pruning", len(self.operators), self.total)


def _feed(method: str, correction: Optional[str], preset: str, family: str) -> Tuple[str, str]:
    """Which inputs a layer sees, and the correction of the method "fista"."""
    if method == "magnitude":
        return "none", ""
    if method in _SEQUENTIAL:
        return "sequential", ""
    correction = correction or _preset_value(preset, family, "correction")
    if correction not in ("none", "intra", "cross"):
        raise UsageError(f"correction '{correction}': must be none, intra or cross")
    return correction, correction


def _expression(name: str, text: str) -> Any:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{name} '{text}': is not a regular expression: {error}") from None


def _check_operators(prefix: str, layers: Sequence[nn.Module], chosen: Any) -> None:
    linear = [(f"{prefix}.{index}.{name}.weight", module) for index, name, module in operators_in(layers)]
    if not linear:
        raise UsageError(f"the decoder layers ({type(layers[0]).__name__}) have no nn.Linear; prune_checkpoint() may know the model")
    wanted = [row for row in linear if chosen(row[0])]
    if not wanted:
        raise UsageError(f"no linear operator was chosen; names are such as {linear[0][0]}")
    for name, module in wanted:
        check_weight(name, module)
    left = dense_parameters(layers)
    share = sum(size for _, size in left) / sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    if share > 0.1:
        warnings.warn(f"{share:.0%} of the decoder layers' weights are in no nn.Linear, such as {max(left, key=lambda row: row[1])[0]}, and "
                      "stay dense; prune_checkpoint() may prune them", stacklevel=3)


def prune(model: nn.Module, windows: Any, *, pattern: str = "50%", method: str = "fista", preset: str = "fast",
          correction: Optional[str] = None, mix: Optional[float] = None, only: str = "", skip: str = "",
          layers: Optional[nn.ModuleList] = None, progress: Progress = True, **settings: Any) -> PruneResult:
    """Prunes the nn.Linear operators of the model's decoder layers in place. Hooks collect the
    statistics of their inputs, layer by layer; the library solves.

    windows      token ids: a tensor of windows × length, or a list of windows of one length
    preset       "fast" (support search and refit) or "paper" (FISTA); with method="fista" only
    correction   "none", "intra" (errors within a layer) or "cross" (also of earlier layers); None: the preset's
    mix          with "cross": the weight of the dense model's inputs in the target; None: the preset's
    only, skip   regular expressions for the names of weights
    layers       the list of decoder layers; None: it is found

    What concerns whole checkpoints is not done here: the basis, the importance of rows, the update of
    biases and the fit of preset "best". For these use prune_checkpoint(). An error or Ctrl-C on the way
    leaves the operators that were pruned before it as they are then.
    """
    check_model(model)
    for name in _OF_CHECKPOINTS:
        if settings.get(name, "none") != "none":
            raise UsageError(f"{name}= has no effect on a model in memory: use prune_checkpoint()")
    if preset == "best":
        raise UsageError("preset 'best' fits whole layers, which needs a checkpoint: use prune_checkpoint(), or preset='fast'")
    family = str(getattr(getattr(model, "config", None), "model_type", ""))
    feed, correction = _feed(method, correction, preset, family)
    weight = 1.0 if feed != "cross" else float(_preset_value(preset, family, "mix")) if mix is None else mix
    prefix, found = find_layers(model) if layers is None else next(
        ((name, module) for name, module in model.named_modules() if module is layers), ("layers", layers))
    listener, began, training = _progress.listener(progress), time.monotonic(), model.training

    wanted, unwanted = _expression("only", only), _expression("skip", skip)

    def chosen(name: str) -> bool:
        return bool(wanted.search(name) and not (skip and unwanted.search(name)))

    def solve(W: Any, A: Any, C: Any, energy: Optional[float]) -> Any:
        return prune_matrix(W, A, C, energy=energy, pattern=pattern, family=family, method=method, preset=preset, **settings)

    with Session({"pattern": pattern, "method": method, "preset": preset, **settings}):
        pass  # are they valid?
    _check_operators(prefix, list(found), chosen)
    model.eval()
    try:
        with torch.no_grad():
            rows = window_list(windows, next(model.parameters()).device, vocabulary_of(model))
            calls, hidden = capture_calls(model, list(found), rows)
            run = _Run(prefix, list(found), calls, hidden, feed, weight, chosen, solve, listener)
            for index in range(len(found)):
                run.prune_layer(index)
    finally:
        model.train(training)
        if isinstance(listener, _progress.Bar):
            listener.close()
    count = len(run.operators)
    return PruneResult(model=type(model).__name__, pattern=pattern, method=method, **({"preset": preset, "correction": correction} if
                       method == "fista" else {}), layers=len(found), operators=run.operators,
                       sparsity=sum(row["sparsity"] for row in run.operators) / count,
                       relative_error=sum(row["relative_error"] for row in run.operators) / count, seconds=time.monotonic() - began)
