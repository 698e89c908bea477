"""Coverage and width of the intervals of a private evaluation.

python tests/benchmarks/bench_private_evaluation.py --model DIR --embeddings DIR --output DIR

The population is the pool of all evaluation rows of a set: what the model gets right of it is the
truth. A repetition draws every user's rows from it anew, with replacement, and evaluates them as
it is deployed: discrete noise from the operating system, one secure sum; with `--noise float` the
same in floating point, ten times as fast. Interrupted, it writes the repetitions that are done.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from embed import EmbeddingSet
from pretrain.cli.output import refuse_existing
from pretrain.cli.provenance import provenance
from pretrain.datasets import EVALUATION
from tests.benchmarks.common import DELTA, Table, save_folder
from train_distributed import Privacy, Release
from train_distributed.released import FINEST_GRID
from train_distributed.released.evaluate import evaluate
from train_distributed.released.evaluation import Evaluation
from train_distributed.released.evaluation_estimates import Interval

USERS, ROWS, EPSILONS = 1000, 10, (0.1, 0.4, 1.0)  # rows of a user
SHOWN = ("truth", "coverage", "half_width_mean", "half_width_largest")  # in per cent


@dataclass(frozen=True)
class Pool:
    """All rows that users' rows are drawn from."""

    release: Release
    rows: EmbeddingSet

    def drawn(self, draw: np.random.Generator) -> EmbeddingSet:
        """Users with rows of their own."""
        places = draw.integers(0, len(self.rows), USERS * ROWS)
        given: dict[str, Any] = {"meta": {"class_names": list(self.release.class_names)}}
        given |= {"embeddings": self.rows.embeddings[places], "labels": self.rows.labels[places]}
        given |= {"users": np.repeat(np.arange(USERS), ROWS)}
        return EmbeddingSet(split=np.full(len(places), EVALUATION), **given)

    def truth(self) -> dict[str, float]:
        """True values, counted without noise."""
        method = Evaluation(num_classes=len(self.release.class_names))
        nobody, labels = torch.zeros(len(self.rows), dtype=torch.int64), np.array(self.rows.labels)
        said = [self.release.predict_proba(np.array(self.rows.embeddings))]
        sent = method.submit(nobody, torch.from_numpy(labels), said, 1, FINEST_GRID)[0]
        matrix, _, by_bin, rest = method.parts(sent)
        middles = method.middles(FINEST_GRID)
        gaps = (1 - middles) * by_bin[:, 1] - middles * by_bin[:, 0] - rest
        recalls = (matrix.diagonal() / matrix.sum(1)).tolist()
        return {
            "accuracy": float(matrix.trace() / matrix.sum()),
            "balanced_accuracy": float(np.mean(recalls)),
            "expected_calibration_error": float(gaps.abs().sum() / matrix.sum()),
        } | {f"recall of {n}": r for n, r in zip(self.release.class_names, recalls, strict=True)}


def summary(listed: list[Interval], truth: float) -> dict[str, Any]:
    """Coverage and width of intervals."""
    halves = [(each.high - each.low) / 2 for each in listed]
    covered = float(np.mean([each.low <= truth <= each.high for each in listed]))
    found = {"repetitions": len(listed), "truth": truth, "coverage": covered}
    found |= {"half_width_mean": float(np.mean(halves)), "half_width_largest": max(halves)}
    return found | {"intervals": [[each.low, each.high] for each in listed]}


def main(
    model: Path,
    embeddings: Path,
    output: Path,
    repetitions: int = 200,
    noise: Literal["discrete", "float"] = "discrete",
) -> None:
    """Prints and writes coverage and width of every interval."""
    refuse_existing(output, overwrite=False)
    opened, release = EmbeddingSet.open(embeddings), Release.load(model)
    pool = Pool(release, opened.subset(opened.split == EVALUATION))
    truth, draw = pool.truth(), np.random.default_rng(0)
    table, results = Table(), []
    for epsilon in EPSILONS:
        start, seen = time.perf_counter(), dict[str, list[Interval]]()
        with contextlib.suppress(KeyboardInterrupt):
            for _ in range(repetitions):
                drawn = pool.drawn(draw)
                made = evaluate(release, drawn, Privacy(epsilon, DELTA), noise=noise).estimates
                assert made.calibration_error is not None
                found = (made.accuracy, made.balanced_accuracy, made.calibration_error)
                for name, interval in zip(truth, (*found, *made.recalls), strict=True):
                    seen.setdefault(name, []).append(interval)
        took = time.perf_counter() - start
        for name, listed in seen.items():
            found = summary(listed, truth[name]) | {"seconds": took / len(listed)}
            results.append({"epsilon": epsilon, "of": name} | found)
            table.add({"epsilon": epsilon, "of": name} | {k: 100 * found[k] for k in SHOWN})
    report = provenance() | {"users": USERS, "rows_per_user": ROWS, "pool": len(pool.rows)}
    report |= {"noise": noise, "delta": DELTA, "confidence": 0.95}
    report["of_the_model"] = {k: release.report[k] for k in ("epsilon", "delta", "method")}
    save_folder(output, results_json=report | {"results": results}, table_txt=table.text)


if __name__ == "__main__":
    tyro.cli(main)
