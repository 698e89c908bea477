"""Changes where one record is replaced: other rows, sums before noise, reports."""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.engines import trial_pictures
from embed.hold_out import By, random_keys, with_held_out
from embed.run import Exclude, Run
from embed.water_filling import Centre
from tests.benchmarks.run_by import RunBy
from tests.train_distributed.research.audit.pipeline.records import (
    Record,
    aligned,
    differing,
    replacements,
    rows_of,
    users_of,
    with_users,
)
from tests.train_distributed.research.audit.pipeline.sources import (
    ARRAYS,
    RESIZE,
    SOURCES,
    write_source,
)
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.release import release
from train_distributed.one_shot.request import FaultInjection
from train_distributed.privacy.promise import Privacy
from train_distributed.released.evaluate import summed

PROMISE = Privacy(1.0, 1e-5)
COMPUTED = (("torch", "float32"), ("torch", "bfloat16"), ("openvino", "float32"))
SGD = {"solver": "sgd", "epochs": 3, "batch_size": 4}
HEAD: dict[str, Any] = {"sums": 1, "l2_reg": 0.3}
METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("discriminant", {"sums": 1}),
    *((name, HEAD) for name in ("softmax", "svm", "logistic")),
    *((name, SGD | HEAD) for name in ("softmax", "svm")),
    ("softmax", HEAD | {"prior": "equal"}),
    ("svm", HEAD | {"radius": 0.05}),
    ("discriminant", {"user_clip": 0.5}),
)


@dataclass(frozen=True)
class Check:
    """One comparison of two sets that differ in one record of a kind."""

    command: str
    where: str  # source, engine or method
    kind: str
    moved: float  # of what may change, as a share of what is allowed to
    broken: bool
    found: str


@dataclass(frozen=True)
class PipelineAudit:
    """The records, options of `embed run` that name an encoder, and an empty folder.

    The first record of the last class is replaced, so that in folders its place may become any.
    """

    records: Sequence[Record]
    classes: Sequence[str]
    folder: Path
    encoder: Mapping[str, Any]

    def embedded(self, source: str, records: Sequence[Record], **options: Any) -> EmbeddingSet:
        """The set that `embed run` makes of the records, in a new directory."""
        place = self.folder / f"{len(list(self.folder.iterdir())):04d}"
        place.mkdir()
        given = write_source(source, records, place / "source", self.classes)
        given |= {**self.encoder, **options, "skip_unreadable": True, "out": place / "rows"}
        with _silence():
            RunBy(**given).run()
        return EmbeddingSet.open(place / "rows")

    def neighbours(self, source: str, **options: Any) -> Iterator[tuple[str, EmbeddingSet]]:
        """Kinds of records, and the set with one of such a kind in the place of another."""
        place = [record.label for record in self.records].index(max(self.classes))
        for kind, record in replacements(self.records, place, self.classes):
            if kind != "unreadable" or source not in ARRAYS:
                changed = [*self.records[:place], record, *self.records[place + 1 :]]
                yield kind, self.embedded(source, changed, **options)

    def public(self) -> EmbeddingSet:
        """Generated pictures through the encoder, with labels that say nothing."""
        place = self.folder / "public"
        place.mkdir()
        pixels = trial_pictures(200, RESIZE, RESIZE).permute(0, 2, 3, 1).numpy()
        np.savez(place / "set.npz", x_train=pixels, y_train=np.arange(200) % 5)
        with _silence():
            Run(data=str(place / "set.npz"), **self.encoder, out=place / "rows").run()
        return EmbeddingSet.open(place / "rows")


def checks(pipeline: PipelineAudit) -> Iterator[Check]:
    """All comparisons: every source, engine, draw, method and report by every kind of record."""
    for source in SOURCES:
        yield from of_rows(pipeline, source, source)
    for engine, compute in COMPUTED:
        options = {"engine": engine, "compute": compute, "batch_size": 7}
        yield from of_rows(pipeline, "class folders", f"{engine}, {compute}", **options)
    public = pipeline.public()
    transform = PublicTransform.fit(public, components=8)
    found: list[Check] = []
    for source in ("class folders", "user folders"):
        first = pipeline.embedded(source, pipeline.records)
        about = about_a_row(transform, first)
        for kind, second in pipeline.neighbours(source):
            if len(first) != len(second):
                continue  # the numbers of rows are public: these are no neighbours
            second = aligned(first, second)
            found += of_draws(first, second, kind)
            found.append(of_exclusion(first, second, kind, pipeline.folder))
            named = with_users(first), with_users(second)
            found += [of_sums(*named, kind, transform, *each) for each in METHODS]
            found.append(of_sums(*named, kind, transform, about, {}))
            found += of_evaluations(*named, kind, transform)
    yield from sorted(found, key=lambda check: (check.command, check.where))


def as_text(group: Sequence[Check]) -> str:
    """One line for the comparisons of one command in one place, and one for each that is broken."""
    first, worst = group[0], max(check.moved for check in group)
    of = "of the claim" if first.command in ("run", "evaluate") else "row(s)"
    line = f"{first.command:15} {first.where:45} {len(group)} kinds, at most {worst:.3g} {of}"
    broken = [f"  BROKEN by {check.kind}: {check.found}" for check in group if check.broken]
    return "\n".join([line, *broken])


