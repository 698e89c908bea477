"""Commands that predict or demonstrate accuracy: `rehearse` and `demo`."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embed.options import Knowledge
from pretrain import check
from pretrain.cli.output import (
    new_directory,
    output_directory,
    write_json,
)
from pretrain.cli.provenance import provenance
from pretrain.cli.waiting import Progress
from pretrain.public import function
from train_distributed.commands.options import RunConfig, jsonable
from train_distributed.privacy.promise import Privacy, Unit

if TYPE_CHECKING:  # what works is imported by the command that runs
    import numpy as np
    from torch import Tensor

    from embed import EmbeddingSet
    from train_distributed.simulation.plan import Grid, Result
    from train_distributed.simulation.prediction import Predictions
    from train_distributed.simulation.rehearsal import Rehearsal

CONFIGURATION = "configuration.json"


@dataclass(frozen=True)
class Rehearse:
    """Predict the accuracy of `run` from public rows: no private row is read, no epsilon is spent.

    Whole releases, with all sums and their noise, are played on tasks that are made of classes of
    public rows, or of their findings, with the settings that `run` would take. The prediction holds
    for classes like these; for pictures of another kind, give --like.

    blind-averaging rehearse --public public --users 20 --rows-per-user 40 --num-classes 10
    """

    public: Path
    """Labelled public embedding set, on which `run` will fit its transform."""
    users: int
    """Number of users that will take part."""
    rows_per_user: int
    """Mean number of rows of a user."""
    num_classes: int
    """Number of classes K of the private rows."""
    epsilon: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Values of epsilon to predict for; the configuration is for the first."""
    delta: float = 1e-5
    """Failure probability delta."""
    unit: Unit = "record"
    """Unit of protection: one record, or all records of one `user`; then clips of users' vectors
    are proposed."""
    like: Path | None = None
    """Labelled public embedding set of pictures like the private ones, by the same encoder, to
    make tasks from (default: --public)."""
    names: tuple[str, ...] | None = None
    """Names of the private classes: words for --text-encoder; and where --public has these classes,
    tasks are made from them (default: from any classes)."""
    text_encoder: str | None = None
    """Guess classes from their names as `run` does: `package` (extra `names`), or a folder that
    transformers can load (default: names are not used)."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Prints the predictions; writes report.json, accuracy.png and configuration.json.

        Raises:
            ValueError: a setting out of range, or too few public classes.
            FileExistsError: the directory exists.
        """
        promises = [Privacy(epsilon, self.delta, unit=self.unit) for epsilon in self.epsilon]
        check.given(epsilon=self.epsilon or None)
        for promise in promises:
            promise.validate()
        if not all(promise.private for promise in promises):
            raise ValueError("epsilon must be finite, as no noise is a baseline anyway, got inf")
        given = (self.public, self.like)
        out = output_directory(self.out, "rehearse", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            for line in self._into(partial, promises):
                print(line)
        print(f"written: {out}")
        return out

    def _into(self, partial: Path, promises: Sequence[Privacy]) -> Iterator[str]:
        from train_distributed.simulation.prediction import Predictions, draw_rehearsal
        from train_distributed.simulation.rehearsal import SEEDS, Rehearsal, Sizes
        from train_distributed.simulation.tasks import overlap

        public = self._opened("public", self.public)
        like = None if self.like is None else self._opened("like", self.like, public)
        sizes = Sizes(
            users=self.users, rows_per_user=self.rows_per_user, num_classes=self.num_classes
        )
        knowledge = Knowledge(names=self.names, text_encoder=self.text_encoder)
        rehearsal = Rehearsal.of(public, sizes, promises[0], like=like, knowledge=knowledge)
        options: dict[str, Any] = {}
        if self.unit == "user" and self.users > 1:
            options = {"user_clip": rehearsal.proposed_clips(promises[0].epsilon)}
            rehearsal = replace(rehearsal, options=options)
        cells, needed = [], {}
        steps = len(rehearsal.tasks) * SEEDS * (len(promises) + 2)
        with Progress(steps + len(promises), "played", "release") as progress:
            for more in rehearsal.played(self.epsilon):
                cells += more
                progress.update(1)
            predictions = Predictions(
                cells, overlap(rehearsal.tasks), rehearsal.drawn_from, rehearsal.measures
            )
            for promise in promises:
                needed[promise.epsilon] = _needed(rehearsal, predictions, promise.epsilon)
                progress.update(1)
        stage = rehearsal.stage(rehearsal.tasks[0])
        costs = {each: rehearsal.cost(stage, each) for each in self.epsilon}
        chosen = RunConfig(
            rehearsal.method, options, promises[0], public.content_hash(), public.encoding
        )
        (partial / CONFIGURATION).write_text(chosen.text())
        report = {
            **provenance(),
            "configuration": jsonable(asdict(self)),
            "private_data_read": False,
            "tasks": len(rehearsal.tasks),
            "seeds": SEEDS,
            "classes_are_the_asked_ones": rehearsal.known_classes,
            "measures": rehearsal.measures,
            "predictions": _in_words(predictions, self.epsilon),
            "for_five_points_more": {f"{e:g}": each for e, each in needed.items()},
            "user_clip": options.get("user_clip"),
            "bytes_per_user": {f"{e:g}": sent for e, (sent, _) in costs.items()},
            "seconds_per_user": {f"{e:g}": seconds for e, (_, seconds) in costs.items()},
            "played": [asdict(cell) for cell in cells],
        }
        write_json(partial / "report.json", report)
        draw_rehearsal(predictions, self.epsilon, partial / "accuracy.png")
        yield from self._lines(rehearsal, predictions, needed, costs)

    def _lines(
        self,
        rehearsal: "Rehearsal",
        predictions: "Predictions",
        needed: dict[float, dict[str, float | None]],
        costs: dict[float, tuple[int, float]],
    ) -> Iterator[str]:
        of = "these classes" if rehearsal.known_classes else "classes like those"
        yield f"{self.users} users of {self.rows_per_user} rows, {self.num_classes} classes"
        yield f"predicted for {of} of {self.like or self.public}; 80 % intervals, in per cent"
        first, second = rehearsal.measures
        yield f"{'':16}{first:24}{second:24}a single run"
        rows: list[tuple[str, Any, float | None]] = [("largest class", "largest class", None)]
        if predictions.beside == "public alone":
            rows.append(("public alone", "public alone", None))
        rows += [(f"epsilon {each:g}", "private", each) for each in self.epsilon]
        rows.append(("no privacy", "no privacy", None))
        for name, kind, epsilon in rows:
            accuracy = predictions.of(kind, epsilon)
            balanced = predictions.of(kind, epsilon, balanced=True)
            single = f"± {100 * accuracy.single:.1f}" if kind == "private" else ""
            yield f"{name:16}{accuracy!s:24}{balanced!s:24}{single}".rstrip()
        for epsilon in self.epsilon:
            yield f"epsilon {epsilon:g}: {predictions.verdict(epsilon)}"
            yield f"epsilon {epsilon:g}: {_wanted(needed[epsilon])}"
        if rehearsal.options:
            first, own = rehearsal.options["user_clip"]
            yield f"users' clips, of the first sum and of the other: {first:g} {own:g}"
        for epsilon, (sent, seconds) in costs.items():
            yield (
                f"epsilon {epsilon:g}: a user sends {sent:,} bytes, after {seconds:.2f} s without "
                "embedding"
            )
        if self.like is None and not rehearsal.known_classes:
            yield "pictures of another kind than the public ones may differ by far: give --like"

    @staticmethod
    def _opened(name: str, path: Path, public: "EmbeddingSet | None" = None) -> "EmbeddingSet":
        """A labelled set; ValueError for other embeddings than public."""
        from embed import EmbeddingSet
        from embed.encoding import refuse_other

        found = EmbeddingSet.open(path)
        found.need_labels(name)
        if public is not None:
            refuse_other(public.encoding, found.encoding, ("public", name))
            if found.dim != public.dim:
                raise ValueError(
                    f"{name} must have {public.dim} columns as public, got {found.dim} in {path}"
                )
        return found


rehearse = function("rehearse", Rehearse)


def _needed(
    rehearsal: "Rehearsal", predictions: "Predictions", epsilon: float
) -> dict[str, float | None]:
    """Users and ε for five points more; no ε where no noise at all gains so much."""
    from train_distributed.simulation.rehearsal import GAIN

    best = predictions.of("no privacy", balanced=True).mean
    room = best - predictions.of("private", epsilon, balanced=True).mean
    return {
        "users": rehearsal.needed(epsilon, more="users"),
        "epsilon": rehearsal.needed(epsilon, more="epsilon") if room >= GAIN else None,
    }


def _wanted(needed: dict[str, float | None]) -> str:
    from train_distributed.simulation.rehearsal import DOUBLINGS

    users, epsilon = needed["users"], needed["epsilon"]
    most = f"{DOUBLINGS[-1]} times the users" if users is None else f"{users:g} users"
    words = f"not even {most} gain" if users is None else f"{most} would gain"
    more = "no epsilon would" if epsilon is None else f"so would epsilon {epsilon:g}"
    return f"{words} 5 points; {more}"


def _in_words(predictions: "Predictions", epsilons: Sequence[float]) -> list[dict[str, Any]]:
    """Every kind of model and ε, JSON-ready."""
    asked: list[tuple[Any, float | None]] = [("largest class", None), ("no privacy", None)]
    if predictions.beside == "public alone":
        asked.append(("public alone", None))
    asked += [("private", epsilon) for epsilon in epsilons]
    return [
        {
            "kind": kind,
            "epsilon": epsilon,
            "accuracy": predictions.of(kind, epsilon).as_dict(),
            "balanced_accuracy": predictions.of(kind, epsilon, balanced=True).as_dict(),
        }
        | ({"verdict": predictions.verdict(epsilon)} if epsilon is not None else {})
        for kind, epsilon in asked
    ]


DELTA = 1e-5
SCHEMES = ("iid", "one-class")
SIMCLR, PIXELS = "SimCLR", "pixels"
METHODS = {
    "discriminant": "discriminant",
    "softmax, blind averaging": "softmax",
    "SVM, blind averaging": "svm",
}


@dataclass(frozen=True)
class Demo:
    """Demonstration: every method at several ε, on digits of private users."""

    users: int = 100
    """Number of private users, with 25 digits each."""
    epsilons: tuple[float, ...] = (0.3, 1.0, 3.0, math.inf)
    """Values of ε, one per column; inf adds no noise and is not private."""
    seeds: int = 5
    """Number of repetitions, each with its own partition and noise."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Prints the table, writes results.json and accuracy.png.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        from train_distributed.simulation.digits import NUM_CLASSES, PRIVATE, load_digits, pixels

        check.within(f"[{NUM_CLASSES}, {PRIVATE}]", users=self.users)
        check.at_least(1, seeds=self.seeds)
        check.given(epsilons=self.epsilons or None)
        out = output_directory(self.out, "demo", overwrite=self.overwrite)
        self._plan().validate()
        started = time.perf_counter()
        images, labels = load_digits()
        rows = [
            cell
            for name, embeddings in ((SIMCLR, simclr_embeddings(images)), (PIXELS, pixels(images)))
            for cell in self._cells(name, embeddings, labels)
        ]
        seconds = time.perf_counter() - started
        print(self._text(rows))
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._write(partial, rows, seconds)
        print(f"written: {out}  ({seconds:.0f} s)")
        return out

    def _plan(self, transform: str = SIMCLR) -> "Grid":
        from train_distributed.simulation.digits import NUM_CLASSES
        from train_distributed.simulation.plan import Grid, MethodConfig, Scenario

        return Grid(
            settings=[MethodConfig(label, name, transform) for label, name in METHODS.items()],
            scenarios=[Scenario(users=self.users, scheme=scheme) for scheme in SCHEMES],
            promises=[Privacy(epsilon, DELTA) for epsilon in self.epsilons],
            seeds=range(self.seeds),
            num_classes=NUM_CLASSES,
        )

    def _cells(self, name: str, embeddings: "np.ndarray", labels: "np.ndarray") -> list["Result"]:
        from tqdm import tqdm

        from embed import PublicTransform
        from train_distributed.simulation.digits import split_digits
        from train_distributed.simulation.runner import run_trials

        plan = self._plan(name)
        public, private = split_digits(embeddings, labels)
        transform = PublicTransform.fit(public)
        jobs = run_trials(private, {name: transform}, plan)
        bar = tqdm(jobs, desc=name, total=len(plan.trials()), unit="job", disable=None, leave=False)
        return [cell for _, cells in bar for cell in cells]

    def _text(self, rows: list["Result"]) -> str:
        from train_distributed.research.experiments.figures import summarise, table
        from train_distributed.simulation.digits import PRIVATE, PUBLIC, TEST_ROWS

        parts = [
            f"5,000 MNIST digits: {PUBLIC} public (unlabelled), {PRIVATE} private of {self.users} "
            f"users, {TEST_ROWS} for testing.\nEncoder: SimCLR, trained just now on the public "
            f"digits; beside it the pixels themselves.\n"
            f"delta = {DELTA:g}, half of the users honest.\nTest accuracy in "
            f"per cent, mean ± deviation over {self.seeds} seeds; a simulation, unsuitable for "
            "release.\n"
        ]
        for name in (SIMCLR, PIXELS):
            parts += [f"{name}:", table(_of(rows, name)), ""]
        parts += ["best method per cell, chosen on the test digits:"]
        parts += [f"{'users hold':10}  {'eps':>11}{SIMCLR:>21}{PIXELS:>21}"]
        simclr, plain = (
            summarise(_of(rows, name), by=("scheme", "epsilon")) for name in (SIMCLR, PIXELS)
        )
        for (scheme, epsilon), summary in simclr.items():
            eps = "not private" if epsilon is None else f"{epsilon:g}"
            parts += [f"{scheme:10}  {eps:>11}{summary!s:>21}{plain[scheme, epsilon]!s:>21}"]
        return "\n".join([*parts, ""])

    def _write(self, directory: Path, rows: list["Result"], seconds: float) -> None:
        from train_distributed.research.experiments.figures import draw_frontier
        from train_distributed.simulation.digits import PRIVATE

        result = {
            **provenance(),
            "configuration": {
                "users": self.users,
                "seeds": self.seeds,
                "delta": DELTA,
            },
            "simulation": True,
            "suitable_for_release": False,
            "seconds": seconds,
            "cells": [row.as_dict() for row in rows],
        }
        write_json(directory / "results.json", result)
        for name, file in ((SIMCLR, "accuracy.png"), (PIXELS, "accuracy_pixels.png")):
            title = f"Accuracy on {PRIVATE:,} digits of {self.users} users, {name}"
            path = directory / file
            draw_frontier(_of(rows, name), path, title=f"{title} ({self.seeds} seeds)", chance=0.1)


demo = function("demo", Demo)


def simclr_embeddings(images: "Tensor") -> "np.ndarray":
    """(n, p) float32 of an encoder that saw the public digits alone, without labels."""
    import torch

    from pretrain.probe import embed_all
    from pretrain.recipes import DIGITS
    from pretrain.simclr import pretrain
    from train_distributed.simulation.digits import PUBLIC, SPLIT_SEED

    colour = images.expand(-1, 3, -1, -1).contiguous()
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    encoder, _ = pretrain(colour[:PUBLIC], DIGITS, generator)
    return embed_all(encoder, colour).numpy()


def _of(rows: list["Result"], transform: str) -> list["Result"]:
    return [row for row in rows if row.transform == transform]
