"""Task of a federation that learns a private model: from submissions to the release."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from embed.store import ASK
from pretrain.datasets import TRAIN
from train_distributed.federation.centre import WORD, AtCentre, EncodedAt
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.terms import Terms, check_file, read_transform
from train_distributed.federation.endpoint import Submission
from train_distributed.federation.sum_task import SessionFacts, SumTask, plan_of
from train_distributed.ledger.entry import Kind
from train_distributed.one_shot.class_prior import class_names
from train_distributed.one_shot.method import Method, OpenedSum, ReleaseState, after_sums
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.release import reported, suitability
from train_distributed.one_shot.source import EmbeddingUsers, provenance, validate
from train_distributed.one_shot.statistic import Chunk, submissions
from train_distributed.one_shot.summation import Plan, second_dimension
from train_distributed.partition import split
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.secure_sum.opening import Opened


@dataclass(frozen=True)
class ModelTask(SumTask[Terms]):
    """Task of a federation that trains a model: users' submissions, and the model from their sum.

    It follows from the agreed terms and the public transform alone.
    """

    federation: Federation
    terms: Terms
    transform: PublicTransform
    method: Method
    plan: Plan  # of one sum, or of a second one about a centre
    kind: ClassVar[Kind] = "release"
    part: ClassVar[str] = "train"  # the rows that it is about

    @staticmethod
    def of(federation: Federation, transform: Path) -> "ModelTask":
        """Reads the task.

        Args:
            federation: its `task` holds `Terms`.
            transform: the file of the public transform.

        Raises:
            ValueError: a field missing or out of range, or another transform than was agreed.
        """
        terms = Terms.read(federation.task, set(federation.users), Path("federation"))
        check_file("transform", transform, terms.transform)
        loaded = read_transform(transform)
        try:
            return _computed(federation, terms, loaded)
        except (TypeError, ArithmeticError, RuntimeError, ValueError) as error:
            raise ValueError(f"federation must be one that can be computed: {error}") from error

    def encoded(self, identity: int, embeddings: EmbeddingSet) -> NDArray[np.uint64]:
        """Trains on a user's own rows: what it submits, (d,) uint64, before its noise.

        Raises:
            ValueError: not as many training rows as the federation says, an entry out of range, or
                what `source.validate` refuses: a row that is not finite or that the transform
                has seen, a label out of range, or a transform that does not say what it has seen.
        """
        state = self._state([])
        chunk = state.rows(self._rows(identity, embeddings))
        (submission,) = submissions(state.statistic, chunk, self.mechanism.grid)
        return self.mechanism.encode(submission.numpy())

    def encoded_at(self, identity: int, embeddings: EmbeddingSet) -> EncodedAt:
        """Makes the function from a published centre to a user's second vector, without noise.

        Raises:
            ValueError: as `encoded`; what is returned does for numbers out of range.
        """
        chunk = self._rows(identity, embeddings)

        def at(published: bytes) -> NDArray[np.uint64]:
            mechanism, centre = self._mechanism(1), np.frombuffer(published, WORD)
            state = self._state([]).receive(torch.from_numpy(centre.astype(np.float64)))
            (sent,) = submissions(state.statistic, state.rows(chunk), mechanism.grid)
            return mechanism.encode(sent.numpy())

        return at

    def at_centre(self, identity: int, embeddings: EmbeddingSet) -> AtCentre:
        """Makes the function from a published centre to what draws the noised second vector."""
        mechanism, encoded = self._mechanism(1), self.encoded_at(identity, embeddings)

        def at(published: bytes) -> Submission:
            words = encoded(published)
            return lambda: mechanism.noised(words)

        return at

    def _rows(self, identity: int, embeddings: EmbeddingSet) -> Chunk:
        if self.findings != (embeddings.findings is not None):
            kinds = ("several findings", "one class")[:: 1 if self.findings else -1]
            raise ValueError("embeddings must hold {} a picture as agreed, got {}".format(*kinds))
        told_apart = self.terms.method != "findings" or self.terms.options.get("unknown") == ASK
        if embeddings.meta.get("unknown") == ASK and not told_apart:
            raise ValueError("unknown must be negative or positive as agreed, got ask")
        agreed = int(self.rows_of([identity]))
        train, names = embeddings.split == TRAIN, self.terms.class_names
        validate(
            embeddings, self.transform, self.method.num_classes, discrete=True, class_names=names
        )
        if int(train.sum()) != agreed:
            raise ValueError(f"training rows must be {agreed} as agreed, got {int(train.sum())}")
        partition = split(torch.zeros(agreed, dtype=torch.int64), 1)
        (chunk,) = EmbeddingUsers(embeddings, self.transform, partition).chunks()
        return chunk

    @property
    def findings(self) -> bool:
        """Whether the model learns several findings a picture."""
        terms = self.terms
        return not METHODS[terms.method].classes or bool(terms.options.get("findings"))

    @property
    def encoding(self) -> Encoding | None:
        """How pictures become the rows of every user; None: the transform does not say it."""
        return self.transform.encoding

    def publish(self, opened: Opened) -> bytes:
        """The centre that the second sum is asked at, after the first."""
        centre = self._state([opened]).centre
        assert centre is not None
        return centre.numpy().astype(WORD).tobytes()

    def _state(self, opened: Sequence[Opened]) -> ReleaseState:
        """State of the release after these sums."""

        def decoded(number: int, _: ReleaseState) -> OpenedSum:
            mechanism, each = self._mechanism(number), opened[number]
            rows, std = int(self.rows_of(each.users).sum()), mechanism.noise_std(len(each.users))
            return mechanism.decode(each.total), rows, std

        return after_sums(ReleaseState(self.method), range(len(opened)), decoded)

    def _mechanism(self, number: int) -> DiscreteGaussian:
        if number >= len(self.plan.sums):
            raise ValueError("a second sum must be agreed on, is not")
        return self.plan.integers[number]

    def released(self, *sums: Opened, facts: SessionFacts) -> Release:
        """The model, from the sum of the survivors, or from two where so many were agreed on."""
        state = self._state(sums)
        fitted, method = state.fitted(), state.method
        names = class_names(self.terms.class_names, method.num_classes)
        report = self.plan.report() | state.report() | {"rows": state.noised.rows}
        report |= method.report() | state.prior_report(names)
        report |= self._sum(sums[-1], facts) | provenance(self.transform)
        odd = self._unreachable(*sums)
        verdict = suitability(self.guarantee.privacy, "discrete", seeded=False, others=odd)
        transform = state.transform or self.transform
        model = Release(
            fitted.weights,
            transform,
            names,
            temperature=fitted.temperature,
            class_shares=fitted.class_shares,
            prior=fitted.prior,
            findings=self.findings,
        )
        return reported(model, report, verdict)


def _computed(federation: Federation, terms: Terms, transform: PublicTransform) -> ModelTask:
    if transform.known is not None:
        transform.known.check_classes(terms.class_names, terms.num_classes)
    method = build_method(terms.method, transform, terms.num_classes, terms.options)
    dimension = ReleaseState(method).statistic.dimension
    if federation.dimension != dimension:
        raise ValueError(f"dimension must be the method's {dimension}, got {federation.dimension}")
    agreed, found = federation.second_dimension, second_dimension(method)
    if agreed != found:
        raise ValueError(f"second_dimension must be the method's {found}, got {agreed}")
    return ModelTask(federation, terms, transform, method, plan_of(federation, method, terms))
