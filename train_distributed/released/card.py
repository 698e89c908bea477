"""A released model on one page, as HTML or as Markdown.

The words are in card.jinja; html.jinja and markdown.jinja say how they become a page. Names and
values of a report are text on it, never markup.
"""

import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from embed.encoding import Encoding
from pretrain.cli.provenance import public_argument
from train_distributed.one_shot.attacker import best_guess, gaussian_mu, true_positives
from train_distributed.one_shot.figure import confusion_figure, draw_attack, roc_figure
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS, NOT_PRIVATE, RIVALS
from train_distributed.one_shot.report_file import Metrics, Report, converted
from train_distributed.released import numbers
from train_distributed.released.evaluation_estimates import Interval, proportion
from train_distributed.released.numbers import percent, percent_range

if TYPE_CHECKING:
    from train_distributed.ledger.state import LedgerState

ACCUSED = 0.001  # of the innocent: false alarms that the card speaks of
MARKUP = re.compile(r"([\\`*_\[\]|~$])")
LEADING = re.compile(r"^(\d*)([#+.)-])(?=[\s#-]|$)")  # of headings, lists and rules
NEEDED = ("private", "epsilon", "delta", "neighbouring", "users", "suitable_for_release")
CONFIDENCE = 0.95
DRAWS = 2000  # of the bootstrap
BATCH = 50  # of them at a time
SEED = 0  # of it: a card made twice is the same card


