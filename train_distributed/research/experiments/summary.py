"""Results summarised over seeds, as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from train_distributed.simulation.plan import Result

BY = ("label", "scheme", "epsilon")


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int

    def __str__(self) -> str:
        return f"{100 * self.mean:5.1f} ± {100 * self.std:3.1f}"


def summarise(rows: Iterable[Result], by: Sequence[str] = BY) -> dict[tuple[Any, ...], Summary]:
    """Values of the fields `by` -> mean and sample deviation over the seeds of one setting.

    Of several settings in one group the best mean is shown, as the paper does per cell; that
    choice looks at the test split.
    """
    groups: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in by)
        setting = f"{row.method} {row.transform} {sorted(row.options.items())}"
        groups.setdefault(key, {}).setdefault(setting, []).append(row.accuracy)
    best = {key: max(of_setting.values(), key=np.mean) for key, of_setting in groups.items()}
    return {
        key: Summary(
            float(np.mean(values)),
            float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            len(values),
        )
        for key, values in best.items()
    }


def table(
    rows: Sequence[Result], lines: Sequence[str] = ("scheme", "label"), column: str = "epsilon"
) -> str:
    """Accuracy in per cent: a line per value of the fields `lines`, a column per ε or users.

    Examples:
        >>> cells = [
        ...     Result("sums", "class-sums", "iid", 1.0, seed, accuracy, {}, "raw")
        ...     for seed, accuracy in enumerate((0.5, 0.75))
        ... ]
        >>> print(table(cells))
        users hold  method         eps 1
        iid         sums     62.5 ± 17.7
    """
    summary = summarise(rows, (*lines, column))
    names = sorted({key[:-1] for key in summary}, key=lambda name: _first(rows, lines, name))
    columns = list(dict.fromkeys(getattr(row, column) for row in rows))
    heads = [_head(column, value) for value in columns]
    shown = [[*map(str, name)] for name in names]
    titles = [TITLES.get(line, line) for line in lines]
    widths = [max(map(len, values)) for values in zip(titles, *shown, strict=True)]
    text = [_line(titles, widths) + "".join(f"{head:>14}" for head in heads)]
    for name, words in zip(names, shown, strict=True):
        found = [summary.get((*name, value)) for value in columns]
        cells = "".join(f"{s!s:>14}" if s else f"{'-':>14}" for s in found)
        text.append(_line(words, widths) + cells)
    return "\n".join(text)


TITLES = {"label": "method", "scheme": "users hold"}


def _first(rows: Sequence[Result], lines: Sequence[str], name: tuple[Any, ...]) -> tuple[int, ...]:
    """Position at which each value of a line appears first, so that lines keep the plan's order."""
    orders = [list(dict.fromkeys(getattr(row, line) for row in rows)) for line in lines]
    return tuple(order.index(value) for order, value in zip(orders, name, strict=True))


def _head(column: str, value: Any) -> str:
    if column == "epsilon":
        return "not private" if value is None else f"eps {value:g}"
    return f"{value} {column}"


def _line(words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{word:{width}}" for word, width in zip(words, widths, strict=True))
