"""Task of a federation that learns a private model: from submissions to the release."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from pretrain.datasets import TRAIN
from train_distributed.federation.centre import WORD, AtCentre
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.terms import Terms, check_file, read_transform
from train_distributed.federation.endpoint import Submission
from train_distributed.federation.sum_task import Facts, SumTask, check_noise_by, sizes_of
from train_distributed.ledger.entry import Kind
from train_distributed.one_shot.course import Course
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.report import class_names, reported, suitability
from train_distributed.one_shot.rounds import (
    Round,
    check_zeta,
    further_sums,
    main_sum,
    promise_report,
    rounds_of,
    rounds_report,
    zeta_of,
)
from train_distributed.one_shot.statistic import Statistic, submissions
from train_distributed.one_shot.summation import IntegerEncoder
from train_distributed.one_shot.users import Chunk, EmbeddingUsers
from train_distributed.one_shot.validation import provenance, validate
from train_distributed.partition import split
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.secure_sum.opening import Opened


@dataclass(frozen=True)
class ModelTask(SumTask[Terms]):
    """The federation's `task`, made from public numbers and the public transform alone."""

    federation: Federation
    terms: Terms
    transform: PublicTransform
    method: Method
    guarantee: Guarantee
    integers: IntegerEncoder
    second: tuple[Round, IntegerEncoder] | None = None  # the sum about a centre
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
                what `validation.validate` refuses: a row that is not finite or that the transform
                has seen, a label out of range, or a transform that does not say what it has seen.
        """
        chunk = Course(self.method).rows(self._rows(identity, embeddings))
        (submission,) = submissions(self.submission, chunk, self.integers.grid)
        return self.integers.encode(submission.numpy())

    def at_centre(self, identity: int, embeddings: EmbeddingSet) -> AtCentre:
        """Submission of a user to the second sum, at a published centre, with its noise when drawn.

        Raises:
            ValueError: as `encoded`; what is returned does for numbers out of range.
        """
        chunk = self._rows(identity, embeddings)

        def at(published: NDArray[np.float64]) -> Submission:
            integers = self._integers_at_centre
            course = Course(self.method).told(torch.from_numpy(published))
            (sent,) = submissions(course.statistic, course.rows(chunk), integers.grid)
            words = integers.encode(sent.numpy())
            return lambda: integers.noised(words)

        return at

    def _rows(self, identity: int, embeddings: EmbeddingSet) -> Chunk:
        agreed = int(self.rows_of([identity]))
        train, names = embeddings.split == TRAIN, self.terms.class_names
        validate(
            embeddings, self.transform, self.method.num_classes, discrete=True, class_names=names
        )
        if int(train.sum()) != agreed:
            raise ValueError(f"training rows must be {agreed} as agreed, got {int(train.sum())}")
        partition = split(torch.from_numpy(embeddings.labels[train]), 1)
        (chunk,) = EmbeddingUsers(embeddings, self.transform, partition).chunks()
        return chunk

    @property
    def encoding(self) -> Encoding | None:
        """How pictures become the rows of every user; None: the transform does not say it."""
        return self.transform.encoding

    @property
    def submission(self) -> Statistic:
        """The statistic that every user computes of its rows and submits in the first sum."""
        return Course(self.method).statistic

    @property
    def sums(self) -> list[tuple[Guarantee, IntegerEncoder]]:
        """The first sum, and the second."""
        second = [] if self.second is None else [(self.second[0].guarantee, self.second[1])]
        return [(self.guarantee, self.integers), *second]

    def publish(self, opened: Opened) -> bytes:
        """The centre that the second sum is asked at, after the first."""
        centre = self._course([opened]).centre
        assert centre is not None
        return centre.numpy().astype(WORD).tobytes()

    def _course(self, opened: Sequence[Opened]) -> Course:
        course = Course(self.method)
        for number, each in enumerate(opened):
            decoded = self._decoded(self._integers_at_centre if number else self.integers, each)
            course = course.after(*decoded)
        return course

    def _decoded(self, integers: IntegerEncoder, opened: Opened) -> tuple[Tensor, int, float]:
        rows = int(self.rows_of(opened.users).sum())
        std = integers.noise_std(len(opened.users))
        return integers.decode(opened.total), rows, std

    @property
    def _integers_at_centre(self) -> IntegerEncoder:
        if self.second is None:
            raise ValueError("a second sum must be agreed on, is not")
        return self.second[1]

    def released(self, opened: Opened, facts: Facts, second: Opened | None = None) -> Release:
        """The model, from the sum of the survivors, or from two where so many were agreed on."""
        course = self._course([opened] if second is None else [opened, second])
        fitted, method = course.fitted(), course.method
        names = class_names(self.terms.class_names, method.num_classes)
        _, integers = main_sum(self.sums)
        rows = course.noised.rows
        report = promise_report(self.sums) | course.report()
        report |= integers.report() | {"rows": rows} | rounds_report(self.sums)
        report |= method.report() | course.prior_report(names)
        report |= self._sum(opened, facts) | provenance(self.transform)
        odd = self._unreachable(opened, self.submission, self.integers)
        if self.second is not None and second is not None:
            part, integers = self.second
            odd += self._unreachable(second, part.submission, integers)
        verdict = suitability(self.guarantee.privacy, "discrete", seeded=False, others=odd)
        transform = course.transform or self.transform
        model = Release(
            fitted.weights,
            transform,
            names,
            temperature=fitted.temperature,
            class_shares=fitted.class_shares,
            prior=fitted.prior,
        )
        return reported(model, report, verdict)


def _computed(federation: Federation, terms: Terms, transform: PublicTransform) -> ModelTask:
    if transform.known is not None:
        transform.known.check_classes(terms.class_names, terms.num_classes)
    method = build_method(terms.method, transform, terms.num_classes, terms.options)
    dimension = Course(method).statistic.dimension
    if federation.dimension != dimension:
        raise ValueError(f"dimension must be the method's {dimension}, got {federation.dimension}")
    agreed, (_, found) = federation.second_dimension, further_sums(method)
    if agreed != found:
        raise ValueError(f"second_dimension must be the method's {found}, got {agreed}")
    check_noise_by(federation, terms.privacy)
    sizes = sizes_of(federation, terms.sizes)
    rounds = rounds_of(method, sizes, terms.privacy, federation.certain)
    zeta = zeta_of(rounds, sizes)
    integers = [IntegerEncoder.of(each.submission, each.guarantee, sizes, zeta) for each in rounds]
    check_zeta(integers, zeta)
    (first, own), *second = zip(rounds, integers, strict=True)
    return ModelTask(federation, terms, transform, method, first.guarantee, own, *second)
