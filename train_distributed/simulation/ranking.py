"""Choice of a candidate after a rehearsal."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from train_distributed.simulation.plan import MethodConfig, Result

TIE = 0.002  # of accuracy


@dataclass(frozen=True)
class Choice:
    """The candidate with the best mean accuracy in a rehearsal, for one ε."""

    setting: MethodConfig
    accuracy: float  # balanced, in the rehearsal, not of the private run

    @property
    def twin(self) -> tuple[object, ...]:
        """Equal for settings that differ in the moments' weight alone."""
        others = {k: v for k, v in self.setting.options.items() if k != "alpha"}
        return self.setting.method, self.setting.transform, sorted(others.items())


def ranking(cells: Iterable[Result]) -> dict[float | None, list[Choice]]:
    """Candidates by ε, best first, by mean accuracy over tasks and seeds; the first wins a tie.

    Of candidates that differ in the moments' weight alone, by less than `TIE`, the heavier comes
    first: a rehearsal has fewer rows than the run, and what those leave open of the moments hides
    what their noise does.

    Examples:
        >>> def cell(method: str, accuracy: float) -> Result:
        ...     return Result(method, method, "iid", 1.0, 0, accuracy, {}, "default")
        >>> best = ranking([cell("softmax", 0.5), cell("class-sums", 0.6), cell("softmax", 0.8)])
        >>> [(choice.setting.method, round(choice.accuracy, 2)) for choice in best[1.0]]
        [('softmax', 0.65), ('class-sums', 0.6)]
    """
    values: dict[float | None, dict[str, tuple[MethodConfig, list[float]]]] = {}
    for cell in cells:
        setting = MethodConfig(cell.label, cell.method, cell.transform, cell.options)
        name = f"{cell.method} {cell.transform} {sorted(cell.options.items())}"
        of_epsilon = values.setdefault(cell.epsilon, {})
        of_epsilon.setdefault(name, (setting, []))[1].append(
            cell.accuracy if cell.balanced is None else cell.balanced
        )
    return {
        epsilon: _heaviest_first(
            sorted(
                (Choice(setting, float(np.mean(found))) for setting, found in of_epsilon.values()),
                key=lambda choice: -choice.accuracy,
            )
        )
        for epsilon, of_epsilon in values.items()
    }


def _heaviest_first(ranked: list[Choice]) -> list[Choice]:
    best = ranked[0]
    twins = [each for each in ranked if each.twin == best.twin]
    near = [each for each in twins if best.accuracy - each.accuracy < TIE]
    first = max(near, key=lambda each: each.setting.options.get("alpha") or 0.0)
    return [first, *(each for each in ranked if each is not first)]
