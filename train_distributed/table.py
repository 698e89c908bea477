"""Cells summarised over seeds, as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from train_distributed.experiment import Cell


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int

    def __str__(self) -> str:
        return f"{100 * self.mean:5.1f} ± {100 * self.std:3.1f}"


def summarise(rows: Iterable[Cell]) -> dict[tuple[str, str, float | None], Summary]:
    """(label, scheme, ε) -> mean and sample deviation over the seeds of one setting.

    Of several settings under one label the best mean is shown, as the paper does per cell; that
    choice looks at the test split.
    """
    groups: dict[tuple[str, str, float | None], dict[str, list[float]]] = {}
    for row in rows:
        key = (row.label, row.scheme, row.epsilon)
        setting = f"{row.transform} {sorted(row.options.items())}"
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


def best(rows: Iterable[Cell]) -> dict[tuple[str, float | None], Summary]:
    """(scheme, ε) -> the summary of the label with the best mean; that choice looks at the test."""
    found: dict[tuple[str, float | None], Summary] = {}
    for (_, scheme, epsilon), summary in summarise(rows).items():
        key = (scheme, epsilon)
        found[key] = max(found.get(key, summary), summary, key=lambda one: one.mean)
    return found


def table(rows: Sequence[Cell]) -> str:
    """Accuracy in per cent: a line per method and partition, a column per ε."""
    summary = summarise(rows)
    labels = list(dict.fromkeys(row.label for row in rows))
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    epsilons = list(dict.fromkeys(row.epsilon for row in rows))
    width = max(len(label) for label in labels)
    heads = ["not private" if e is None else f"eps {e:g}" for e in epsilons]
    lines = [f"{'method':{width}}  {'users hold':10}" + "".join(f"{h:>14}" for h in heads)]
    for scheme in schemes:
        for label in labels:
            found = [summary.get((label, scheme, epsilon)) for epsilon in epsilons]
            values = "".join(f"{s!s:>14}" if s else f"{'-':>14}" for s in found)
            lines.append(f"{label:{width}}  {scheme:10}{values}")
    return "\n".join(lines)
