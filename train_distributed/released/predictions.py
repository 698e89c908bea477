"""Rows to classes: a stream of embeddings in, a CSV file and metrics out, memory bounded."""

import csv
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet
from embed.clip import ROWS
from pretrain.datasets import SPLITS
from train_distributed.one_shot.finding_metrics import FindingMetrics
from train_distributed.one_shot.metrics import ClassifierMetrics
from train_distributed.one_shot.model import Release, probabilities

OF = "labels read in the clear: no epsilon covers what these numbers show of the rows"
BEST = 3  # classes per row
UNREADABLE = "unreadable"  # last column, with --skip-unreadable
HEADER = (
    *("path", "class", "probability"),
    *("second", "second_probability", "third", "third_probability"),
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows that are to be classified."""

    count: int
    blocks: Iterator[np.ndarray]  # (b, p) floats, b <= ROWS, `count` rows in all
    name: Callable[[int], str]  # what row i is called in the file
    labels: np.ndarray | None = None  # (count,) classes, or (count, K) findings; None: unknown
    split: np.ndarray  # (count,) split of each
    skipped: Mapping[int, str] | None = None  # row -> why it cannot be read; filled by `blocks`

    @classmethod
    def of(cls, embeddings: EmbeddingSet, rows: np.ndarray, labels: np.ndarray | None) -> "Rows":
        """These rows of a set."""
        parts = (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))
        return cls(
            count=len(rows),
            blocks=(np.asarray(embeddings.embeddings[part]) for part in parts),
            name=lambda row: embeddings.name(int(rows[row])),
            labels=labels,
            split=embeddings.split[rows],
        )


def count_splits(split: np.ndarray) -> dict[str, int]:
    """Number of rows in each split, by the split's first name."""
    names = {number: name for name, number in reversed(SPLITS.items())}
    return {
        names[int(n)]: int(c) for n, c in zip(*np.unique(split, return_counts=True), strict=True)
    }


def finding_thresholds(released: Release, threshold: float | str | None) -> Tensor:
    """(K,) log odds of the probability from which findings are said to be present.

    Args:
        released: a model of findings.
        threshold: in (0, 1), "prevalence" (of each finding in the private rows), or None: a half.

    Raises:
        ValueError: another value, a model of classes, or one that knows no prevalences.
    """
    if not released.findings:
        raise ValueError(f"threshold must be left out for a model of classes, got {threshold}")
    if threshold == "prevalence":
        if released.class_shares is None:
            raise ValueError("threshold must be a probability for a model without prevalences")
        return torch.logit(released.class_shares)
    try:
        value = 0.5 if threshold is None else float(threshold)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ValueError(f"threshold must be in (0, 1), or prevalence, got {threshold}")
    return torch.logit(torch.full((len(released.class_names),), value, dtype=torch.float64))


def own_targets(
    released: Release, names: Sequence[Any], labels: np.ndarray, findings: np.ndarray | None
) -> np.ndarray:
    """(n,) classes or (n, K) findings of a model; a set may have them in another order.

    Raises ValueError as `own_labels`, or for classes where the model has findings, or the reverse.
    """
    if released.findings and findings is None:
        raise ValueError("evaluate must have findings (pass --findings), got one class a row")
    if findings is None:
        return own_labels(released, names, labels)
    own, known = list(released.class_names), list(map(str, names)) or list(released.class_names)
    if not released.findings or sorted(own) != sorted(known):
        got = ", ".join(known)
        kind = "findings" if released.findings else "classes, one a row"
        raise ValueError(f"labels must be of the model's {kind}, {', '.join(own)}, got {got}")
    return findings[:, [known.index(name) for name in own]]


def write_predictions(
    released: Release,
    rows: Rows,
    path: Path,
    advance: Callable[[int], object],
    threshold: float | str | None = None,
) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Classifies all rows into a CSV file of HEADER: the best three classes of each.

    Of a model of findings it has those that are said to be present (`a|b`), see
    `finding_thresholds`, and a probability of each. Where rows may be skipped it has a column more,
    UNREADABLE: an image that cannot be read has no class, and the reason there. `advance` is called
    with the number of rows of each block. Raises ValueError for a row that does not fit the model.

    Returns:
        How many rows each class or finding got, and the metrics where labels are known.
    """
    names, skipped, done = released.class_names, rows.skipped, 0
    counts, header, answered = np.zeros(len(names), np.int64), HEADER, _best_classes
    metrics_of: Any = ClassifierMetrics.of
    if released.findings or threshold is not None:
        least = finding_thresholds(released, threshold)
        header = ("path", "findings", *(f"probability of {name}" for name in names))
        answered = functools.partial(_present_findings, thresholds=least)
        metrics_of = functools.partial(FindingMetrics.of, thresholds=least)
    evaluation = None if rows.labels is None else metrics_of(released, rows.count)
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.writer(file)
        table.writerow(header if skipped is None else (*header, UNREADABLE))
        for block in rows.blocks:
            scores = released.scores(block)
            said, answers = answered(released, scores)
            read = np.array([done + k not in (skipped or ()) for k in range(len(block))])
            counts += said[read].sum(0)
            for k, answer in enumerate(answers):
                cells = [rows.name(done + k), *(answer if read[k] else ())]
                cells += [""] * (len(header) - len(cells))
                table.writerow(cells + ([] if skipped is None else [skipped.get(done + k, "")]))
            if evaluation is not None and rows.labels is not None:
                evaluation.leave_out(int((~read).sum()))
                evaluation.add(scores[read], rows.labels[done : done + len(block)][read])
            done += len(block)
            advance(len(block))
    if done != rows.count:
        raise ValueError(f"rows must be {rows.count} as announced, got {done}")
    named = dict(zip(names, counts.tolist(), strict=True))
    if evaluation is None:
        return named, None
    by_split = count_splits(np.delete(rows.split, list(skipped or ())))
    metrics = {"of": OF, "rows_by_split": by_split} | evaluation.report()
    if len(by_split) > 1 and (trained := by_split.get("train")):
        metrics.setdefault("warnings", []).append(
            f"{trained} rows are of split train: a model that learned from them is flattered"
        )
    return named, metrics


def _best_classes(released: Release, scores: Tensor) -> tuple[np.ndarray, list[list[str]]]:
    """(b, K) bool: the best class; names and probabilities of the best ones of each row."""
    order = np.argsort(-scores.numpy(), axis=1, kind="stable")  # the first of equal ones
    best, names = order[:, :BEST], released.class_names
    whole = probabilities(scores, released.temperature).numpy()
    shares = np.take_along_axis(whole, best, 1)
    cells = [
        [cell for k, share in zip(*row, strict=True) for cell in (names[k], f"{share:.6f}")]
        for row in zip(best, shares, strict=True)
    ]
    return np.arange(len(names)) == best[:, :1], cells


def _present_findings(
    released: Release, scores: Tensor, thresholds: Tensor
) -> tuple[np.ndarray, list[list[str]]]:
    """(b, K) bool: the findings that are said to be present; their names, and all probabilities."""
    odds, names = scores / released.temperature, released.class_names
    said, shares = (odds > thresholds).numpy(), torch.sigmoid(odds).numpy()
    present = ["|".join(name for name, has in zip(names, row, strict=True) if has) for row in said]
    rows = zip(present, shares, strict=True)
    return said, [[words, *(f"{share:.6f}" for share in row)] for words, row in rows]


def own_labels(released: Release, names: Sequence[Any], labels: np.ndarray) -> np.ndarray:
    """(n,) classes of a model from (n,) labels of a set whose classes may have another order.

    Where the set declares no `names`, its labels are numbers of the model's classes. Raises
    ValueError for rows without labels, or of a class that the model does not know.
    """
    if not len(labels) or (labels < 0).any():
        raise ValueError(f"evaluate must have labels, got {len(labels)} rows without any")
    classes = len(released.class_names)
    if not names and labels.max() >= classes:
        raise ValueError(f"labels must be < {classes}, the model's classes, got {labels.max()}")
    known = list(map(str, names)) or list(released.class_names)
    own = {name: k for k, name in enumerate(released.class_names)}
    if unknown := [known[k] for k in np.unique(labels) if known[k] not in own]:
        raise ValueError(
            f"labels must be of the model's classes {', '.join(own)}, got {', '.join(unknown)}"
        )
    return np.array([own.get(name, -1) for name in known])[labels]
