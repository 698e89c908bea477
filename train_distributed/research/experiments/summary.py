"""Results summarised over seeds, as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np

from train_distributed.simulation.plan import Result

BY = ("label", "scheme", "epsilon")


@dataclass(frozen=True)
class Summary:
    """Accuracy over seeds, beside what shows whether it is more than that of the largest class."""

    mean: float
    std: float
    seeds: int
    balanced: float | None = None  # mean balanced accuracy; None: an older result has none
    majority: float | None = None  # mean share of the largest class; None: likewise

    @classmethod
    def of(cls, rows: Sequence[Result]) -> Self:
        """Mean and sample deviation of one setting's rows."""
        values = [row.accuracy for row in rows]
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        beside = [mean_of(rows, name) for name in ("balanced", "majority")]
        return cls(float(np.mean(values)), std, len(values), *beside)

    def __str__(self) -> str:
        return self.to(1)

    def to(self, digits: int) -> str:
        """Per cent with so many decimals, balanced accuracy in brackets where it is known."""
        values = (f"{100 * value:.{digits}f}" for value in (self.mean, self.std))
        balanced = "" if self.balanced is None else f" ({100 * self.balanced:.{digits}f})"
        return " ± ".join(values) + balanced


def mean_of(rows: Iterable[Result], field: str) -> float | None:
    """Mean of a field; None unless all rows have it, as those of older results do not."""
    values = [getattr(row, field) for row in rows]
    return None if None in values or not values else float(np.mean(values))


def explained(rows: Sequence[Result], *, brackets: bool = True) -> str:
    """Line below a table of such summaries: the share of the largest class, and the brackets.

    Without `brackets`: where balanced accuracy is shown by nothing but its mean over all rows.

    Examples:
        >>> explained([Result("sums", "discriminant", "iid", 1.0, 0, 0.9, {}, "raw")])
        'always the largest class: unknown, balanced accuracy: unknown (an older version wrote it)'
    """
    majority, balanced = (mean_of(rows, name) for name in ("majority", "balanced"))
    level = "unknown" if majority is None else f"{100 * majority:.1f}"
    shown = "in brackets" if brackets else f"{100 * (balanced or 0):.1f} on average"
    words = "unknown" if balanced is None else shown
    older = " (an older version wrote it)" if None in (majority, balanced) else ""
    line = f"always the largest class: {level}, balanced accuracy: {words}{older}"
    return "\n".join([line, *_under_priors(rows)])


def _under_priors(rows: Sequence[Result]) -> list[str]:
    """Line of the mean accuracies under either prior, of the rows that know them, if they differ.

    Examples:
        >>> under = {"accuracy": 0.9, "balanced_accuracy": 0.8}
        >>> both = {"equal": under, "private": {"accuracy": 0.95, "balanced_accuracy": 0.7}}
        >>> _under_priors([Result("d", "d", "iid", 1.0, 0, 0.9, {}, "raw", by_prior=both)])
        ['with prior equal: 90.0 (80.0), private: 95.0 (70.0) on average']
    """
    known = [row.by_prior for row in rows if row.by_prior]
    if all(len({tuple(each.values()) for each in under.values()}) == 1 for under in known):
        return []
    means = {
        prior: [np.mean([under[prior][name] for under in known]) for name in known[0][prior]]
        for prior in known[0]
    }
    words = (f"{prior}: {100 * a:.1f} ({100 * b:.1f})" for prior, (a, b) in means.items())
    return [f"with prior {', '.join(words)} on average"]


def summarise(rows: Iterable[Result], by: Sequence[str] = BY) -> dict[tuple[Any, ...], Summary]:
    """Values of the fields `by` -> mean and sample deviation over the seeds of one setting.

    Of several settings in one group the best mean is shown, as the paper does per cell; that
    choice looks at the test split.
    """
    groups: dict[tuple[Any, ...], dict[str, list[Result]]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in by)
        setting = f"{row.method} {row.transform} {sorted(row.options.items())}"
        groups.setdefault(key, {}).setdefault(setting, []).append(row)
    return {
        key: max(map(Summary.of, of_setting.values()), key=lambda each: each.mean)
        for key, of_setting in groups.items()
    }


def table(
    rows: Sequence[Result], lines: Sequence[str] = ("scheme", "label"), column: str = "epsilon"
) -> str:
    """Accuracy in per cent: a line per value of the fields `lines`, a column per ε or users.

    Examples:
        >>> known = {"balanced": 0.5, "majority": 0.7}
        >>> cells = [
        ...     Result("sums", "discriminant", "iid", 1.0, seed, right, {}, "raw", **known)
        ...     for seed, right in enumerate((0.5, 0.75))
        ... ]
        >>> print(table(cells))
        users hold  method               eps 1
        iid         sums    62.5 ± 17.7 (50.0)
        always the largest class: 70.0, balanced accuracy: in brackets
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
    return f"{text_table(shown, left=len(lines))}\n{explained(rows)}"


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
