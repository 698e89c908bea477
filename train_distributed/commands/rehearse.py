"""`blind-averaging rehearse`: which accuracy a run will have, from public rows alone."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embed.options import NONE, Knowledge
from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from pretrain.cli.waiting import Progress
from train_distributed.commands.configuration import RunConfig, jsonable
from train_distributed.one_shot.registry import DEFAULT
from train_distributed.privacy.promise import Privacy, Unit

if TYPE_CHECKING:  # what works is imported by the command that runs
    from embed import EmbeddingSet
    from train_distributed.simulation.prediction import Predictions
    from train_distributed.simulation.rehearsal import Rehearsal

CONFIGURATION = "configuration.json"


@dataclass(frozen=True)
class Rehearse:
    """Predict the accuracy of `run` from public rows: no private row is read, no epsilon is spent.

    Whole releases, with all sums and their noise, are played on tasks that are made of classes of
    public rows, with the settings that `run` would take. The prediction holds for classes like
    these; for pictures of another kind, give --like.

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
    """Labelled public embedding set of pictures like the private ones, of the same encoder, which
    tasks are made of (default: of --public)."""
    knowledge: Knowledge = field(default_factory=Knowledge)
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
        given = (self.public, self.like, self.knowledge.examples)
        out = output_directory(self.out, "rehearse", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            for line in self._into(partial, promises):
                print(line)
        print(f"written: {out}")
        return out

    def _into(self, partial: Path, promises: Sequence[Privacy]) -> Iterator[str]:
        from train_distributed.simulation.prediction import Predictions
        from train_distributed.simulation.rehearsal import SEEDS, Rehearsal, Sizes
        from train_distributed.simulation.rehearsal_figure import draw_rehearsal
        from train_distributed.simulation.tasks import overlap

        public = self._opened("public", self.public)
        like = None if self.like is None else self._opened("like", self.like, public)
        if self.knowledge.examples not in (None, NONE):
            self._opened("examples", self.knowledge.examples, public)
        sizes = Sizes(
            users=self.users, rows_per_user=self.rows_per_user, num_classes=self.num_classes
        )
        rehearsal = Rehearsal.of(public, sizes, promises[0], like=like, knowledge=self.knowledge)
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
            predictions = Predictions(cells, overlap(rehearsal.tasks), rehearsal.drawn_from)
            for promise in promises:
                needed[promise.epsilon] = _needed(rehearsal, predictions, promise.epsilon)
                progress.update(1)
        stage = rehearsal.stage(rehearsal.tasks[0])
        costs = {each: rehearsal.cost(stage, each) for each in self.epsilon}
        chosen = RunConfig(DEFAULT, options, promises[0], public.content_hash(), public.encoding)
        (partial / CONFIGURATION).write_text(chosen.text())
        report = {
            **provenance(),
            "configuration": jsonable(asdict(self)),
            "private_data_read": False,
            "tasks": len(rehearsal.tasks),
            "seeds": SEEDS,
            "classes_are_the_asked_ones": rehearsal.known_classes,
            "predictions": _described(predictions, self.epsilon),
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
        yield f"{'':16}{'accuracy':24}{'balanced accuracy':24}a single run"
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


def _described(predictions: "Predictions", epsilons: Sequence[float]) -> list[dict[str, Any]]:
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
