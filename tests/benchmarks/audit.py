"""Neighbours through commands (`pipeline`), many rounds (`rounds`), random search (`search`)."""

import itertools
import math
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from embed.engines import trial_pictures
from pretrain.cli.output import refuse_existing
from pretrain.cli.provenance import provenance
from pretrain.sources import open_images
from tests.benchmarks.common import DELTA, Table, command_line, save, save_folder, show
from tests.train_distributed.research.audit import neighbours
from tests.train_distributed.research.audit import rounds as exact
from tests.train_distributed.research.audit.neighbours import COMPUTED, SOURCES, PipelineAudit
from train_distributed import Privacy
from train_distributed.one_shot.release import release
from train_distributed.one_shot.request import FaultInjection
from train_distributed.research.rivals.admm.calibration import largest_alpha
from train_distributed.research.rivals.admm.learner import TOLERANCE, VARIANTS, settings
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan
from train_distributed.research.rivals.options import AdmmOptions


def pipeline(data: str, output: Path, layout: str = "auto") -> int:
    """One of your pictures is replaced in eight ways; the output of whole commands is compared.

    `embed run`, `hold-out`, `exclude`, `run` and `evaluate` may show nothing of a replaced record
    but that record: all other rows are the same bits, sums move by their sensitivity at most, and
    reports are equal. Writes audit.json and table.txt; exit code 1 if a comparison is broken. 24
    labelled pictures are taken; data and layout are those of `embed run`.
    """
    images, found, lines = open_images(data, layout=layout), [], []
    records = neighbours.records_of(images, PICTURES)
    with tempfile.TemporaryDirectory(prefix="audit-") as scratch:
        pipeline = PipelineAudit(records, images.class_names, Path(scratch), ENCODER)
        checks = neighbours.checks(pipeline)
        for group in itertools.groupby(checks, key=lambda c: (c.command, c.where)):
            found += (group := list(group[1]))
            lines.append(neighbours.as_text(group))
            print(lines[-1], flush=True)
    broken = sum(check.broken for check in found)
    lines.append(f"{broken} of {len(found)} comparisons broken")
    print(lines[-1])
    report = provenance() | {"broken": broken, "checks": [asdict(check) for check in found]}
    save_folder(output, overwrite=True, audit_json=report, table_txt="\n".join(lines))
    return int(broken > 0)


PICTURES, ENCODER = 24, {"encoder": "simclr-small"}
AUDITED = ("admm-dual", "admm-primal", "charter")
WEAK = 1 / 8  # of the noise: what an audit must notice


def audit(
    method: str, promise: Privacy, replicas: int, *, rounds: int = 4, noise_scale: float = 1.0
) -> float:
    """A statistical lower bound of ε at δ of all rounds, which must stay below the promise.

    Runs one user on a worst-case pair and tests the two data sets by their exact likelihoods. ADMM:
    ten records, one of them replaced by an almost opposite one; all messages of the node. Charter:
    the learning stage of one client, a record with gradient +G0 or -G0, the others 0; the secure
    sum shows less, so "charter-sum" is bounded by the same messages with the same noise.
    Both data sets are run `replicas` times, with `noise_scale` times the noise that is accounted.
    """
    epsilon, delta = promise.epsilon, promise.delta
    if method in VARIANTS:
        alpha = largest_alpha(epsilon, delta, rounds, TOLERANCE)
        constants = settings(AdmmOptions(iterations=rounds), VARIANTS[method], alpha)
        pair = exact.worst_pair(10, math.pi - 0.1)
        losses = partial(exact.trajectory_losses, pair, constants, 2)
    else:
        size = {"clients": 1, "rows": 6 * rounds, "dimension": 1, "diameter": 1.0}
        task = CharterTask(epsilon=epsilon, delta=delta, **size)
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        losses = partial(exact.learning_losses, plan)
    given: dict[str, Any] = {"replicas": replicas, "noise_scale": noise_scale}
    given["generator"] = torch.Generator().manual_seed(0)
    first, second = (losses(truth=truth, **given) for truth in (0, 1))
    return exact.epsilon_below(first, second, delta)


def rounds(output: Path = Path("results/audit/rounds"), replicas: int = 20_000) -> None:
    """Audits every method with its noise and with an eighth of it; prints, writes audit.json."""
    refuse_existing(output, overwrite=False)
    table = Table()
    for method, epsilon, scale in product(AUDITED, (0.3, 1.0, 3.0), (1.0, WEAK)):
        least = audit(method, Privacy(epsilon, DELTA), replicas, noise_scale=scale)
        row = {"method": method, "promised": epsilon, "found": least, "delta": DELTA}
        table.add(row | {"noise_scale": scale})
    report = provenance() | {"replicas": replicas, "audits": table.rows}
    save_folder(output, audit_json=report)


