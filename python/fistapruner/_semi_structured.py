# SPDX-License-Identifier: Apache-2.0
"""2:4 operators as PyTorch's semi-structured sparse tensors, where that is faster."""
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from . import _progress
from ._results import Document, Table, number
from ._session import Progress

_TYPES = (torch.float16, torch.bfloat16)


class SemiStructuredResult(Document):
    """Of to_semi_structured(). `operators` has the times in milliseconds."""

    shown = (("tokens", number), ("converted", number), ("left", number), ("device", str), ("note", str))

    def _tables(self) -> List[Table]:
        return [(("operator", "shape", "dense ms", "sparse ms", "faster", "result"),
                 [(row["name"], " × ".join(map(str, row["shape"])), number(row.get("dense_ms")), number(row.get("sparse_ms")),
                   f"{row['dense_ms'] / row['sparse_ms']:.2f}x" if row.get("sparse_ms") else "", row["result"])
                  for row in self["operators"]])]


def is_2_of_4(weight: torch.Tensor) -> bool:
    """At most two of each four consecutive entries of a row are not zero, and some are."""
    if weight.dim() != 2 or weight.shape[1] % 4 != 0:
        return False
    return bool(((weight.reshape(-1, 4) != 0).sum(1) <= 2).all()) and bool((weight != 0).any())


def convert(weight: torch.Tensor, x: torch.Tensor, fused: bool, searched: bool) -> torch.Tensor:
    """The sparse tensor. `fused`: its products with rows of inputs are stored by rows, as those of dense weights are, and
    not by columns. `searched`: with the algorithm that cuSPARSELt's search finds best for inputs like x."""
    sparse: Any = torch.sparse.to_sparse_semi_structured(weight)
    if getattr(sparse, "fuse_transpose_cusparselt", None) is None:
        return sparse  # CUTLASS
    sparse.fuse_transpose_cusparselt = fused
    if searched:
        sparse.alg_id_cusparselt = int(torch._cslt_sparse_mm_search(sparse.packed, x.t(), transpose_result=fused))  # type: ignore[attr-defined]
    return sparse


def by_rows(module: nn.Module, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """A hook: a searched algorithm is refused for inputs that lie by columns."""
    return (inputs[0].contiguous(), *inputs[1:])


def milliseconds(work: Callable[[], Any], repeats: int = 10, rounds: int = 4) -> float:
    """Of one call as Python makes it, on the GPU; the best round, because clocks rise and fall."""
    times = []
    for _ in range(rounds + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) / repeats)
    return min(times[1:])  # the first one warms up


def _try(linear: nn.Linear, tokens: int, gain: float) -> Dict[str, Any]:
    """Converts the operator if that pays; what was found."""
    weight = linear.weight.detach()
    if not weight.is_cuda:
        return {"result": "left: not on a GPU"}
    if weight.dtype not in _TYPES:
        return {"result": f"left: {weight.dtype}, not float16 or bfloat16"}
    x = torch.randn(tokens, weight.shape[1], device=weight.device, dtype=weight.dtype)
    dense = linear.weight
    row: Dict[str, Any] = {"dense_ms": milliseconds(lambda: linear(x)), "result": ""}
    hook = linear.register_forward_pre_hook(by_rows)
    # the first that runs here; fused products in float16 take 100 times as long (cuSPARSELt 0.8 on an H200), and their
    # search ends in an error that nothing can be done after
    layouts = (True, False) if weight.dtype == torch.bfloat16 else (False,)
    for fused, searched in [(fused, searched) for fused in layouts for searched in (True, False)]:
        try:
            linear.weight = nn.Parameter(convert(weight, x, fused, searched), requires_grad=False)
            linear(x[:1])  # with any number of rows
            row["sparse_ms"] = milliseconds(lambda: linear(x))
            break
        except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:  # a shape or a GPU that it does not take
            row["result"] = f"left: {(str(error).splitlines() or [type(error).__name__])[0]}"
    if "sparse_ms" in row:
        row["result"] = "converted" if row["dense_ms"] > gain * row["sparse_ms"] else "left: not faster"
    if row["result"] != "converted":
        hook.remove()
        linear.weight = dense
    return row


def to_semi_structured(model: nn.Module, tokens: int = 4096, *, gain: float = 1.0, progress: Progress = True) -> SemiStructuredResult:
    """Replaces the weights of 2:4 nn.Linear operators by PyTorch's semi-structured sparse tensors
    wherever a product with `tokens` rows of inputs becomes more than `gain` times as fast, measured
    here, as called from Python. Other operators stay as they are. Needs a GPU of compute capability
    8.0 or later and float16 or bfloat16 weights; convert the model first."""
    found: List[Tuple[str, nn.Linear]] = [(name, module) for name, module in model.named_modules()
                                          if isinstance(module, nn.Linear) and is_2_of_4(module.weight.detach())]
    listener: Optional[Any] = _progress.listener(progress)
    rows = []
    with torch.no_grad():
        for count, (name, linear) in enumerate(found):
            shape = list(linear.weight.shape)
            rows.append({"name": name, "shape": shape, **_try(linear, tokens, gain)})
            if listener:
                listener("measuring", count + 1, len(found))
    if isinstance(listener, _progress.Bar):
        listener.close()
    converted = sum(row["result"] == "converted" for row in rows)
    return SemiStructuredResult(tokens=tokens, converted=converted, left=len(rows) - converted, operators=rows,
                                device=torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
                                **({} if found else {"note": "no nn.Linear is 2:4: prune with pattern=\"2:4\" first"}))
