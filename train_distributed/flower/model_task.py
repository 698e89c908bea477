"""What a federation computes: one private model, from what every user submits to the release."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from train_distributed.flower.desk import Submission
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.terms import Terms
from train_distributed.flower.documents.transform import check_transform, read_transform
from train_distributed.flower.round_desk import WORD, Rounds
from train_distributed.one_shot.further_rounds import ClippedGradient, Descent
from train_distributed.one_shot.intake import admit, provenance
from train_distributed.one_shot.methods import (
    Method,
    build_method,
    method_report,
    model_of,
    prior_report,
    submissions,
)
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.parts import (
    Part,
    advanced,
    check_zeta,
    epsilon_if_all_others_collude,
    further_rounds,
    parts_of,
    promise_report,
    round_dimension,
    rounds_report,
    zeta_of,
)
from train_distributed.one_shot.report import class_names, reported, suitability
from train_distributed.one_shot.summation import Integers
from train_distributed.one_shot.users import Chunk, EmbeddingUsers
from train_distributed.partition import split
from train_distributed.privacy.discrete_gaussian import NoiseSampler, discrete_gaussian
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.integer_gaussian import IntegerRelease
from train_distributed.privacy.ledger_cost import Cost
from train_distributed.privacy.ledger_entry import Kind
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.replicated import FEWEST_SERVERS

SUMS = {
    "secagg": "SecAgg+ among the users, one server",
    "shares": "additive shares among the computation servers",
    "shares-replicated": "additive shares, each held by all computation servers but one",
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one session beside its sum; a model's report cannot be made without."""

    session: str  # its digest, hexadecimal: the same in every party's messages
    bytes_per_user: int  # sent by the user that sent most
    missing: dict[int, str] = field(default_factory=dict)  # user -> where it was lost
    bytes_per_round: tuple[int, ...] = ()  # of those bytes, where there are several rounds
    unchecked: tuple[int, ...] = ()  # parts of a replicated sum that one server alone has reported


class SumTask(ABC):
    """What tasks of either kind do alike: noise, and what a report says of the sum itself."""

    federation: Federation
    guarantee: Guarantee
    integers: Integers

    @property
    @abstractmethod
    def sums(self) -> list[tuple[Guarantee, Integers]]:
        """Every sum that one session takes."""

    @property
    def plans(self) -> list[IntegerRelease]:
        """The noise of every sum that one session takes: one entry of a ledger."""
        return [integers.plan for _, integers in self.sums]

    @property
    def epsilon_of_all_sessions(self) -> float:
        """What a user gives away if every agreed session is run: ε of them together, same δ."""
        together = Cost.of(plan.cost for plan in self.plans * self.federation.sessions)
        return together.at(self.guarantee.privacy.delta)

    @property
    def epsilon_if_all_others_collude(self) -> float:
        """The same where all other users tell a server what they sent."""
        together = self.sums * self.federation.sessions
        return epsilon_if_all_others_collude(together, self.guarantee.privacy.delta)

    def noised(
        self, encoded: NDArray[np.uint64], sampler: NoiseSampler = discrete_gaussian
    ) -> NDArray[np.uint64]:
        """A submission with this user's fresh share of the noise."""
        return self.integers.noised(encoded, sampler)

    def _check_user(self, identity: int) -> None:
        """Raises ValueError for a number that is none of the users'."""
        if identity not in self.federation.users:
            raise ValueError(
                f"identity must be one of {sorted(self.federation.users)}, got {identity}"
            )

    def _sum(self, opened: Opened, facts: Facts) -> dict[str, Any]:
        """Who is in the sum, how it was taken, and what it cost a user."""
        federation = self.federation
        replicated = federation.protocol == "shares-replicated"
        unchecked = {"unchecked_parts": list(facts.unchecked)} if replicated else {}
        return unchecked | {
            "protocol": federation.protocol,
            "secure_sum": SUMS[federation.protocol],
            "federation": federation.digest.hex(),
            "session": facts.session,
            "users": len(federation.users),
            "survivors": len(opened.users),
            "surviving_users": [federation.call(user) for user in sorted(opened.users)],
            "missing": {federation.call(u): step for u, step in sorted(facts.missing.items())},
            "bytes_per_user": facts.bytes_per_user,
        }

    def _collusion(self) -> dict[str, str]:
        """With whom the operator may collude, beside the honest fraction that the noise assumes."""
        if self.federation.protocol == "shares":
            return {"holds_against": "all computation servers but one"}
        share = self.federation.corrupt_fraction
        if self.federation.protocol == "shares-replicated":
            witnessed = len(self.federation.servers) == FEWEST_SERVERS
            users = f", colluding with at most {share:g} of the users" if witnessed else ""
            return {"holds_against": f"any one computation server{users}; two see every submission"}
        return {"holds_against": f"the server, colluding with at most {share:g} of the users"}

    def _all_sessions(self) -> dict[str, float]:
        return {
            "sessions": self.federation.sessions,
            "epsilon_of_all_sessions": self.epsilon_of_all_sessions,
        }


