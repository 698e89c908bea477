"""How good a model is, with intervals: what counts of right and wrong answers can bear."""

from typing import Any

import numpy as np
from scipy.stats import binomtest

from train_distributed.released.card.content import (
    Block,
    Section,
    Table,
    Warned,
    Words,
    counted,
    percent,
)

CONFIDENCE = 0.95
DRAWS = 2000  # of the bootstrap
BATCH = 50  # of them at a time
SEED = 0  # of it: a card made twice is the same card


def interval(hits: int, rows: int) -> tuple[float, float]:
    """Of a share of independent rows, by Clopper and Pearson 1934: covers at least CONFIDENCE.

    Examples:
        >>> low, high = interval(8, 10)
        >>> f"{low:.3f} {high:.3f}"
        '0.444 0.975'
    """
    found = binomtest(hits, rows).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def shown_interval(low: float, high: float) -> str:
    """Both ends in per cent, rounded outwards."""
    down, up = np.floor(1000 * low + 1e-9) / 10, np.ceil(1000 * high - 1e-9) / 10
    return f"{down:.1f} to {up:.1f} %"


def bootstrap(confusion: np.ndarray) -> dict[str, tuple[float, float]]:
    """Percentile intervals of balanced accuracy and macro F1: the counts are drawn again.

    Args:
        confusion: (K, K) counts by label and predicted class.
    """
    rows, size = int(confusion.sum()), len(confusion)
    rng = np.random.default_rng(SEED)
    used = confusion.ravel().nonzero()[0]  # what did not occur is not drawn
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


def found_on_tests(metrics: dict[str, Any]) -> list[Block]:
    """What was found on test rows in the clear, as `report["test_metrics"]` says."""
    rows, names = int(metrics["rows"]), list(metrics["per_class"])
    accuracy = float(metrics["accuracy"])
    confusion = np.array(metrics["confusion"]) if "confusion" in metrics else None
    ends = {"accuracy": interval(round(accuracy * rows), rows)}
    if confusion is not None:
        ends |= bootstrap(confusion)
    lines = [
        ("accuracy", "accuracy"),
        ("majority_baseline", f"always answering {metrics['majority_class']!r}"),
        ("balanced_accuracy", "balanced accuracy: mean recall of the classes"),
        ("macro_f1", "macro F1"),
    ]
    shown = [
        (words, percent(float(metrics[name])), shown_interval(*ends[name]) if name in ends else "")
        for name, words in lines
    ]
    shown += [
        (words, f"{float(metrics[name]):.3f}", "")
        for name, words in (
            ("auroc", f"area under the ROC curve ({metrics['auroc_of']})"),
            ("expected_calibration_error", "expected calibration error"),
        )
        if metrics.get(name) is not None
    ]
    blocks: list[Block] = [Warned(f"Warning: {words}.") for words in metrics["warnings"]]
    blocks.append(
        Table(
            f"On {counted(rows, 'test row')} of {counted(len(names), 'class', 'classes')}",
            ("metric", "value", "95 % interval"),
            tuple(shown),
        )
    )
    blocks.append(
        Words(
            "Intervals are for independent rows: of accuracy by Clopper and Pearson, of the others "
            f"by {DRAWS:,} bootstrap draws of the counts. Where several rows are of one person, "
            "the truth is less certain than they say. Test rows were counted in the clear: no ε "
            "covers these figures, which say a little about the test rows themselves."
        )
    )
    return blocks


def class_table(metrics: dict[str, Any]) -> Table:
    """Recall and precision of every class, with intervals."""
    confusion = np.array(metrics["confusion"]) if "confusion" in metrics else None
    rows = []
    for k, (name, of) in enumerate(metrics["per_class"].items()):
        count, cells = int(of["rows"]), [f"{int(of['rows']):,}"]
        cells += _share(of["recall"], count)
        guessed = None if confusion is None else int(confusion[:, k].sum())
        cells += _share(of["precision"], guessed)
        rows.append((str(name), *cells))
    head = ("class", "rows", "recall", "95 %", "precision", "95 %")
    return Table("Every class by itself", head, tuple(rows))


def _share(value: float | None, of: int | None) -> list[str]:
    """A share and its interval, as far as they are known."""
    if value is None:
        return ["–", ""]
    if not of:
        return [percent(value), ""]
    return [percent(value), shown_interval(*interval(round(value * of), of))]


def found_before(report: dict[str, Any]) -> list[Block]:
    """What a report without `test_metrics` says: shares, and no number of rows for intervals."""
    if report.get("test_accuracy") is None:
        return [Words("Nothing is known: no labelled test row was there when the model was made.")]
    accuracy = percent(float(report["test_accuracy"]))
    shares = report.get("test_accuracy_per_class", {})
    rows = tuple((str(name), percent(float(value))) for name, value in shares.items())
    blocks: list[Block] = [
        Words(
            f"Accuracy on test rows in the clear: {accuracy}. How many rows there were is not "
            "recorded, so there is no interval."
        )
    ]
    return (
        [*blocks, Table("Every class by itself", ("class", "accuracy"), rows)] if rows else blocks
    )


def quality_section(
    report: dict[str, Any], pictures: tuple[Block, ...], evaluation: tuple[Block, ...]
) -> Section:
    """How good the model is, as far as anybody knows.

    Args:
        report: of the release.
        pictures: figures of it.
        evaluation: what a private evaluation found, if there was one.
    """
    metrics = report.get("test_metrics")
    if metrics is None and evaluation and report.get("test_accuracy") is None:
        return Section("How good it is", evaluation)
    if metrics is None:
        return Section("How good it is", (*evaluation, *found_before(report), *pictures))
    blocks = (*evaluation, *found_on_tests(metrics), *pictures, class_table(metrics))
    words = report.get("probabilities")
    reading = (Words(f"Its probabilities: {words}."),) if isinstance(words, str) else ()
    return Section("How good it is", (*blocks, *reading))
