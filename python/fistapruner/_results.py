# SPDX-License-Identifier: Apache-2.0
"""Documents that print as tables. They are dictionaries, the same that the program prints with
--json, whose keys can also be read as attributes."""
import html
from typing import Any, Dict, Iterable, List, Sequence, Tuple

Table = Tuple[Sequence[str], Sequence[Sequence[str]]]  # headers, rows


def number(value: Any, digits: int = 4) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{digits}g}" if abs(value) < 1 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(value: Any) -> str:
    return "" if value is None else f"{value:.2%}"


def aligned(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join("  ".join([line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]).rstrip()
                     for line in lines)


class Document(Dict[str, Any]):
    """A result. `shown` lists the keys of its summary as (key, format); without it all that are one value."""

    shown: Sequence[Tuple[str, Any]] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no key '{name}'") from None

    def _summary(self) -> List[Tuple[str, str]]:
        shown = self.shown or [(key, number) for key, value in self.items() if not isinstance(value, (dict, list))]
        return [(key, spell(self[key])) for key, spell in shown if self.get(key) is not None]

    def _tables(self) -> List[Table]:
        return []

    def __str__(self) -> str:
        rows = self._summary()
        width = max((len(key) for key, _ in rows), default=0)
        parts = ["\n".join(f"{key.ljust(width)}  {value}" for key, value in rows)] if rows else []
        return "\n\n".join(parts + [aligned(headers, lines) for headers, lines in self._tables() if lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def cells(tag: str, values: Sequence[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values) + "</tr>"

        text = "<table>" + "".join(f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>"
                                   for key, value in self._summary()) + "</table>"
        for headers, rows in self._tables():
            if rows:
                text += "<table>" + cells("th", headers) + "".join(cells("td", row) for row in rows) + "</table>"
        return text


class PruneResult(Document):
    """Of prune_checkpoint() and fistapruner.torch.prune()."""

    shown = (("model", str), ("output", str), ("pattern", str), ("method", str), ("preset", str), ("layers", number), ("sparsity", percent),
             ("relative_error", number), ("memory_bytes", number), ("seconds", number), ("device", str))

    def _summary(self) -> List[Tuple[str, str]]:
        check = self.get("check") or {}
        return super()._summary() + [(f"check: {key}", number(check[key])) for key in ("perplexity", "reference_perplexity", "kl")
                                     if key in check]

    def _tables(self) -> List[Table]:
        kinds: Dict[str, List[Dict[str, Any]]] = {}
        operators = self.get("operators")
        for operator in operators if isinstance(operators, list) else []:
            kinds.setdefault(operator["operator"], []).append(operator)
        rows = []
        for kind, group in kinds.items():
            errors = [operator["relative_error"] for operator in group]
            rows.append((kind, str(len(group)), percent(sum(operator["sparsity"] for operator in group) / len(group)),
                         number(sum(errors) / len(errors)), number(max(errors))))
        return [(("operator", "count", "sparsity", "mean error", "largest"), rows)]


class Evaluation(Document):
    """Of evaluate()."""

    shown = (("model", str), ("text", str), ("protocol", str), ("sequence_length", str), ("windows", number), ("tokens", number),
             ("perplexity", number), ("reference_perplexity", number), ("perplexity_ratio", number), ("kl", number), ("top1", percent))


class TaskResults(Document):
    """Of evaluate_tasks()."""

    shown = (("model", str), ("device", str))

    def _tables(self) -> List[Table]:
        return [(("task", "samples", "acc", "±", "acc_norm", "±"),
                 [(row["name"], number(row["samples"]), *(percent(row.get(key)) for key in
                   ("acc", "acc_stderr", "acc_norm", "acc_norm_stderr"))) for row in self.get("tasks", [])])]


class Comparison(Document):
    """Of compare()."""

    shown = (("model", str), ("text", str), ("sequence_length", str), ("windows", number), ("seconds", number))

    def _tables(self) -> List[Table]:
        return [(("method", "pattern", "samples", "seed", "sparsity", "perplexity", "KL"),
                 [(row.get("preset") or row["method"], row.get("pattern") or "", number(row.get("samples")), number(row.get("seed")),
                   percent(row.get("sparsity")), number(row.get("perplexity")), number(row.get("kl"))) for row in self.get("rows", [])])]


class Inspection(Document):
    """Of inspect()."""

    shown = (("model", str), ("architecture", str), ("dtype", str), ("layers", number), ("parameters", number), ("sparsity", percent),
             ("total_sparsity", percent), ("pattern", str), ("violations", number))

    def _tables(self) -> List[Table]:
        rows = [(row["name"], " × ".join(map(str, row["shape"])), row["dtype"], percent(row["sparsity"])) for row in self.get("tensors", [])]
        if len(rows) > 40:  # a model's tensors, not its summary
            rows = [*rows[:20], ("…", "", "", ""), *rows[-20:]]
        return [(("tensor", "shape", "dtype", "sparsity"), rows)]