@dataclass(frozen=True)
class ModelTask(SumTask):
    """The federation's `task`, made from public numbers and the public transform alone."""

    federation: Federation
    terms: Terms
    transform: PublicTransform
    method: Method
    guarantee: Guarantee
    integers: Integers
    further: tuple[Part, Integers] | None = None  # a round of gradients, as often as agreed
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
        check_transform(transform, terms.transform)
        loaded = read_transform(transform)
        try:
            return _computed(federation, terms, loaded)
        except (TypeError, ArithmeticError, RuntimeError, ValueError) as error:
            raise ValueError(f"federation must be one that can be computed: {error}") from error

    def encoded(self, identity: int, embeddings: EmbeddingSet) -> NDArray[np.uint64]:
        """Trains on a user's own rows: what it submits, (d,) uint64, before its noise.

        Raises:
            ValueError: not as many training rows as the federation says, an entry out of range, or
                what `intake.admit` refuses: a row that is not finite or that the transform has
                seen, a label out of range, or a transform that does not say what it has seen.
        """
        chunk = self._rows(identity, embeddings)
        (submission,) = submissions(self.method, chunk, self.integers.grid)
        return self.integers.encode(submission.numpy())

    def rounds_of(self, identity: int, embeddings: EmbeddingSet) -> Rounds:
        """What a user submits in a further round: at these weights, with its noise when drawn.

        Raises:
            ValueError: as `encoded`; what is returned does for weights out of range.
        """
        chunk = self._rows(identity, embeddings)

        def at(weights: NDArray[np.float64]) -> Submission:
            part, integers = self._round
            of = cast(ClippedGradient, part.submission)
            gradient = replace(of, weights=torch.from_numpy(weights).view_as(of.weights))
            words = integers.encode(submissions(gradient, chunk, None)[0].numpy())
            return lambda: integers.noised(words)

        return at

    def _rows(self, identity: int, embeddings: EmbeddingSet) -> Chunk:
        self._check_user(identity)
        train, names = embeddings.split == TRAIN, self.terms.class_names
        admit(embeddings, self.transform, self.method.num_classes, discrete=True, class_names=names)
        agreed = self.terms.sizes[identity]
        if int(train.sum()) != agreed:
            raise ValueError(f"training rows must be {agreed} as agreed, got {int(train.sum())}")
        partition = split(torch.from_numpy(embeddings.labels[train]), 1)
        (chunk,) = EmbeddingUsers(embeddings, self.transform, partition).chunks()
        return chunk

    @property
    def sums(self) -> list[tuple[Guarantee, Integers]]:
        """The first sum, and those of further rounds."""
        first = (self.guarantee, self.integers)
        if self.further is None:
            return [first]
        return [first, *[(self.further[0].guarantee, self.further[1])] * self.federation.rounds]

    def publish(self, opened: Sequence[Opened]) -> bytes:
        """The weights that the next round is asked at, after all sums so far."""
        return self._descent(opened).weights.numpy().astype(WORD).tobytes()

    def _descent(self, opened: Sequence[Opened]) -> Descent:
        descent = None
        for number, each in enumerate(opened):
            total, rows, std = self._decoded(self._round[1] if number else self.integers, each)
            descent = advanced(self.method, descent, total, rows, std)
        assert descent is not None
        return descent

    def _decoded(self, integers: Integers, opened: Opened) -> tuple[Tensor, int, float]:
        rows = sum(self.terms.sizes[user] for user in opened.users)
        std = integers.local_std * math.sqrt(len(opened.users))
        return integers.decode(opened.total), rows, std

    @property
    def _round(self) -> tuple[Part, Integers]:
        if self.further is None:
            raise ValueError("rounds must be agreed on, got none")
        return self.further

    def released(self, opened: Opened, facts: Facts, further: Sequence[Opened] = ()) -> Release:
        """The model, from the sum of the survivors, and those of further rounds."""
        total, rows, std = self._decoded(self.integers, opened)
        if self.further is None:
            weights, temperature = model_of(self.method, total, rows, std)
        else:
            weights, temperature = self._descent([opened, *further]).released, 1.0
        names = class_names(self.terms.class_names, self.method.num_classes)
        report = promise_report(self.guarantee, self.integers, self.sums[1:])
        report |= self.integers.report() | {"rows": rows} | rounds_report(self.sums)
        report |= method_report(self.method)
        report |= prior_report(self.method, total, rows, std, names)
        if self.further is not None:  # a round that failed was the last
            report |= {"rounds_agreed": report["rounds"], "rounds": 1 + len(further)}
            report |= {"bytes_per_round": list(facts.bytes_per_round)}
        report |= self._sum(opened, facts) | self._all_sessions() | self._collusion()
        report |= provenance(self.transform)
        verdict = suitability(self.guarantee.privacy, "discrete", seeded=False)
        model = Release(weights, self.transform, names, temperature=temperature)
        return reported(model, report, verdict)


def _computed(federation: Federation, terms: Terms, transform: PublicTransform) -> ModelTask:
    method = build_method(terms.method, transform, terms.num_classes, terms.options)
    if federation.dimension != method.dimension:
        raise ValueError(
            f"dimension must be the method's {method.dimension}, got {federation.dimension}"
        )
    agreed = (federation.rounds, federation.round_dimension)
    if agreed != (found := (further_rounds(method), round_dimension(method))):
        raise ValueError(f"rounds and round_dimension must be the method's {found}, got {agreed}")
    sizes = torch.tensor([terms.sizes[user] for user in sorted(federation.users)])
    parts = parts_of(method, sizes, terms.privacy, federation.certain)
    bits = terms.word_bits
    zeta = zeta_of(parts, sizes, bits)
    integers = [Integers.of(part.submission, part.guarantee, sizes, zeta, bits) for part in parts]
    every = zip(integers, parts, strict=True)
    check_zeta((own for own, part in every for _ in range(part.times)), zeta)
    (first, own), *further = zip(parts, integers, strict=True)
    of_rounds = further[0] if further else None
    return ModelTask(federation, terms, transform, method, first.guarantee, own, of_rounds)
