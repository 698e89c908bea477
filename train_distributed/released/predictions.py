"""Rows to classes: a stream of embeddings in, a CSV file and metrics out, memory bounded."""

import csv
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


def write_findings(
    released: Release,
    rows: Rows,
    path: Path,
    advance: Callable[[int], object],
    thresholds: Tensor,
) -> tuple[dict[str, int], FindingMetrics | None]:
    """Writes path, findings that are said to be present (`a|b`), and a probability of each.

    As `write_predictions`, of whose file this is the counterpart for several findings a picture.

    Returns:
        How many rows have each finding, and the metrics where findings are known.
    """
    names, counts = released.class_names, np.zeros(len(released.class_names), np.int64)
    measured = None
    if rows.labels is not None:
        measured = FindingMetrics.of(released, rows.count, thresholds)
    done, skipped = 0, rows.skipped
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.writer(file)
        header = ["path", "findings", *(f"probability of {name}" for name in names)]
        table.writerow(header if skipped is None else [*header, UNREADABLE])
        for block in rows.blocks:
            odds = released.scores(block) / released.temperature
            said, shares = (odds > thresholds).numpy(), torch.sigmoid(odds).numpy()
            read = np.array([done + k not in (skipped or ()) for k in range(len(block))])
            counts += said[read].sum(0)
            for k in range(len(block)):
                cells = [rows.name(done + k), *[""] * (1 + len(names))]
                if read[k]:
                    present = "|".join(n for n, has in zip(names, said[k], strict=True) if has)
                    cells[1:] = [present, *(f"{share:.6f}" for share in shares[k])]
                table.writerow(cells + ([] if skipped is None else [skipped.get(done + k, "")]))
            if measured is not None and rows.labels is not None:
                measured.leave_out(int((~read).sum()))
                known = rows.labels[done : done + len(block)][read]
                measured.add(odds[read] * released.temperature, known)
            done += len(block)
            advance(len(block))
    if done != rows.count:
        raise ValueError(f"rows must be {rows.count} as announced, got {done}")
    return dict(zip(names, counts.tolist(), strict=True)), measured


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
    released: Release, rows: Rows, path: Path, advance: Callable[[int], object]
) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Classifies all rows into a CSV file of HEADER: the best three classes of each.

    Where rows may be skipped it has a column more, UNREADABLE: an image that cannot be read has no
    class, and the reason there. `advance` is called with the number of rows of each block. Raises
    ValueError for a row that does not fit the model.

    Returns:
        How many rows each class got, and the metrics where labels are known.
    """
    counts = np.zeros(len(released.class_names), np.int64)
    evaluation = None
    if rows.labels is not None:
        evaluation = ClassifierMetrics.of(released, rows.count)
    done = 0
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.writer(file)
        skipped = rows.skipped
        table.writerow(HEADER if skipped is None else (*HEADER, UNREADABLE))
        for block in rows.blocks:
            scores = released.scores(block)
            order = np.argsort(-scores.numpy(), axis=1, kind="stable")  # the first of equal ones
            best = order[:, :BEST]
            whole = probabilities(scores, released.temperature).numpy()
            shares = np.take_along_axis(whole, best, 1)
            here = range(done, done + len(block))
            read = np.array([row not in (skipped or ()) for row in here])
            counts += np.bincount(best[read, 0], minlength=len(counts))
            for offset, (classes, values) in enumerate(zip(best, shares, strict=True)):
                cells: list[str] = [rows.name(done + offset)]
                for k, value in zip(classes, values, strict=True):
                    cells += [released.class_names[k], f"{value:.6f}"] if read[offset] else []
                cells += [""] * (len(HEADER) - len(cells))
                cells += [] if skipped is None else [skipped.get(done + offset, "")]
                table.writerow(cells)
            if evaluation is not None and rows.labels is not None:
                evaluation.leave_out(int((~read).sum()))
                evaluation.add(scores[read], rows.labels[done : done + len(block)][read])
            done += len(block)
            advance(len(block))
    if done != rows.count:
        raise ValueError(f"rows must be {rows.count} as announced, got {done}")
    named = dict(zip(released.class_names, counts.tolist(), strict=True))
    if evaluation is None:
        return named, None
    by_split = count_splits(np.delete(rows.split, list(skipped or ())))
    metrics = {"of": OF, "rows_by_split": by_split} | evaluation.report()
    if len(by_split) > 1 and (trained := by_split.get("train")):
        metrics["warnings"].append(
            f"{trained} rows are of split train: a model that learned from them is flattered"
        )
    return named, metrics


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
