"""Results summarised over seeds, as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
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
        return f"{100 * self.mean:.1f} ± {100 * self.std:.1f}"


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
        users hold  method        eps 1
        iid         sums    62.5 ± 17.7
    """
    summary = summarise(rows, (*lines, column))
    orders = [list(dict.fromkeys(getattr(row, line) for row in rows)) for line in (*lines, column)]
    *names, columns = orders
    shown = [
        {TITLES.get(line, line): str(value) for line, value in zip(lines, name, strict=True)}
        | {_head(column, value): str(summary.get((*name, value), "-")) for value in columns}
        for name in product(*names)
        if any((*name, value) in summary for value in columns)
    ]
    return text_table(shown, left=len(lines))


def text_table(rows: Sequence[Mapping[str, str]], left: int = 1) -> str:
    """Lines of words below their names; the first `left` columns begin at the left.

    Examples:
        >>> print(text_table([{"name": "a", "n": "10"}, {"name": "long", "n": "5"}]))
        name   n
        a     10
        long   5
    """
    names = list(rows[0])
    lines = [names, *([row[name] for name in names] for row in rows)]
    widths = [max(map(len, words)) for words in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{word:<{width}}" if place < left else f"{word:>{width}}"
            for place, (word, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


TITLES = {"label": "method", "scheme": "users hold"}


def _head(column: str, value: Any) -> str:
    if column == "epsilon":
        return "not private" if value is None else f"eps {value:g}"
    return f"{value} {column}"
