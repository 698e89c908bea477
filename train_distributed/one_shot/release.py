"""From many users' embeddings to one released model: train, add noise once, sum once."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed.ledger.entry import Reserve
from train_distributed.one_shot.class_prior import with_shares
from train_distributed.one_shot.course import Course
from train_distributed.one_shot.defaults import PublicFacts, Settings
from train_distributed.one_shot.faults import FaultInjection
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.private_rows import PrivateRows
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.report import Noise, check_noise, class_names, reported, suitability
from train_distributed.one_shot.summation import Plan, RunningSum
from train_distributed.one_shot.users import CHUNK, Users, check_stream
from train_distributed.partition import Partition
from train_distributed.privacy.float_noise import system_generator
from train_distributed.privacy.promise import Privacy


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """Arguments of `release`, and of every learner that is compared with it."""

    embeddings: EmbeddingSet | Users
    method: str | Method
    privacy: Privacy
    transform: PublicTransform | None = None
    num_classes: int | None = None  # K as the caller declares it
    partition: Partition | None = None
    noise: Noise | None = None  # None: discrete, or the only kind that a rival has
    generator: torch.Generator | None = None
    min_survivors: int | None = None
    vouch_for_transform: bool = False
    allow_delta: bool = False
    faults: FaultInjection | None = None
    reserve: Reserve | None = None
    centre: torch.Tensor | None = None  # that the first sum of an earlier try has found
    found: Callable[[torch.Tensor], None] | None = None  # called with the centre, once it is known
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> PrivateRows:
        """Rows, users, transform and classes, filled in; raises ValueError as `PrivateRows.of`."""
        transform = self.transform
        if transform is None and not isinstance(self.method, str):
            transform = self.method.transform and self.method.transform.raw
        given = transform, self.partition, self.num_classes
        return PrivateRows.of(self.embeddings, *given, self.generator)

    @property
    def facts(self) -> PublicFacts:
        """Public numbers on which settings that are left out depend."""
        return PublicFacts(
            sizes=self.source.users.sizes,
            num_classes=self.source.num_classes,
            privacy=self.privacy,
            min_survivors=self.min_survivors,
        )

    @property
    def draws(self) -> torch.Generator:
        """The generator given, or one from the operating system."""
        return system_generator() if self.generator is None else self.generator

    @cached_property
    def settings(self) -> Settings:
        """Transform and options of the method, those that are left out filled in, once.

        Raises ValueError for a setting out of range, or a prior's file that does not fit.
        """
        method, source = self.method, self.source
        if not isinstance(method, str):
            return Settings(source.transform, dict(self.options))
        declared = () if source.embeddings is None else source.embeddings.declared_classes
        options = with_shares(self.options, class_names(declared, source.num_classes))
        return self.facts.settled(method, source.transform, options)

    def described(self) -> dict[str, Any]:
        """Settled settings, for people; needs no row."""
        method, (transform, options) = self.method, self.settings
        own = isinstance(method, Method) or method in METHODS
        return {
            "method": method if isinstance(method, str) else method.name,
            "privacy": asdict(self.privacy),
            "users": len(self.source.users.sizes),
            "rows": int(self.source.users.sizes.sum()),
            "num_classes": self.source.num_classes,
            "clip_norm": transform.clip_norm,
            "options": dict(options),
            "noise": dict(self.spends()) if own else {"noise": self.noise},
        }

    @cached_property
    def built(self) -> Method:
        """The method with its settings, those that were left out by the public rule.

        Raises ValueError for a setting out of range, or a method made for other rows.
        """
        method, source = self.method, self.source
        if isinstance(method, str):
            options = self.settings.options
            return build_method(method, source.transform, source.num_classes, options)
        if self.options:
            raise ValueError(f"options must go into the Method itself, got {sorted(self.options)}")
        method.check(source.transform, source.num_classes)
        return method

    def known_noise(self) -> Noise:
        """The kind of noise; raises ValueError as `check_noise`."""
        noise = self.noise or "discrete"
        check_noise(noise, self.generator)
        return noise

    def spends(self) -> Mapping[str, Any]:
        """Fields with which `reserve` will be called, before any work; raises as `release`."""
        return self._planned(discrete=self.known_noise() == "discrete").spends(self._done)

    @property
    def _done(self) -> int:
        """Sums of an earlier try, which its own entry counts."""
        return 0 if self.centre is None else 1

    def release(self) -> Release:
        """The model; see the function `release`."""
        noise = self.known_noise()
        source, method, privacy = self.source, self.built, self.privacy
        discrete = noise == "discrete" and privacy.private
        transform, sizes = source.transform, source.users.sizes
        plan = self._planned(discrete=discrete)
        faults = FaultInjection() if self.faults is None else self.faults
        kept = faults.surviving(len(sizes), plan.sums[0].guarantee.min_survivors)
        checked = source.validate(
            privacy,
            discrete=discrete,
            vouched=self.vouch_for_transform,
            allow_delta=self.allow_delta,
        )
        rows, survivors = int(sizes[kept].sum()), int(kept.sum())
        course, opened, seconds, sums = Course(method), [], [], plan.sums
        if self.centre is not None:
            course = course.told(self.centre)
            opened.append(self.centre)
        small = len(sums) > 1 and int(sizes.sum()) * transform.dim <= CHUNK
        # a stream may use the memory of a chunk again
        held = list(source.chunks()) if small and source.embeddings is not None else None
        while len(opened) < len(sums):
            summation = RunningSum(sums[len(opened)], frozenset(faults.known_noise))
            began = time.perf_counter()
            for chunk in source.chunks() if held is None else held:
                arrived = kept[chunk.users]
                if arrived.any():
                    if source.embeddings is None and course.statistic.grid_powers is not None:
                        check_stream(chunk, transform.clip_norm, transform.constant)
                    summation.add_chunk(course.statistic, course.rows(chunk.select(arrived)))
            if len(opened) == self._done and self.reserve is not None:
                self.reserve(plan.spends(self._done))  # all that may be refused has been
            opened.append(summation.total())
            std = summation.planned.mechanism.noise_std(survivors)
            course = course.after(opened[-1], rows, std)
            if self.found is not None and course.centre is not None and len(opened) == 1:
                self.found(course.centre)
            seconds.append(time.perf_counter() - began)
        fitted, method = course.fitted(), course.method
        # faults are played many times, for the sum or the weights alone
        temperature = 1.0 if self.faults else fitted.temperature
        declared = () if source.embeddings is None else source.embeddings.declared_classes
        names = class_names(declared, method.num_classes)
        facts = plan.report() | plan.report_sent()
        facts |= checked.report | course.report()
        facts |= {"users": len(sizes), "survivors": survivors, "rows": rows}
        facts |= method.report()
        facts |= course.prior_report(names)
        verdict = suitability(
            privacy,
            noise,
            seeded=self.generator is not None,
            rehearsed=None if self.faults is None else self.faults.reason,
            others=checked.unsuitable,
        )
        if len(sums) > 1 and not verdict["suitable_for_release"]:  # times depend on the rows
            facts |= {"simulation_only": {"seconds_per_round": seconds}}
        released = Release(
            fitted.weights,
            course.transform or transform,
            names,
            opened=torch.cat(opened),
            temperature=temperature,
            class_shares=None if self.faults else fitted.class_shares,  # go with T
            prior=fitted.prior,
        )
        return reported(released, facts, verdict, source.embeddings)

    def _planned(self, *, discrete: bool) -> Plan:
        """All sums of the release, each of which is feasible."""
        given = self.built, self.source.users.sizes, self.privacy, self.min_survivors
        return Plan.of(*given, discrete=discrete, generator=self.generator)


def with_seconds(released: Release, started: float) -> Release:
    """The model; the report of a simulation also says how long it took, which depends on the rows.

    `started` is what `time.perf_counter` said.
    """
    if released.report.suitable_for_release:
        return released
    seconds = {"seconds": time.perf_counter() - started}
    simulated = released.report.get("simulation_only", {}) | seconds
    return released.with_report(simulation_only=simulated)


def release(
    embeddings: EmbeddingSet | Users,
    method: str | Method,
    privacy: Privacy,
    *,
    transform: PublicTransform | None = None,
    num_classes: int | None = None,
    partition: Partition | None = None,
    noise: Noise = "discrete",
    generator: torch.Generator | None = None,
    min_survivors: int | None = None,
    vouch_for_transform: bool = False,
    allow_delta: bool = False,
    faults: FaultInjection | None = None,
    reserve: Reserve | None = None,
    **options: Any,
) -> Release:
    """One private model from all users' rows, by one sum or more.

    With a transform fitted on public rows a first sum finds where the rows lie, with a tenth of
    the promise; see `first_sum`. `sums=1` does without.

    What is wrong with the rows, the classes or the transform is refused before any work, for the
    set as a whole; see `intake` for what a refusal shows.

    Args:
        embeddings: what users hold: the training rows of a set, or any stream of `Users`.
        method: "discriminant", "softmax", "svm", "logistic", or a `Method` made for the same
            transform and classes.
        privacy: (ε, δ), honest fraction, unit and group.
        transform: the public transform, which alone clips the rows; None: the `Method`'s own, or
            only the constant 1 and a clip to 1.
        num_classes: K, public; None: as many as the set's class names.
        partition: which user holds which training row; None: as the set's own users say.
        noise: "discrete" is what is deployed; "float" is for simulations and marked.
        generator: makes a "float" run reproducible, and unsuitable for release once more.
        min_survivors: m_min, the fewest users that a sum is opened for; None: all.
        vouch_for_transform: somebody answers for it that a transform without the hashes of its
            public rows has seen no private one; the report says so.
        allow_delta: lets a δ of 1/rows or more pass, which the report then says.
        faults: users that drop out or whose noise is known, for audits; the model is marked.
        reserve: called once, when all users' first submissions are there, so that nothing can be
            refused any more, and before any noise is drawn, with what is known of that noise:
            whoever counts what is spent (`ledger.reservation`), or stops it by raising. The report
            says "ledger": "none", until who counts says otherwise.
        **options: settings of the method, as in `registry.build_method`, `user_clip` among them; Λ
            of a head that is left out is that of `defaults`.

    Returns:
        The (d, K) weights with the transform of their rows and a report, which says under
        "local_noise_std" how much noise every user added.

    Raises:
        ValueError: a setting out of range, rows longer than the clip norm or not finite, rows that
            the transform has seen, a method made for other rows, classes that nobody declared,
            fewer survivors than m_min. Nothing has been released then.

    Examples:
        Four users of one row each, and so large an ε that the noise is nothing:

        >>> import numpy as np
        >>> from embed import EmbeddingSet
        >>> from train_distributed import Privacy, release
        >>> rows = EmbeddingSet(
        ...     embeddings=np.array([[1, 0], [0, 1], [1, 0], [0, 1]], np.float32),
        ...     labels=np.array([0, 1, 0, 1]),
        ...     users=np.arange(4),
        ...     meta={"class_names": ["right", "up"]},
        ... )
        >>> released = release(rows, "softmax", Privacy(1e4, 1e-5), l2_reg=0.1)
        >>> released.predict(rows.embeddings)
        tensor([0, 1, 0, 1])
        >>> released.report["neighbouring"]
        'replace one record; the number of rows of every user is public'
        >>> released.report["honest_users"], released.report["suitable_for_release"]
        (2, True)
    """
    return ReleaseRequest(**locals()).release()  # the arguments are its fields
