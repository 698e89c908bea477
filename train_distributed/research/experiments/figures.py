"""Results summarised over seeds: as text, and as a figure that is readable without its text.

Lines of the figure that coincide are drawn once, with both names. Dashed is balanced accuracy,
where it is another one, and grey what needs no model.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train_distributed.simulation.plan import Result

BY = ("label", "scheme", "epsilon")
TITLES = {"label": "method", "scheme": "users hold"}
AXES = {"epsilon": "privacy loss ε of one replaced record", "users": "number of users"}
WORDS = {"epsilon": "ε = {}", "users": "{} users"}
SCHEMES = {
    "iid": "pictures dealt at random",
    "one-class": "users with one class each",
    "by-writer": "users are writers",
}
SAME = 0.005  # of accuracy: lines that are never further apart are one


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
        """Per cent with so many decimals, balanced accuracy in brackets where it is known.

        One seed has no deviation.
        """
        spread = f" ± {100 * self.std:.{digits}f}" if self.seeds > 1 else ""
        balanced = "" if self.balanced is None else f" ({100 * self.balanced:.{digits}f})"
        return f"{100 * self.mean:.{digits}f}{spread}{balanced}"


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
    """Line of the mean accuracies under either prior, of the rows that know them, unless alike.

    Examples:
        >>> under = {"accuracy": 0.9, "balanced_accuracy": 0.8}
        >>> both = {"equal": under, "private": {"accuracy": 0.95, "balanced_accuracy": 0.7}}
        >>> _under_priors([Result("d", "d", "iid", 1.0, 0, 0.9, {}, "raw", by_prior=both)])
        ['with prior equal: 90.0 (80.0), private: 95.0 (70.0) on average']
    """
    words, known = dict[str, str](), [row.by_prior for row in rows if row.by_prior]
    for prior in known[0] if known else ():
        a, b = (np.mean([under[prior][name] for under in known]) for name in known[0][prior])
        words[prior] = f"{100 * a:.1f} ({100 * b:.1f})"
    if len({*words.values()}) < 2:
        return []
    return [f"with prior {', '.join(map(': '.join, words.items()))} on average"]


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


def _head(column: str, value: Any) -> str:
    if column == "epsilon":
        return "not private" if value is None else f"eps {value:g}"
    return f"{value} {column}"


Curve = dict[float | None, Summary]  # by the place on the x axis


def draw_frontier(
    rows: Sequence[Result],
    path: Path | IO[bytes],
    *,
    title: str,
    chance: float,
    panel: str = "scheme",
    lines: Sequence[str] = ("label",),
    x: Literal["epsilon", "users"] = "epsilon",
) -> None:
    """Accuracy against ε or users: panels of lines with their deviation over seeds as a band.

    Args:
        rows: cells; those without ε are drawn as dotted levels.
        path: of the PNG, or a file to write it to.
        title: what was learned from whom.
        chance: accuracy of guessing.
        panel: field that has a panel for each of its values.
        lines: fields that have a line for each of their values.
        x: field on the logarithmic axis.
    """
    panels = _panels(rows, panel, lines, x)
    places = sorted({getattr(row, x) for row in rows} - {None})
    high, wide = -(-len(panels) // 3), min(3, len(panels))
    figure = Figure(figsize=(5.0 * wide, 4.6 * high), layout="constrained")
    axes = figure.subplots(high, wide, sharey=True, squeeze=False).flatten()
    names = dict.fromkeys(name for drawn in panels.values() for name in drawn)
    colours = {name: f"C{k % 10}" for k, name in enumerate(names)}
    levels = _levels(rows, chance)
    for axis, (words, drawn) in zip(axes, panels.items(), strict=False):
        for name, line in drawn.items():
            _draw_line(axis, line, colours[name], name)
        for words_of, level in levels.items():
            axis.axhline(100 * level, color="grey", linewidth=1)
            side = "bottom" if level == max(levels.values()) else "top"  # two may lie close by
            beside = {"transform": axis.get_yaxis_transform(), "va": side, "fontsize": 8}
            axis.text(0.01, 100 * level, words_of, color="dimgrey", **beside)
        axis.set(xscale="log", xlabel=AXES[x], title=words)
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        if not names.keys() <= drawn.keys() or axis is axes[0]:  # one serves panels of equal lines
            axis.legend(fontsize=7)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    summaries = [(x, s) for p in panels.values() for line in p.values() for x, s in line.items()]
    said = ["test accuracy / %"]
    said += ["dotted: without noise"] * any(place is None for place, _ in summaries)
    said += ["dashed: balanced accuracy"] * any(_uneven(each) for _, each in summaries)
    said += ["balanced accuracy: unknown"] * any(s.balanced is None for _, s in summaries)
    axes[0].set_ylabel("\n".join(said))
    figure.suptitle(title, wrap=True)
    figure.savefig(path, dpi=150)


def _levels(rows: Sequence[Result], chance: float) -> dict[str, float]:
    """Accuracies of answers that look at no picture; those that are one are drawn once."""
    majority, guessing, largest = mean_of(rows, "majority"), "guessing", "always the largest class"
    if majority is None:
        return {guessing: chance}
    if abs(majority - chance) <= SAME:
        return {f"{guessing}, {largest}": majority}
    return {guessing: chance, largest: majority}


def _uneven(each: Summary) -> bool:
    """Whether balanced accuracy says something else."""
    return each.balanced is not None and abs(each.balanced - each.mean) > SAME


def _panels(
    rows: Sequence[Result], panel: str, lines: Sequence[str], x: str
) -> dict[str, dict[str, Curve]]:
    """Title -> name -> accuracies by place; lines that coincide are under one name."""
    varied = [each for each in lines if len({getattr(row, each) for row in rows}) > 1]
    found: dict[str, dict[str, Curve]] = {}
    for (*fields, value, place), accuracy in summarise(rows, (*lines, panel, x)).items():
        words = [_word(n, v) for n, v in zip(lines, fields, strict=True) if n in varied]
        name = ", ".join(words or [_word(lines[0], fields[0])])
        of_panel = found.setdefault(_word(panel, value), {})
        of_panel.setdefault(name, {})[place] = accuracy
    return {title: _joined(drawn) for title, drawn in found.items()}


def _joined(drawn: dict[str, Curve]) -> dict[str, Curve]:
    kept: list[tuple[list[str], Curve]] = []
    for name, line in drawn.items():
        twins = next((names for names, other in kept if _same(line, other)), None)
        if twins is None:
            kept.append(([name], line))
        else:
            twins.append(name)
    return {",\n".join(names): line for names, line in kept}


def _same(one: Curve, other: Curve) -> bool:
    return one.keys() == other.keys() and all(
        abs(one[place].mean - other[place].mean) <= SAME
        and abs((one[place].balanced or 0) - (other[place].balanced or 0)) <= SAME
        for place in one
    )


def _draw_line(axis: Axes, line: Curve, colour: str, label: str) -> None:
    """A method with its band, dotted without noise, dashed its balanced accuracy."""
    places = sorted(place for place in line if place is not None)
    mean = np.array([100 * line[place].mean for place in places])
    std = np.array([100 * line[place].std for place in places])
    axis.plot(places, mean, marker="o", color=colour, label=label, markersize=4)
    axis.fill_between(places, mean - std, mean + std, color=colour, alpha=0.2)
    if any(_uneven(line[place]) for place in places):
        balanced = [100 * (line[place].balanced or 0) for place in places]
        axis.plot(places, balanced, color=colour, linestyle="--", linewidth=1)
    if None in line:
        axis.axhline(100 * line[None].mean, color=colour, linestyle=":", linewidth=1)


def _word(field: str, value: Any) -> str:
    if field == "scheme":
        first, _, rest = str(value).partition(" ")
        return f"{SCHEMES.get(first, first)}{', ' * bool(rest)}{rest}"
    return WORDS.get(field, "{}").format(value)
