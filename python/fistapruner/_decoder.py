# SPDX-License-Identifier: Apache-2.0
"""The decoder layers of a PyTorch model, one at a time: their inputs, the inputs of their linear
operators by hooks, and sums over tokens of these."""
import dataclasses
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ._session import InputError, UsageError


class _Stop(Exception):
    """Ends a forward pass as soon as a hook has seen what it wants."""


@dataclasses.dataclass
class Call:
    """How a model calls one of its layers, besides the hidden states."""

    arguments: Tuple[Any, ...]
    keywords: Dict[str, Any]

    def run(self, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        output = layer(hidden, *self.arguments, **self.keywords)
        return output[0] if isinstance(output, tuple) else output


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, not {type(model).__name__}; prune_checkpoint() takes a path")
    for name, tensor in model.named_parameters():
        if tensor.is_meta:
            raise UsageError(f"{name} is on the meta device, without values: load the model's weights, without offloading")


def find_layers(model: nn.Module) -> Tuple[str, nn.ModuleList]:
    """The longest list of modules of one class that is in no other list (of experts, say): the decoder layers."""
    lists = [(name, module) for name, module in model.named_modules()
             if isinstance(module, nn.ModuleList) and len(module) > 0 and len({type(child) for child in module}) == 1]
    lists = [row for row in lists if not any(row[0].startswith(f"{name}.") for name, _ in lists)]
    if not lists:
        raise UsageError(f"{type(model).__name__} has no list of decoder layers; give it as layers=")
    return max(lists, key=lambda row: len(row[1]))


def vocabulary_of(model: nn.Module) -> Optional[int]:
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None


def window_list(windows: Any, device: torch.device, vocabulary: Optional[int]) -> List[torch.Tensor]:
    """Windows of token ids as tensors of 1 × length."""
    rule = "windows must be whole numbers, token ids: a tensor of windows × length, or a list of windows"
    if isinstance(windows, (str, Mapping)):
        raise UsageError(f"{rule}, not {type(windows).__name__}")
    try:
        rows = [torch.as_tensor(row, device=device) for row in windows]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{rule} ({error})") from None
    if not rows:
        raise UsageError("there are no windows of tokens")
    for row in rows:
        if row.is_floating_point() or row.dtype == torch.bool or row.dim() == 0 or row.numel() != row.shape[-1] or row.numel() == 0:
            raise UsageError(f"{rule}; a window has the shape {tuple(row.shape)} and the type {row.dtype}")
        if vocabulary and not 0 <= int(row.min()) <= int(row.max()) < vocabulary:
            raise UsageError(f"windows have token ids from {int(row.min())} to {int(row.max())}, and the model's vocabulary has {vocabulary}")
    if len({row.numel() for row in rows}) > 1:
        raise UsageError("windows must have the same length: masks and positions of the first are used for all")
    return [row.reshape(1, -1).long() for row in rows]


def capture_calls(model: nn.Module, layers: Sequence[nn.Module], windows: List[torch.Tensor]) -> Tuple[List[Call], List[torch.Tensor]]:
    """How the model calls each layer, and the first layer's input for every window."""
    calls: List[Call] = []
    inputs: List[torch.Tensor] = []

    def note_call(_: nn.Module, arguments: Tuple[Any, ...], keywords: Dict[str, Any]) -> None:
        kept = {name: value for name, value in keywords.items() if name != "hidden_states"}
        calls.append(Call(arguments[1:], kept))

    def note_input(_: nn.Module, arguments: Tuple[Any, ...], keywords: Dict[str, Any]) -> None:
        inputs.append(arguments[0] if arguments else keywords["hidden_states"])
        raise _Stop

    hooks = [layer.register_forward_pre_hook(note_call, with_kwargs=True) for layer in layers]
    try:
        model(windows[0], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if len(calls) != len(layers):
        raise UsageError(f"{len(layers)} decoder layers ({type(layers[0]).__name__}) were called {len(calls)} times in a forward pass; "
                         "give the list of the layers that are called one after the other as layers=")
    hook = layers[0].register_forward_pre_hook(note_input, with_kwargs=True)
    try:
        for window in windows:
            try:
                model(window, use_cache=False)
            except _Stop:
                pass
    finally:
        hook.remove()
    return calls, inputs


def find_groups(layer: nn.Module, call: Call, hidden: torch.Tensor) -> List[List[str]]:
    """The names of the layer's linear operators, in the order of their use; those with the same
    input are a group."""
    groups: List[Tuple[torch.Tensor, List[str]]] = []  # keeps the inputs, so that no address is used twice

    def note(name: str) -> Any:
        def hook(_: nn.Module, arguments: Tuple[Any, ...]) -> None:
            if any(name in names for _, names in groups):
                return
            for given, names in groups:
                if given.data_ptr() == arguments[0].data_ptr() and given.shape == arguments[0].shape:
                    names.append(name)
                    return
            groups.append((arguments[0], [name]))
        return hook

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    try:
        call.run(layer, hidden)
    finally:
        for hook in hooks:
            hook.remove()
    return [names for _, names in groups]


def inputs_of(layer: nn.Module, call: Call, hidden: torch.Tensor, names: Sequence[str]) -> Dict[str, torch.Tensor]:
    """The inputs of these operators as rows, in float. The pass ends with the last of them."""
    found: Dict[str, torch.Tensor] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, arguments: Tuple[Any, ...]) -> None:
            found.setdefault(name, arguments[0].detach().flatten(0, -2).float())
            if len(found) == len(names):
                raise _Stop
        return hook

    hooks = [layer.get_submodule(name).register_forward_pre_hook(note(name)) for name in names]
    try:
        call.run(layer, hidden)
    except _Stop:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return found


class Statistics:
    """Sums over tokens, in double, of the inputs x of the pruned operator and d of the dense one:
    own = XᵀX, cross = DᵀX and dense = DᵀD. Without d they are one."""

    def __init__(self) -> None:
        self.own: Any = None
        self.cross: Any = None
        self.dense: Any = None

    def add(self, x: torch.Tensor, d: Optional[torch.Tensor] = None) -> None:
        self.own = self._sum(self.own, x.T @ x)
        if d is not None:
            self.cross = self._sum(self.cross, d.T @ x)
            self.dense = self._sum(self.dense, d.T @ d)

    @staticmethod
    def _sum(total: Any, term: torch.Tensor) -> torch.Tensor:
        return term.double() if total is None else total.add_(term)

    def target(self, W: torch.Tensor, mix: float) -> Tuple[torch.Tensor, float]:
        """C and ‖T‖² of the target T = W(αX + (1 − α)X*) with α = mix (docs/algorithm.md)."""
        middle = mix * self.cross + (1 - mix) * self.own
        both = mix * mix * self.dense + mix * (1 - mix) * (self.cross + self.cross.T) + (1 - mix) ** 2 * self.own
        return W @ middle, float(((W @ both) * W).sum())

    def relative_error(self, W: torch.Tensor, V: torch.Tensor) -> float:
        """‖VX* − WX‖ / ‖WX‖"""
        if self.cross is None:
            output = float(((W @ self.own) * W).sum())
            squared = float((((V - W) @ self.own) * (V - W)).sum())
        else:
            output = float(((W @ self.dense) * W).sum())
            squared = float(((V @ self.own) * V).sum() - 2 * ((W @ self.cross) * V).sum()) + output
        return (max(squared, 0.0) / output) ** 0.5 if output > 0 else 0.0


def operators_in(layers: Sequence[nn.Module]) -> Iterator[Tuple[int, str, nn.Linear]]:
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                yield index, name, module


def check_weight(name: str, linear: nn.Linear) -> None:
    weight = linear.weight.detach()
    if weight.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64) or \
            weight.shape != (linear.out_features, linear.in_features):
        raise UsageError(f"{name}: {type(linear).__name__} with {weight.dtype} of shape {tuple(weight.shape)} is quantised; load the "
                         "model in float16, bfloat16 or float32")
    if not bool(torch.isfinite(weight).all()):
        raise InputError(f"{name}: has NaN or infinity")


def dense_parameters(layers: Sequence[nn.Module]) -> List[Tuple[str, int]]:
    """Name in its layer and size of each matrix that is not in an nn.Linear: packed experts, GPT-2's Conv1D."""
    linear = {id(module.weight) for _, _, module in operators_in(layers)}
    return [(name, parameter.numel()) for layer in layers for name, parameter in layer.named_parameters()
            if parameter.dim() > 1 and id(parameter) not in linear]
