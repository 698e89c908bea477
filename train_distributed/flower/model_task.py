"""What a federation computes: one private model, from what every user submits to the release."""

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from train_distributed import accounting
from train_distributed.flower.documents.document import LARGE, read_file, shown
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.terms import Terms
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
from train_distributed.one_shot.parts import further_rounds
from train_distributed.one_shot.report import class_names, reported, suitability
from train_distributed.one_shot.summation import Integers, zero_out_report
from train_distributed.one_shot.users import EmbeddingUsers
from train_distributed.partition import split
from train_distributed.privacy.discrete_gaussian import NoiseSampler, discrete_gaussian
from train_distributed.privacy.guarantee import Guarantee
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
    unchecked: tuple[int, ...] = ()  # parts of a replicated sum that one server alone has reported


class SumTask:
    """What tasks of either kind do alike: noise, and what a report says of the sum itself."""

    federation: Federation
    guarantee: Guarantee
    integers: Integers

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
        """What a user gives away if every agreed session is run: ε of them together, same δ."""
        sessions, guarantee = self.federation.sessions, self.guarantee
        together = guarantee.compositions * sessions
        epsilon = accounting.epsilon(guarantee.privacy.delta, guarantee.noise_multiplier, together)
        return {"sessions": sessions, "epsilon_of_all_sessions": epsilon}


@dataclass(frozen=True)
class ModelTask(SumTask):
    """The federation's `task`, made from public numbers and the public transform alone."""

    federation: Federation
    terms: Terms
    transform: PublicTransform
    method: Method
    guarantee: Guarantee
    integers: Integers
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
        self._check_user(identity)
        train = embeddings.split == TRAIN
        names = self.terms.class_names
        admit(embeddings, self.transform, self.method.num_classes, discrete=True, class_names=names)
        agreed = self.terms.sizes[identity]
        if int(train.sum()) != agreed:
            raise ValueError(f"training rows must be {agreed} as agreed, got {int(train.sum())}")
        partition = split(torch.from_numpy(embeddings.labels[train]), 1)
        (chunk,) = EmbeddingUsers(embeddings, self.transform, partition).chunks()
        (submission,) = submissions(self.method, chunk, self.integers.grid)
        return self.integers.encode(submission.numpy())

    def released(self, opened: Opened, facts: Facts) -> Release:
        """The model, from the sum of the survivors."""
        rows = sum(self.terms.sizes[user] for user in opened.users)
        std = self.integers.local_std * math.sqrt(len(opened.users))
        total = self.integers.decode(opened.total)
        weights, temperature = model_of(self.method, total, rows, std)
        names = class_names(self.terms.class_names, self.method.num_classes)
        report = self.guarantee.report() | zero_out_report(self.guarantee, self.integers)
        report |= self.integers.report() | {"rows": rows, "rounds": 1}
        report |= method_report(self.method)
        report |= prior_report(self.method, total, rows, std, names)
        report |= self._sum(opened, facts) | self._all_sessions() | self._collusion()
        report |= provenance(self.transform)
        verdict = suitability(self.guarantee.privacy, "discrete", seeded=False)
        model = Release(weights, self.transform, names, temperature=temperature)
        return reported(model, report, verdict)


def _computed(federation: Federation, terms: Terms, transform: PublicTransform) -> ModelTask:
    method = build_method(terms.method, transform, terms.num_classes, terms.options)
    if further_rounds(method):
        raise ValueError("rounds must be 0 in a federation")
    if federation.dimension != method.dimension:
        raise ValueError(
            f"dimension must be the method's {method.dimension}, got {federation.dimension}"
        )
    sizes = torch.tensor([terms.sizes[user] for user in sorted(federation.users)])
    guarantee = Guarantee.of(sizes, method, terms.privacy, federation.certain)
    integers = Integers.of(method, guarantee, sizes)
    return ModelTask(federation, terms, transform, method, guarantee, integers)


def read_transform(path: Path) -> PublicTransform:
    """Reads the file of a public transform.

    Raises:
        ValueError: naming the file, whatever it holds.
    """
    read_file(path, LARGE)
    try:
        return PublicTransform.load(path)
    except (TypeError, ArithmeticError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise ValueError(f"{path} must be a public transform, got: {shown(words)}") from error


def transform_hash(path: Path) -> str:
    """SHA-256 of a transform's file, hexadecimal."""
    return hashlib.sha256(read_file(path, LARGE)).hexdigest()


def check_transform(path: Path, agreed: str) -> None:
    """Raises ValueError unless the file is the one that was agreed on."""
    if transform_hash(path) != agreed:
        raise ValueError(
            f"transform must have SHA-256 {agreed} as the federation says, got "
            f"{transform_hash(path)}: {path}"
        )