METHODS = ("discriminant", "softmax", "svm", "logistic")
TRAINED = METHODS[1:]


@dataclass
class Tally:
    """Number of trials, and the largest share of a claim that was reached."""

    tried: dict[str, int] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    broken: list[dict[str, Any]] = field(default_factory=list)

    def note(self, game: str, share: float, *settings: Any) -> None:
        """One comparison; more than what is claimed is printed at once."""
        self.tried[game] = self.tried.get(game, 0) + 1
        self.most[game] = max(self.most.get(game, 0.0), share)
        if share > 1:
            self.broken.append({"game": game, "share": share, "settings": repr(settings)})
            print("BROKEN", self.broken[-1], flush=True)


def pictures(draw: np.random.Generator, tally: Tally, scratch: Path) -> None:
    """A set of pictures, one of them replaced in eight ways."""
    count, classes = int(draw.integers(12, 50)), ("cat", "dog", "owl")
    clouds = trial_pictures(count, 40, 32).permute(0, 2, 3, 1).numpy()
    noise = draw.integers(0, 256, clouds.shape, dtype=np.uint8)
    mixed = np.where(draw.random((count, 1, 1, 1)) < 0.5, clouds, noise)
    mixed[draw.integers(count)] = mixed[0]  # some set holds a picture twice
    records = []
    for k, pixels in enumerate(mixed):
        name, label = f"{draw.integers(10**6):06d}-{k}", classes[draw.integers(3) if k > 2 else k]
        user, picture = "abc"[draw.integers(3)], neighbours.as_png(pixels)
        records.append(neighbours.Record(name, label, user, picture))
    source = list(SOURCES)[draw.integers(len(SOURCES))]
    engine, compute = COMPUTED[draw.integers(len(COMPUTED))]
    options = {"engine": engine, "compute": compute, "batch_size": int(draw.integers(1, 40))}
    options["shard_rows"] = int(draw.integers(3, 60))
    options["dtype"] = draw.choice(["float32", "float16"])
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        pipeline = PipelineAudit(records, classes, Path(folder), ENCODER)
        for check in neighbours.of_rows(pipeline, source, source, **options):
            tally.note("rows", check.moved, check, options, count)


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
    transform = PublicTransform.identity(features, math.sqrt(1 + 0.125**2), 0.125)
    labels = draw.integers(0, classes, sizes.sum())
    shape = (len(labels), features) if draw.random() < 0.5 else (1, features)  # rows may be equal
    x = (100 * draw.standard_normal(shape) + np.zeros((len(labels), 1))).astype(np.float32)
    owner = np.repeat(np.arange(len(sizes)), sizes)  # and all rows are clipped
    changed = owner == owner[-1] if unit == "user" else np.arange(len(x)) == draw.integers(len(x))
    other, turned, how = x.copy(), labels.copy(), draw.integers(4)
    other[changed] = (-x[changed], x[changed], 0, draw.standard_normal(features) * 100)[how]
    turned[changed] = (labels[changed] + draw.integers(0 if how == 0 else 1, classes)) % classes
    meta, claims = {"class_names": [str(k) for k in range(classes)]}, dict[str, Any]()
    sgd, seed, opened = options.get("solver") == "sgd", int(draw.integers(2**31)), []
    for rows, y in ((x, labels), (other, turned)):
        held = EmbeddingSet(embeddings=rows, labels=y, users=owner, meta=meta)
        given: dict[str, Any] = options | {"reserve": claims.update}
        given["noise"] = "float" if sgd else "discrete"
        given["generator"] = torch.Generator().manual_seed(seed) if sgd else None
        given["faults"] = FaultInjection(known_noise=range(len(sizes)))
        privacy = Privacy(1.0, 1e-5, unit=unit)
        opened.append(release(held, method, privacy, transform=transform, **given).opened)
    claim = claims["sensitivity"] * math.sqrt(claims.get("compositions", 1))
    moved = float((opened[0] - opened[1]).norm())
    tally.note(f"sums of {method}", moved / claim, method, options, sizes, features, unit, how)


def search(hours: float = 24.0, output: Path = Path("search")) -> None:
    """Random search for neighbours that move more than is claimed.

    Two games in turn, each with settings drawn anew: pictures through `embed run` in a format,
    engine and batch size of its own; users' rows through every method, with records that are turned
    round, swapped, doubled or emptied. Nothing is reproduced by a seed: what is found is printed
    with all of its settings, and what was tried is written after each quarter of an hour.
    """
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
    show(asdict(tally))


if __name__ == "__main__":
    command_line(pipeline=pipeline, rounds=rounds, search=search)
