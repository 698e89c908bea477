"""Which candidate a rehearsal favours."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from train_distributed.simulation.plan import Cell, Setting


@dataclass(frozen=True)
class Choice:
    """The candidate with the best mean accuracy in a rehearsal, for one ε."""

    setting: Setting
    accuracy: float  # in the rehearsal, not of the private run


def ranking(cells: Iterable[Cell]) -> dict[float | None, list[Choice]]:
    """Candidates by ε, best first, by mean accuracy over tasks and seeds; the first wins a tie."""
    values: dict[float | None, dict[str, tuple[Setting, list[float]]]] = {}
    for cell in cells:
        setting = Setting(cell.label, cell.method, cell.transform, cell.options)
        name = f"{cell.method} {cell.transform} {sorted(cell.options.items())}"
        of_epsilon = values.setdefault(cell.epsilon, {})
        of_epsilon.setdefault(name, (setting, []))[1].append(cell.accuracy)
    return {
        epsilon: sorted(
            (Choice(setting, float(np.mean(found))) for setting, found in of_epsilon.values()),
            key=lambda choice: -choice.accuracy,
        )
        for epsilon, of_epsilon in values.items()
    }
