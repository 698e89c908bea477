"""Rows to classes: a stream of embeddings in, a CSV file and metrics out, memory bounded."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embed import EmbeddingSet
from embed.project import ROWS
from pretrain.datasets import SPLITS
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
    labels: np.ndarray | None = None  # (count,) classes of the model; None: unknown
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


def write_predictions(
    released: Release, rows: Rows, path: Path, advance: Callable[[int], object]
) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Classifies all rows into a CSV file of HEADER: the best three classes of each.

    Where rows may be skipped it has a column more, UNREADABLE: an image that cannot be read has no
    class, and the reason there. `advance` is told how many rows are done, block by block. Raises
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
