"""Random search for neighbours that move more than is claimed: `python …/search_neighbours.py`.

    python tests/benchmarks/search_neighbours.py --hours 24 --output results/audit/search

Two games in turn, each with settings drawn anew: pictures through `embed run` in a format, engine
and batch size of its own; users' rows through every method, with records that are turned round,
swapped, doubled or emptied. Nothing is reproduced by a seed: what is found is printed with all of
its settings.
"""

import json
import math
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from embed import EmbeddingSet, PublicTransform
from embed.engines import trial_pictures
from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from tests.train_distributed.research.audit.neighbours import (
    COMPUTED,
    SOURCES,
    PipelineAudit,
    Record,
    as_png,
    of_rows,
)
from train_distributed import Privacy
from train_distributed.one_shot.release import release
from train_distributed.one_shot.request import FaultInjection

METHODS = ("discriminant", "softmax", "svm", "logistic")
TRAINED = METHODS[1:]


@dataclass
class Tally:
    """Number of trials, and the largest share of a claim that was reached."""

    tried: dict[str, int] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    broken: list[dict[str, Any]] = field(default_factory=list)

    def note(self, game: str, share: float, limit: float, settings: Any) -> None:
        """One comparison; more than the limit is printed at once."""
        self.tried[game] = self.tried.get(game, 0) + 1
        self.most[game] = max(self.most.get(game, 0.0), share)
        if share > limit:
            self.broken.append({"game": game, "share": share, "settings": repr(settings)})
            print("BROKEN", self.broken[-1], flush=True)


def pictures(draw: np.random.Generator, tally: Tally, scratch: Path) -> None:
    """A set of pictures, one of them replaced in eight ways."""
    count, classes = int(draw.integers(12, 50)), ("cat", "dog", "owl")
    clouds = trial_pictures(count, 40, 32).permute(0, 2, 3, 1).numpy()
    noise = draw.integers(0, 256, clouds.shape, dtype=np.uint8)
    mixed = np.where(draw.random((count, 1, 1, 1)) < 0.5, clouds, noise)
    mixed[draw.integers(count)] = mixed[0]  # some set holds a picture twice
    records = [
        Record(
            name=f"{draw.integers(10**6):06d}-{k}",
            label=classes[draw.integers(3)] if k > 2 else classes[k],
            user="abc"[draw.integers(3)],
            data=as_png(pixels),
        )
        for k, pixels in enumerate(mixed)
    ]
    source = list(SOURCES)[draw.integers(len(SOURCES))]
    engine, compute = COMPUTED[draw.integers(len(COMPUTED))]
    options = {"engine": engine, "compute": compute, "batch_size": int(draw.integers(1, 40))}
    options |= {
        "shard_rows": int(draw.integers(3, 60)),
        "dtype": draw.choice(["float32", "float16"]),
    }
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        pipeline = PipelineAudit(records, classes, Path(folder), {"encoder": "simclr-small"})
        for check in of_rows(pipeline, source, source, **options):
            tally.note("rows", check.moved, 1.0, (check, options, count))


def sums(draw: np.random.Generator, tally: Tally) -> None:
    """Users of unequal sizes, one record replaced as badly as can be."""
    method = METHODS[draw.integers(len(METHODS))]
    features, classes = int(draw.integers(2, 40)), int(draw.integers(2, 6))
    sizes = draw.integers(1, 60, draw.integers(1, 6))
    options: dict[str, Any] = {}
    if method in TRAINED:
        options["l2_reg"] = float(10.0 ** draw.uniform(-2, 1.5))
        options |= {"radius": float(10.0 ** draw.uniform(-2, 1))} if draw.random() < 0.4 else {}
        if draw.random() < 0.5:
            options |= {"solver": "sgd", "epochs": int(draw.integers(1, 6))}
            options["batch_size"] = int(draw.integers(1, 25))
        elif method != "svm" and draw.random() < 0.4:
            options["prior"] = "equal"
    if draw.random() < 0.3:
        options["user_clip"] = float(10.0 ** draw.uniform(-2, 2))
    unit = "user" if draw.random() < 0.3 else "record"
    clip_norm = math.sqrt(1 + 0.125**2)
    transform = PublicTransform.identity(features, clip_norm, 0.125)
    labels = draw.integers(0, classes, sizes.sum())
    one = draw.standard_normal(features)
    x = (
        draw.standard_normal((sizes.sum(), features))
        if draw.random() < 0.5
        else one + 0 * labels[:, None]
    )
    x = x.astype(np.float32) * 100  # all are clipped
    owner = np.repeat(np.arange(len(sizes)), sizes)
    changed = owner == owner[-1] if unit == "user" else np.arange(len(x)) == draw.integers(len(x))
    other, turned = x.copy(), labels.copy()
    how = draw.integers(4)
    other[changed] = (-x[changed], x[changed], 0, draw.standard_normal(features) * 100)[how]
    turned[changed] = (labels[changed] + draw.integers(0 if how == 0 else 1, classes)) % classes
    meta = {"class_names": [str(k) for k in range(classes)]}
    pair = [
        EmbeddingSet(embeddings=rows.astype(np.float32), labels=y, users=owner, meta=meta)
        for rows, y in ((x, labels), (other, turned))
    ]
    claims: dict[str, Any] = {}
    shuffled = options.get("solver") == "sgd"
    seed = int(draw.integers(2**31))
    opened: list[Any] = [
        release(
            rows,
            method,
            Privacy(1.0, 1e-5, unit=unit),
            transform=transform,
            noise="float" if shuffled else "discrete",
            generator=torch.Generator().manual_seed(seed) if shuffled else None,
            faults=FaultInjection(known_noise=range(len(sizes))),
            reserve=claims.update,
            **options,
        ).opened
        for rows in pair
    ]
    claim = claims["sensitivity"] * math.sqrt(claims.get("compositions", 1))
    moved = float((opened[0] - opened[1]).norm())
    tally.note(
        f"sums of {method}", moved / claim, 1.0, (method, options, sizes, features, unit, how)
    )


def main(hours: float = 24.0, output: Path = Path("search")) -> None:
    """Plays until the time is up; writes what was tried after each quarter of an hour."""
    torch.set_num_threads(1)
    draw, tally, started = np.random.default_rng(), Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="search-") as scratch:
        saved = 0.0
        while (seconds := time.monotonic() - started) < 3600 * hours:
            pictures(draw, tally, Path(scratch))
            for _ in range(100):
                sums(draw, tally)
            if seconds - saved > 900 or not saved:
                saved = seconds
                told = {**provenance(), "hours": seconds / 3600, **asdict(tally)}
                save(output / "search.json", told)
    print(json.dumps(asdict(tally), indent=1))


if __name__ == "__main__":
    tyro.cli(main)