def card(
    release: Release,
    *,
    markup: Literal["html", "markdown"],
    name: str = "",
    files: Mapping[str, str] | None = None,
    command: str | None = None,
    ledger: "LedgerState | None" = None,
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """A model card.

    Args:
        release: with its report.
        markup: HTML with pictures, in one file that loads nothing; or Markdown without pictures.
        name: of its directory.
        files: name -> SHA-256 of its files.
        command: that made it.
        ledger: of the records that it was learned from.
        evaluation: report of a private evaluation of it.

    Raises:
        ValueError: a report or an evaluation that lacks a key, or has a value of another kind.
    """
    report = release.report
    report.need(*NEEDED)
    promised: dict[str, Any] = {}
    if report.private:
        caught = float(true_positives(report, np.array([ACCUSED]))[0])
        curve = partial(_attack_figure, report)
        promised = {"guess": best_guess(report), "curve": curve, "caught": caught}
        promised |= {"mu": gaussian_mu(report), "accused": ACCUSED}
    template = _environment(markup).get_template("card.jinja")
    text = template.render(
        markup=f"{markup}.jinja",
        release=release,
        report=report,
        transform=release.transform,
        encoding=None if report.encoding is None else Encoding.from_json(report.encoding),
        words_of=words_of,
        name=name,
        files=files or {},
        command=command,
        settings=list(_settings(report.configuration or {})),
        ledger=ledger,
        totals=[] if ledger is None else list(_totals(ledger)),
        evaluation=None if evaluation is None else EvaluationFindings.of(evaluation),
        infinity=math.inf,
        **promised,
        **_measured(report),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def words_of(method: str) -> str:
    """Sentence about a method: the registry's, a rival's, or else its name."""
    rivals = RIVALS | MANY_ROUNDS | NOT_PRIVATE
    return METHODS[method].words if method in METHODS else rivals.get(method, method)


def markdown_text(text: str) -> str:
    """Text on one line that neither Markdown nor HTML within it takes for markup."""
    escaped = MARKUP.sub(r"\\\1", " ".join(text.split()))
    escaped = LEADING.sub(r"\1\\\2", escaped)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _environment(markup: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("train_distributed.released", "."),
        autoescape=markup == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (numbers.rounded_up, numbers.percent, numbers.chance, numbers.shortened)
    for each in (*shown, numbers.counted, math.exp, repr):
        environment.filters[each.__name__] = each
    environment.filters["thousands"] = "{:,.0f}".format
    environment.filters["line"] = markdown_text
    environment.filters["anchor"] = lambda title: title.lower().replace(" ", "-")
    environment.filters["data_uri"] = _data_uri
    return environment


def _attack_figure(report: Report) -> Figure:
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    draw_attack(report, figure.add_subplot())
    return figure


def _data_uri(draw: Callable[[], Figure]) -> str:
    """A PNG without the version of matplotlib: the same numbers give the same bytes."""
    held = BytesIO()
    draw().savefig(held, format="png", dpi=150, metadata={"Software": None})
    return "data:image/png;base64," + b64encode(held.getvalue()).decode("ascii")


def _measured(report: Report) -> dict[str, Any]:
    if (found := report.test_findings) is not None:
        return {"roc": partial(roc_figure, found), "shown": finding_row}
    if (metrics := report.test_metrics) is None:
        return {}
    counts, drawn, diagonal = metrics.confusion, None, None
    if counts is not None:
        drawn = partial(confusion_figure, counts, list(metrics.per_class))
        diagonal = sum(row[k] for k, row in enumerate(counts)) / max(1, sum(map(sum, counts)))
    return {
        "intervals": shown_intervals(metrics),
        "classes": class_rows(metrics),
        "confusion": drawn,
        "diagonal": diagonal,
        "draws": DRAWS,
    }


def _totals(ledger: "LedgerState") -> Iterator[tuple[str, float, float]]:
    """Unit, ε and δ of all entries of a ledger together, for units that have a promise."""
    for unit in ("record", "user"):
        total = ledger.total(unit)
        if math.isfinite(epsilon := total.epsilon()):
            yield unit, epsilon, total.least_delta


def _settings(configuration: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, str]]:
    """Names and values that were given; of a path outside the working directory only its name."""
    for name, value in configuration.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{of}{name}.")
        elif value is not None:
            yield f"{of}{name}", public_argument(value) if isinstance(value, str) else str(value)


def exact(hits: int, rows: int) -> Interval:
    """Interval of a share of independent rows, by Clopper and Pearson 1934.

    It covers the share with a probability of at least CONFIDENCE.

    Examples:
        >>> found = exact(8, 10)
        >>> f"{found.low:.3f} {found.high:.3f}"
        '0.444 0.975'
    """
    return proportion(hits, rows, 0.0, confidence=CONFIDENCE)


def bootstrap(confusion: np.ndarray) -> dict[str, tuple[float, float]]:
    """Percentile intervals of balanced accuracy and macro F1: the counts are drawn again.

    Args:
        confusion: (K, K) counts by label and predicted class.
    """
    rows, size = int(confusion.sum()), len(confusion)
    rng = np.random.default_rng(SEED)
    used = confusion.ravel().nonzero()[0]  # pairs that did not occur are not drawn
    found = []
    for _ in range(DRAWS // BATCH):
        drawn = np.zeros((BATCH, size * size))
        drawn[:, used] = rng.multinomial(rows, confusion.ravel()[used] / rows, BATCH)
        found.append(balanced(drawn.reshape(BATCH, size, size)))
    draws = np.concatenate(found, axis=1)
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    names = ("balanced_accuracy", "macro_f1")
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


def balanced(confusion: np.ndarray) -> np.ndarray:
    """Mean recall of the classes that occur, mean F1 of those that occur or are predicted.

    Args:
        confusion: (..., K, K) counts.

    Returns:
        (2, ...) both.
    """
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    present = confusion.sum(-1)
    either = present + confusion.sum(-2)
    recall = hits / np.maximum(present, 1)
    f1 = 2 * hits / np.maximum(either, 1)
    return np.stack(
        [
            recall.sum(-1) / np.maximum((present > 0).sum(-1), 1),
            f1.sum(-1) / np.maximum((either > 0).sum(-1), 1),
        ]
    )


def shown_intervals(metrics: Metrics) -> dict[str, str]:
    """Intervals by metric, in words; "" where the counts are not known."""
    words = {"accuracy": exact(round(metrics.accuracy * metrics.rows), metrics.rows).ends}
    if metrics.confusion is not None:
        found = bootstrap(np.array(metrics.confusion))
        words |= {name: percent_range(*ends) for name, ends in found.items()}
    return {"balanced_accuracy": "", "macro_f1": ""} | words


def class_rows(metrics: Metrics) -> list[list[str]]:
    """Rows of the table of classes: name, rows, recall and precision with their intervals."""
    predicted = [None] * len(metrics.per_class)
    if metrics.confusion is not None:
        predicted = np.array(metrics.confusion).sum(0).tolist()
    return [
        [name, f"{of.rows:,}", *_share(of.recall, of.rows), *_share(of.precision, guessed)]
        for (name, of), guessed in zip(metrics.per_class.items(), predicted, strict=True)
    ]


def finding_row(name: str, of: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    """A name, and for each kind of metric its value and interval."""
    unknown = {"estimate": None, "low": 0.0, "high": 1.0}
    found = [Interval(**(of[kind] or unknown)) for kind in kinds]
    return [name, *(words for each in found for words in (each.value, each.ends))]


def _share(value: float | None, of: int | None) -> list[str]:
    """A share and its interval, where they are known."""
    if value is None:
        return ["–", ""]
    if not of:
        return [percent(value), ""]
    return [percent(value), exact(round(value * of), of).ends]


@dataclass(frozen=True, kw_only=True)
class EvaluatedPrior:
    """Findings under one prior of the classes."""

    accuracy: Interval
    balanced_accuracy: Interval


@dataclass(frozen=True, kw_only=True)
class EvaluationFindings:
    """Promise and findings of a private evaluation."""

    private: bool
    epsilon: float
    delta: float
    neighbouring: str
    users: int
    rows: int
    sampling: str
    confidence_level: float
    accuracy: Interval | None  # of classes
    recall: dict[str, Interval]
    suitable_for_release: bool
    majority_baseline: Interval | None = None
    majority_class: str = ""
    balanced_accuracy: Interval | None = None
    warnings: list[str] = field(default_factory=list)
    expected_calibration_error: Interval | None = None
    unsuitable_because: list[str] = field(default_factory=list)
    with_the_training: str | None = None
    prior: str | None = None  # that the model answered for
    by_prior: dict[str, EvaluatedPrior] = field(default_factory=dict)

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Evaluation from what `evaluate` wrote; raises ValueError for a missing or wrong key."""
        if "per_finding" in written:
            each = {name: of["recall"] for name, of in written["per_finding"].items()}
            recall = {f"{name}, {kind}": of[kind] for name, of in each.items() for kind in of}
            written = {**written, "accuracy": None, "recall": recall, "by_prior": {}}
        return converted(written, cls, "evaluation must be what `evaluate` writes")
