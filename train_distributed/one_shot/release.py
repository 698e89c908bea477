"""From many users' embeddings to one released model: train, add noise once, sum once."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed.ledger.fields import Reserve, gaussian_fields, simulated_fields
from train_distributed.one_shot.defaults import Circumstances
from train_distributed.one_shot.methods import (
    build_method,
    check_method,
    method_report,
    model_of,
    prior_report,
    unclipped,
    weights_of,
)
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.parts import (
    advanced,
    parts_of,
    promise_report,
    rounds_report,
    sums_of,
)
from train_distributed.one_shot.report import Noise, class_names, reported, suitability
from train_distributed.one_shot.source import Source
from train_distributed.one_shot.statistic import Method
from train_distributed.one_shot.summation import IntegerSum, add_chunk
from train_distributed.one_shot.users import Users, check_stream
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy


@dataclass(frozen=True)
class Rehearsal:
    """What an audit or a rehearsal plays through; its model is never suitable for release."""

    dropped: Collection[int] = ()  # users whose submission never arrives
    known_noise: Collection[int] = ()  # users whose noise an attacker knows: none is in the sum

    @property
    def reason(self) -> str:
        """Why the model is unsuitable."""
        if self.known_noise:
            return f"an audit: {len(set(self.known_noise))} users added no noise"
        return f"a rehearsal: {len(set(self.dropped))} users were made to drop out"

    def surviving(self, users: int, min_survivors: int) -> Tensor:
        """(users,) bool: who is left.

        Raises:
            ValueError: fewer than m_min, or a user that does not exist.
        """
        for name in ("known_noise", "dropped"):
            for user in getattr(self, name):
                if not 0 <= user < users:
                    raise ValueError(f"{name} must hold users in [0, {users}), got {user}")
        kept = torch.ones(users, dtype=torch.bool)
        kept[list(self.dropped)] = False
        if kept.sum() < min_survivors:
            raise ValueError(
                f"survivors must be >= min_survivors = {min_survivors}, got {int(kept.sum())}; "
                "nothing is released"
            )
        return kept


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
    rehearsal: Rehearsal | None = None,
    reserve: Reserve | None = None,
    **options: Any,
) -> Release:
    """One private model from all users' rows, by one sum, or by 1 + `rounds` of them.

    What is wrong with the rows, the classes or the transform is refused before any work, for the
    set as a whole; see `intake` for what a refusal shows.

    Args:
        embeddings: what users hold: the training rows of a set, or any stream of `Users`.
        method: "discriminant", "class-sums", "least-squares", "softmax", "svm", "logistic", or a
            `Method` made for the same transform and classes.
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
        rehearsal: users that drop out or whose noise is known, for audits; the model is marked.
        reserve: called once, when nothing can be refused any more and before any noise is drawn,
            with what is known of that noise: whoever counts what is spent (`privacy.ledger`), or
            stops it by raising. The report says "ledger": "none", until who counts says otherwise.
        **options: settings of the method, as in `methods.build_method`, `user_clip` among them; Λ
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
    if noise not in ("discrete", "float"):
        raise ValueError(f"noise must be 'discrete' or 'float', got {noise!r}")
    if generator is not None and noise == "discrete":
        raise ValueError("generator must be None for noise 'discrete', which nothing reproduces")
    if transform is None and not isinstance(method, str):
        transform = getattr(unclipped(method), "transform", None)
    discrete = noise == "discrete" and privacy.private
    source = Source.of(embeddings, transform, partition, num_classes)
    transform, users = source.transform, source.users
    sizes = users.sizes
    method = _method(
        method,
        transform,
        options,
        Circumstances(
            sizes=sizes,
            num_classes=source.num_classes,
            privacy=privacy,
            min_survivors=min_survivors,
        ),
    )
    parts = parts_of(method, sizes, privacy, min_survivors)
    guarantee = parts[0].guarantee
    played = Rehearsal() if rehearsal is None else rehearsal
    kept = played.surviving(len(sizes), guarantee.min_survivors)
    bare = frozenset(played.known_noise)
    sums = sums_of(parts, sizes, discrete=noise == "discrete", generator=generator, bare=bare)
    admitted = source.admit(privacy, discrete=discrete, vouched=vouch_for_transform)
    if reserve is not None:
        plans = [each.plan for _, each in sums if isinstance(each, IntegerSum)]
        reserve(gaussian_fields(*plans) if plans else simulated_fields(guarantee))
    rows, survivors = int(sizes[kept].sum()), int(kept.sum())
    descent, opened, seconds = None, [], []
    for _, summation in sums:
        started = time.perf_counter()
        submission = method if descent is None else descent.gradient
        for chunk in source.chunks():
            arrived = kept[chunk.users]
            if arrived.any():
                if source.embeddings is None and submission.grid_powers is not None:
                    check_stream(chunk, transform.clip_norm, transform.constant)
                add_chunk(summation, submission, chunk.select(arrived))
        opened.append(summation.total())
        std = summation.local_std * math.sqrt(survivors)
        if len(sums) > 1:
            descent = advanced(method, descent, opened[-1], rows, std)
        seconds.append(time.perf_counter() - started)
    (_, summation), *further = sums
    first_std = summation.local_std * math.sqrt(survivors)
    if descent is not None:
        weights, temperature = descent.released, 1.0
    elif rehearsal is None:
        weights, temperature = model_of(method, opened[0], rows, first_std)
    else:  # played many times, for the sum or the weights alone
        weights, temperature = weights_of(method, opened[0], rows, first_std), 1.0
    declared = () if source.embeddings is None else source.embeddings.declared_classes
    names = class_names(declared, method.num_classes)
    facts = promise_report(guarantee, summation, further)
    facts |= summation.report() | admitted.report
    facts |= {"users": len(sizes), "survivors": survivors, "rows": rows}
    facts |= rounds_report(sums) | method_report(method)
    facts |= prior_report(method, opened[0], rows, first_std, names)
    verdict = suitability(
        privacy,
        noise,
        seeded=generator is not None,
        rehearsed=None if rehearsal is None else rehearsal.reason,
        others=admitted.unsuitable,
    )
    if further and not verdict["suitable_for_release"]:  # how long it took depends on the rows
        facts |= {"simulation_only": {"seconds_per_round": seconds}}
    released = Release(weights, transform, names, opened=torch.cat(opened), temperature=temperature)
    return reported(released, facts, verdict, source.embeddings)


def _method(
    method: str | Method,
    transform: PublicTransform,
    options: dict[str, Any],
    circumstances: Circumstances,
) -> Method:
    num_classes = circumstances.num_classes
    if isinstance(method, str):
        options = circumstances.options(method, options)
        return build_method(method, transform, num_classes, options)
    if options:
        raise ValueError(f"options must go into the Method itself, got {sorted(options)}")
    check_method(method, transform, num_classes)
    return method