def of_rows(pipeline: PipelineAudit, source: str, where: str, **options: Any) -> Iterator[Check]:
    """`embed run`: all other rows are the same bits, with their labels, users and splits."""
    first = pipeline.embedded(source, pipeline.records, **options)
    for kind, second in pipeline.neighbours(source, **options):
        yield _rows_check("embed run", where, kind, first, second)


def of_draws(first: EmbeddingSet, second: EmbeddingSet, kind: str) -> Iterator[Check]:
    """`embed hold-out`: with one draw, all other rows are in the same part."""
    counts: dict[By, int] = {"record": len(first), "user": len(np.unique(users_of(first)))}
    for by, count in counts.items():
        if count < 2:
            continue
        keys = random_keys(count)
        pair = [with_held_out(each, 0.4, by=by, keys=keys) for each in (first, second)]
        yield _rows_check("embed hold-out", by, kind, *pair)


def of_exclusion(first: EmbeddingSet, second: EmbeddingSet, kind: str, folder: Path) -> Check:
    """`embed exclude`: whether another row stays does not depend on the record."""
    folder = folder / f"excluded {len(list(folder.iterdir()))}"
    public = first.subset(np.arange(1, len(first), 3))
    public.save(folder / "public")
    pair = []
    for name, each in (("first", first), ("second", second)):
        each.subset(slice(None)).save(folder / name)
        out = folder / f"{name} rest"
        Exclude(embeddings=folder / name, public=(folder / "public",), out=out).run()
        pair.append(EmbeddingSet.open(out))
    return _rows_check("embed exclude", "", kind, *pair)


def of_sums(
    first: EmbeddingSet,
    second: EmbeddingSet,
    kind: str,
    transform: PublicTransform,
    method: str | Method,
    options: Mapping[str, Any],
) -> Check:
    """`run`: without noise the sum moves by its sensitivity at most, and the report not at all.

    Where rows are shuffled, both sets are given the same order: the bound is that of every order.
    """
    name = method if isinstance(method, str) else f"{method.name} about a centre"
    where = ", ".join([name, *(f"{option} {value}" for option, value in options.items())])
    claims: dict[str, Any] = {}
    pair = []
    for rows in (first, second):
        users = range(len(np.unique(users_of(rows))))
        given = {**options, "faults": FaultInjection(known_noise=users), "reserve": claims.update}
        if options.get("solver") == "sgd":
            given |= {"noise": "float", "generator": torch.Generator().manual_seed(1)}
        pair.append(release(rows, method, PROMISE, transform=transform, **given))
    opened = [each.opened for each in pair if each.opened is not None]
    claim = claims["sensitivity"] * math.sqrt(claims.get("compositions", 1))
    return _sums_check("run", where, kind, opened, claim, [each.report for each in pair])


def about_a_row(transform: PublicTransform, rows: EmbeddingSet) -> Method:
    """The second sum of a discriminant, about a centre at the first row."""
    place = transform(rows.embeddings[:1], dtype=torch.float64)[0, 1:]
    options = {"sums": 2, "class_noise": 0.1}
    method = build_method("discriminant", transform, len(rows.meta["class_names"]), options)
    return replace(method.about(Centre.of(0.9 * place, 1.0, transform.public)), first=None)


def of_evaluations(
    first: EmbeddingSet, second: EmbeddingSet, kind: str, transform: PublicTransform
) -> Iterator[Check]:
    """`evaluate`, where the record is held out: as `of_sums`."""
    keys = random_keys(len(first))
    keys[[a != b for a, b in zip(rows_of(first), rows_of(second), strict=True)]] = 2**64 - 1
    pair = [with_held_out(each, 0.5, keys=keys) for each in (first, second)]
    model = release(pair[0], "discriminant", PROMISE, transform=transform, sums=1)
    users = range(len(np.unique(users_of(first)[pair[0].split == 2])))
    for overlap in ("refuse", "add"):
        claims: dict[str, Any] = {}
        given = {"faults": FaultInjection(known_noise=users), "reserve": claims.update}
        found = [summed(model, each, PROMISE, overlap=overlap, **given) for each in pair]
        opened, reports = [each.opened for each in found], [each.report for each in found]
        claim = claims["sensitivity"]
        yield _sums_check("evaluate", f"overlap {overlap}", kind, opened, claim, reports)


def _rows_check(
    command: str, where: str, kind: str, first: EmbeddingSet, second: EmbeddingSet
) -> Check:
    """All rows but one must be in both sets, as often."""
    rows = [Counter(rows_of(each)) for each in (first, second)]
    gone, new = (rows[0] - rows[1]).total(), (rows[1] - rows[0]).total()
    most, found = max(gone, new), f"{gone} rows gone, {new} new of {len(first)}"
    return Check(command, where, kind, float(most), most > 1, found)


def _sums_check(
    command: str,
    where: str,
    kind: str,
    opened: Sequence[Tensor],
    claim: float,
    reports: Sequence[Mapping[str, Any]],
) -> Check:
    """The sum moves by the claim at most, and the reports are equal."""
    moved, changed = float((opened[0] - opened[1]).norm()), differing(reports[0], reports[1])
    found = f"sum moved by {moved:.4g} of {claim:.4g}; report differs in {changed or 'nothing'}"
    return Check(command, where, kind, moved / claim, moved > claim or bool(changed), found)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
