"""The release of one model from many users' embeddings, and its report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.clip import ROWS
from pretrain.cli.provenance import versions
from pretrain.datasets import TEST
from train_distributed.ledger.entry import Reserve
from train_distributed.ledger.ledger import NONE
from train_distributed.one_shot.class_prior import class_names
from train_distributed.one_shot.method import Method, OpenedSum, ReleaseState, after_sums
from train_distributed.one_shot.model import INSIDE, Release, reading
from train_distributed.one_shot.report_file import Report
from train_distributed.one_shot.request import FaultInjection, Noise, ReleaseRequest
from train_distributed.one_shot.statistic import CHUNK, Users
from train_distributed.one_shot.summation import RunningSum
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy

MADE_WITH = ("torch", "numpy", "blind-averaging")  # packages that a model depends on
CLEAR = "rows of split 1 (test), read in the clear: no epsilon covers what these numbers show"


def release_of(request: ReleaseRequest) -> Release:
    """Carries a request out; see `release`."""
    noise = request.checked_noise()
    source, method, privacy = request.source, request.built, request.privacy
    discrete = noise == "discrete" and privacy.private
    sizes, dim = source.users.sizes, source.transform.dim
    plan = request.planned(discrete=discrete)
    faults = FaultInjection() if request.faults is None else request.faults
    kept = faults.surviving(len(sizes), plan.sums[0].guarantee.min_survivors)
    checked = source.validate(
        privacy,
        discrete=discrete,
        vouched=request.vouch_for_transform,
        allow_delta=request.allow_delta,
    )
    rows, survivors = int(sizes[kept].sum()), int(kept.sum())
    small = len(plan.sums) > 1 and int(sizes.sum()) * dim <= CHUNK
    # a stream may use the memory of a chunk again
    held = list(source.chunks(kept)) if small and source.embeddings is not None else None
    state, opened, seconds = ReleaseState(method), list[Tensor](), list[float]()
    if request.centre is not None:
        state = state.receive(request.centre)
        opened.append(request.centre)

    def summed(number: int, state: ReleaseState) -> OpenedSum:
        began = time.perf_counter()
        running = RunningSum(plan.sums[number], frozenset(faults.known_noise))
        if number == 1 and request.done == 0 and state.centre is not None and request.found:
            request.found(state.centre)
        for chunk in source.chunks(kept) if held is None else held:
            running.add_chunk(state.statistic, state.rows(chunk))
        if number == request.done and request.reserve is not None:
            request.reserve(plan.spends(request.done))  # all that may be refused has been
        opened.append(running.total())
        seconds.append(time.perf_counter() - began)
        return opened[-1], rows, running.planned.mechanism.noise_std(survivors)

    state = after_sums(state, range(request.done, len(plan.sums)), summed)
    fitted, method = state.fitted(), state.method
    declared = () if source.embeddings is None else source.embeddings.declared_classes
    names = class_names(declared, method.num_classes)
    facts = plan.report() | plan.report_sent()
    facts |= checked.report | state.report()
    facts |= {"users": len(sizes), "survivors": survivors, "rows": rows}
    facts |= method.report()
    facts |= state.prior_report(names)
    verdict = suitability(
        privacy,
        noise,
        seeded=request.generator is not None,
        rehearsed=None if request.faults is None else request.faults.reason,
        others=checked.unsuitable,
    )
    if len(plan.sums) > 1 and not verdict["suitable_for_release"]:  # times depend on the rows
        facts |= {"simulation_only": {"seconds_per_round": seconds}}
    # faults are played many times, for the sum or the weights alone
    released = Release(
        fitted.weights,
        state.transform or source.transform,
        names,
        opened=torch.cat(opened),
        temperature=1.0 if request.faults else fitted.temperature,
        class_shares=None if request.faults else fitted.class_shares,  # go with T
        prior=fitted.prior,
        findings=request.findings or method.name == "findings",
    )
    return reported(released, facts, verdict, source.embeddings)


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
    the promise; see `extra_sums`. `sums=1` does without.

    Rows, classes or a transform that do not fit are refused before any work, always the whole set;
    `source` states what a refusal reveals.

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
        generator: makes a "float" run reproducible, for simulations.
        min_survivors: m_min, the fewest users that a sum is opened for; None: all.
        vouch_for_transform: the caller asserts that a transform without hashes of the rows it was
            fitted on was fitted on no private row; the report says so.
        allow_delta: accepts a δ of 1/rows or more; the report says so.
        faults: users that drop out or whose noise is known, for audits; the model is marked.
        reserve: called once with what is known of the noise: when all users' first submissions
            are there, so that nothing can be refused any more, and before any noise is drawn. It
            counts what is spent (`ledger.reservation`), or stops the release by raising. The
            report says "ledger": "none" unless `reserve` says otherwise.
        **options: settings of the method, as in `registry.build_method`, `user_clip` among them; Λ
            of a head that is left out is that of `request`.

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
    return release_of(ReleaseRequest(**locals()))  # the arguments are its fields


def reported(
    released: Release,
    facts: Mapping[str, Any],
    verdict: Mapping[str, Any],
    embeddings: EmbeddingSet | None = None,
) -> Release:
    """The model with its whole report: facts, verdict, versions, and accuracy where it is known.

    Facts keep the places that they have here; the verdict is of `suitability`. The set that was
    learned from gives the accuracy, if it has a test split, and says what the model says of its
    encoder.
    """
    report: dict[str, Any] = {**facts, **verdict, "ledger": NONE, "versions": versions(*MADE_WITH)}
    made = released.transform.encoding if embeddings is None else embeddings.encoding
    made = made or released.transform.encoding
    report |= {"encoding": made and made.to_json()}
    report |= {"probabilities": reading(facts.get("method"))}
    if released.class_shares is None:
        report |= {"other_priors": f"none: {INSIDE}"}
    if released.temperature != 1:
        report |= {"temperature": released.temperature}
    if embeddings is not None and (embeddings.split == TEST).any():
        metrics = measure(replace(released, report=Report.of(report)), embeddings)
        if released.findings:
            report |= {"test_findings": metrics | {"of": CLEAR}}
            return replace(released, report=Report.of(report), encoding=made)
        shares = {name: of["recall"] for name, of in metrics["per_class"].items() if of["rows"]}
        report |= {"test_accuracy": metrics["accuracy"]}
        report |= {"majority_baseline": metrics["majority_baseline"]}
        report |= {"test_accuracy_per_class": shares, "test_metrics": metrics | {"of": CLEAR}}
    return replace(released, report=Report.of(report), encoding=made)


def suitability(
    privacy: Privacy,
    noise: Noise,
    *,
    seeded: bool,
    rehearsed: str | None = None,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Whether the model may leave the building, and if not, why.

    Reasons against it are a promise without noise, floating-point noise, a seed, a rehearsal or an
    audit as `rehearsed` says, and the others that are given.
    """
    reasons = {
        "it has no noise: not private": not privacy.private,
        "floating-point noise": noise == "float" and privacy.private,
        "seeded: whoever knows the seed can subtract the noise": seeded,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    why += [*([] if rehearsed is None else [rehearsed]), *others]
    return {"suitable_for_release": not why} | ({"unsuitable_because": why} if why else {})


def measure(released: Release, embeddings: EmbeddingSet, split: int = TEST) -> dict[str, Any]:
    """All metrics on the rows of a split; see `metrics`. Raises ValueError for an empty split."""
    from train_distributed.one_shot.finding_metrics import FindingMetrics
    from train_distributed.one_shot.metrics import ClassifierMetrics

    rows = np.flatnonzero(embeddings.split == split)
    if not len(rows):
        raise ValueError(f"split must hold rows, got none in split {split}")
    kind = FindingMetrics if released.findings else ClassifierMetrics
    evaluation = kind.of(released, len(rows))
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        evaluation.add(released.scores(embeddings.embeddings[part]), embeddings.targets[part])
    return evaluation.report()
