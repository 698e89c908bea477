"""A private run played through on public labelled embeddings, to choose what the run will use."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from embed.directions import RESTRICTED, Directions
from embed.transform_options import TransformOptions

from embed import EmbeddingSet
from embed.store import TEST, TRAIN
from pretrain import check
from train_distributed.one_shot.defaults import HEAVY, KNOWING, PublicFacts
from train_distributed.one_shot.registry import Centre
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.fits import Fits
from train_distributed.simulation.known_before import KnownBefore
from train_distributed.simulation.plan import Choice, Grid, MethodConfig, Result, place
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.scenario import Scenario, held_out
from train_distributed.simulation.tasks import drawn, pose_task, rebalanced, task_shares

FOLDS = 4  # parts of a task's rows: one of them tests, another one in the next task
COMPONENTS = (64, 128, 256, 512)
KINDS: tuple[Directions, ...] = ("principal", "hedge", "discriminant")
FEW = 8  # candidates that are played through in all tasks
MANY = 256  # components from which on the noise of the moments matters


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Public facts about a run: sizes, classes and partition, nothing from its rows."""

    users: int  # w
    rows_per_user: int  # n
    num_classes: int  # K
    scheme: str = "iid"
    concentration: float | None = None  # dirichlet only

    def validate(self) -> None:
        """Raises ValueError for a number out of range."""
        check.at_least(1, users=self.users, rows_per_user=self.rows_per_user)
        check.at_least(2, num_classes=self.num_classes)

    def of_new_classes(self, public: int) -> "Sizes":
        """Sizes of so few classes that half of the public ones are left.

        For private classes that are none of the `public` ones: transforms are fitted on what a task
        leaves over, or what separates its own labels would look better than it is.
        """
        return self.of_classes(max(2, public // 2))

    def of_classes(self, most: int) -> "Sizes":
        """Sizes of at most so many classes, each with as many rows."""
        classes = min(self.num_classes, most)
        rows = round(self.rows_per_user * classes / self.num_classes)
        return replace(self, num_classes=classes, rows_per_user=max(1, rows))

    def leading(self, privacy: Privacy, width: int) -> int:
        """Directions that the public rule allows for, whatever is known of the classes."""
        return self._facts(privacy).components("discriminant", width)

    def kept_of_others(self, privacy: Privacy, width: int) -> tuple[int, int]:
        """Directions that the public rule keeps where pictures are unlike the public ones."""
        _, fewer, more = self._facts(privacy).keep_by_rule("discriminant", width)
        return fewer, self.discriminants(privacy, width) or more

    def discriminants(self, privacy: Privacy, width: int) -> int | None:
        """The second of these numbers where it is one of discriminants; None where it is not."""
        return self._facts(privacy).discriminants("discriminant", width)

    def moment_weight(self, privacy: Privacy) -> float | None:
        """Weight α that the public rule gives to second moments; None: one that adds no noise."""
        return self._facts(privacy).moment_weight("discriminant", {})

    def _facts(self, privacy: Privacy) -> PublicFacts:
        sizes = torch.full((self.users,), self.rows_per_user)
        return PublicFacts(sizes=sizes, num_classes=self.num_classes, privacy=privacy)

    @property
    def name(self) -> str:
        """The `scheme` of its rehearsal's cells."""
        return self.stand_in(self.users * self.rows_per_user).name

    def stand_in(self, rows: int) -> Scenario:
        """Scenario of as many users as `rows` public rows can play, or one with all of them."""
        each = min(self.rows_per_user, rows)
        return Scenario(
            users=min(self.users, rows // each),
            scheme=self.scheme,
            rows_per_user=each,
            concentration=self.concentration,
            stands_for=(self.users, self.rows_per_user),
        )


@dataclass(frozen=True)
class Candidates:
    """Settings to choose from and the transforms that they name."""

    settings: tuple[MethodConfig, ...]
    transforms: Mapping[str, TransformOptions]

    @classmethod
    def default(
        cls,
        dim: int,
        *,
        rounds: int = 0,
        centre: Centre = "public",
        others: tuple[int, int] | None = None,
        discriminants: int | None = None,
        leading: int | None = None,
        moment_weight: float | None = None,
    ) -> "Candidates":
        """The discriminant on public directions of (p,) embeddings; at most 32 candidates.

        Second moments have the `moment_weight` given, those of many directions also `HEAVY`.
        `rounds` are T further sums, an alternative to none. About a private centre those of the
        kind "hedge" keep `others`, by the public rule, where pictures are of another kind; the
        second number of these are `discriminants`, if there are any. None is "mixed" then, which
        is best for pictures of the public kind alone. Where the classes are known all but the
        first directions are faint; one candidate has as many `leading` ones as the public rule
        says.
        """
        weighed = check.present(alpha=moment_weight)
        alone: dict[str, Any] = {} if centre == "public" else {"centre": centre}
        others = None if centre == "public" else others
        directions: tuple[Directions, ...] = KINDS if others else (*KINDS, "mixed")
        kinds = product(sorted({min(q, dim) for q in COMPONENTS}), directions)
        grid = {
            f"q={q} {kind}": TransformOptions(components=q, directions=kind) for q, kind in kinds
        }
        if leading is not None:
            grid = {name: _faint(each, dim) for name, each in grid.items()}
            grid["by rule"] = _faint(TransformOptions(components=leading, directions="hedge"), dim)
        settings, transforms = [], {}
        for name, options in grid.items():
            own, q = alone, options.leading or options.components or dim
            if others is not None and options.directions == "hedge":
                keep = (q, *others)
                own = {**alone, "keep": keep}
                widest = max(keep)
                if discriminants is not None:  # one transform for all of them
                    widest = min(RESTRICTED, dim)
                    name = f"q={widest} hedge"
                options = replace(options, components=widest, discriminants=discriminants)
            transforms[name] = options
            settings.append(MethodConfig("discriminant", "discriminant", name, own | weighed))
            if q < MANY:
                continue
            more = [{**own, "alpha": HEAVY}] if (moment_weight or 0) < HEAVY else []
            more += [{**own, "rounds": rounds}] if rounds else []
            settings += [MethodConfig("discriminant", "discriminant", name, each) for each in more]
        return cls(tuple(settings), transforms)

    def for_equal_classes(self) -> "Candidates":
        """Candidates with every class equally probable, where a method has that option."""
        balanced = [
            s if s.method == "svm" else replace(s, options={**s.options, "prior": "equal"})
            for s in self.settings
        ]
        return replace(self, settings=tuple(balanced))

    @staticmethod
    def half(number: int) -> int:
        """How many of so many candidates are left after a task; `FEW` are never given up."""
        return max(FEW, (number + 1) // 2)

    def better_half(self, ranked: Sequence[Choice]) -> "Candidates":
        """The first half of a ranking, or the first `FEW`: the others are given up."""
        first = {choice.place for choice in ranked[: self.half(len(ranked))]}
        kept = tuple(setting for setting in self.settings if place(setting) in first)
        names = {setting.transform for setting in kept}
        transforms = {name: each for name, each in self.transforms.items() if name in names}
        return Candidates(kept, transforms)


def _faint(given: TransformOptions, dim: int) -> TransformOptions:
    """Adds faint directions to the given ones, as many as `run` has where classes are known."""
    own, wanted = given.components or dim, min(KNOWING, dim)
    return replace(given, components=wanted, leading=own) if own < wanted else given


def rehearse(
    public: EmbeddingSet,
    federations: Sequence[Sizes],
    promises: Sequence[Privacy],
    candidates: Candidates,
    *,
    tasks: int | Sequence[int],
    seeds: int,
    balance: Sequence[float] | None = None,
    before: KnownBefore | None = None,
    like: EmbeddingSet | None = None,
    whole: Fits | None = None,
    finished: Collection[str] = (),
) -> Iterator[tuple[str, list[Result]]]:
    """Accuracy of every candidate on tasks that public classes are grouped into.

    A task has K classes, each a union of similar public classes, and is solved by users like those
    of the federation; where the public rows are fewer than theirs, sums are scaled up to their
    number and the noise is that of all. Transforms are fitted on public classes that the task does
    not use, as the real one will know other classes than the private ones; test rows are held out.

    Args:
        public: labelled embeddings that are nobody's secret, with at least K classes.
        federations: sizes of the runs, of one K.
        promises: one accuracy each.
        candidates: what to choose from.
        tasks: how many groupings, or their numbers.
        seeds: partitions and noises per grouping.
        balance: (K,) shares of the classes among training rows; empty: equal and 1:2 by turns;
            None: as public classes have them.
        before: what will be known of the private classes before; None: nothing.
        like: labelled public embeddings of the private kind, with at least K classes, which tasks
            are made of instead; transforms are fitted on all public rows then.
        whole: transforms of all public rows, shared by several calls; None: fitted here.
        finished: keys of jobs to leave out.

    Yields:
        key and cells of one job; their `seed` counts through tasks.

    Raises:
        ValueError: no labels, a row that is not finite, fewer than K public classes, or a number
            out of range.
    """
    public.need_labels("public")
    public.check_finite("public")
    for federation in federations:
        federation.validate()
    classes = federations[0].num_classes
    if like is not None:
        like.need_labels("like")
        like.check_finite("like")
    source = public if like is None else like
    whole = whole or Fits(public, candidates.transforms)
    for task in range(tasks) if isinstance(tasks, int) else tasks:
        shares = None if balance is None else task_shares(classes, task, balance or None)
        rng = np.random.default_rng(task)
        groups = pose_task(source, classes, rng) if like is None else drawn(like, classes, rng)
        labels = groups[source.labels]
        asked, known = np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)
        tested = np.zeros(len(asked), bool)
        tested[held_out(labels[asked], tested, FOLDS, task)[1]] = True
        if shares is not None:
            kept = tested.copy()
            kept[~tested] = rebalanced(labels[asked[~tested]], shares, rng)
            asked, tested = asked[kept], tested[kept]
        shown = None
        if before is not None and before.examples:
            train = np.flatnonzero(~tested)
            held_back = np.zeros(len(asked), bool)
            held_back[train] = before.held_back(labels[asked[train]], task)
            shown, asked, tested = asked[held_back], asked[~held_back], tested[~held_back]
        plan = Grid(
            settings=candidates.settings,
            scenarios=[each.stand_in(int((~tested).sum())) for each in federations],
            promises=promises,
            seeds=range(task * seeds, (task + 1) * seeds),
            num_classes=classes,
        )
        plan.validate()
        if {job.key for job in plan.trials()} <= set(finished):
            continue
        posed = EmbeddingSet(
            embeddings=source.embeddings[asked],
            labels=labels[asked],
            split=np.where(tested, TEST, TRAIN).astype(np.uint8),
        )
        others = 0 if like is not None else len(np.unique(public.labels[known]))
        enough = others > 1 and len(known) > len(asked) // 2
        fits = Fits(public.subset(known), candidates.transforms) if enough else whole
        transforms = fits.transforms(candidates.transforms)
        if before is not None:
            here = replace(before, sources=before.sources.compressed(fits.compression.basis))
            examples = None
            if shown is not None:
                examples = EmbeddingSet(embeddings=public.embeddings[shown], labels=labels[shown])
                examples = fits.compression.apply(examples)
            of_task = [np.flatnonzero(groups == k).tolist() for k in range(classes)]
            transforms = {
                name: here.added_to(each, fits.public, of_task, examples)
                for name, each in transforms.items()
            }
        yield from run_trials(fits.compression.apply(posed), transforms, plan, finished=finished)
