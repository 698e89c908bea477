"""Base of a federation's tasks: one noised sum and its part of the report."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from train_distributed.flower.documents.federation import Federation
from train_distributed.one_shot.reachable import unreachable
from train_distributed.one_shot.rounds import epsilon_if_all_others_collude
from train_distributed.one_shot.statistic import Submission
from train_distributed.one_shot.summation import IntegerEncoder
from train_distributed.privacy.composition import Cost
from train_distributed.privacy.discrete_gaussian import NoiseSampler, discrete_gaussian
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.integer_gaussian import DiscreteGaussianMechanism
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.window import Window, make_roll

SUMS = {
    "secagg": "SecAgg+ among the users, one server",
    "shares": "additive shares at two servers, with proofs of length",
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a session that a model's report needs besides the sum."""

    session: str  # its digest, hexadecimal: the same in every party's messages
    bytes_per_user: int  # sent by the user that sent most
    missing: dict[int, str] = field(default_factory=dict)  # user -> where it was lost
    bytes_per_round: tuple[int, ...] = ()  # of those bytes, where there are several rounds


def check_noise_by(federation: Federation, privacy: Privacy) -> None:
    """Raises ValueError unless those add the noise whom the protocol has for it."""
    by = "servers" if federation.protocol == "shares" else "users"
    if privacy.noise_by != by:
        raise ValueError(
            f"noise_by must be {by!r} with protocol {federation.protocol}, got {privacy.noise_by!r}"
        )


class SumTask(ABC):
    """Noise and report of a sum, for both kinds of tasks."""

    federation: Federation
    guarantee: Guarantee
    integers: IntegerEncoder

    @property
    @abstractmethod
    def sizes(self) -> dict[int, int]:
        """User -> rows, as agreed."""

    @property
    @abstractmethod
    def submission(self) -> Submission:
        """The statistic that every user submits in the first sum, with its sensitivity."""

    @property
    def norm_bounds(self) -> list[int]:
        """Length in steps that the vector of each user may have, in the order of their numbers."""
        sizes = torch.tensor([self.sizes[user] for user in sorted(self.sizes)])
        return self.integers.norm_bounds(self.submission, sizes)

    @property
    @abstractmethod
    def sums(self) -> list[tuple[Guarantee, IntegerEncoder]]:
        """Every sum that one session takes."""

    @cached_property
    def roll(self) -> NDArray[np.void]:
        """The users' keys, and how long their vectors may be.

        Raises:
            ValueError: users that are not numbered from 0.
        """
        keys = self.federation.users
        if set(keys) != set(range(len(keys))):
            raise ValueError(f"users must be numbered from 0 to {len(keys) - 1}, are not")
        return make_roll([bytes.fromhex(keys[user]) for user in sorted(keys)], self.norm_bounds)

    def window(self, nonce: bytes, opens: int, closes: int) -> Window:
        """The window in which the sum is taken: all else follows from what was agreed.

        Args:
            nonce: 32 bytes, fresh.
            opens: seconds since 1970, UTC.
            closes: likewise.

        Raises:
            ValueError: another protocol.
        """
        federation = self.federation
        if federation.protocol != "shares":
            raise ValueError(f"a window must be of protocol shares, got {federation.protocol}")
        return Window(
            nonce=nonce,
            dimension=federation.dimension,
            minimum=federation.certain,
            enrolled=len(federation.users),
            roll=hashlib.sha256(self.roll.view(np.uint8).data).digest(),
            servers=federation.session(nonce).servers,
            noise_std=float(self.integers.plan.stds_in_steps),
            opens=opens,
            closes=closes,
            context=b"window" + federation.digest,
        )

    @property
    def plans(self) -> list[DiscreteGaussianMechanism]:
        """The noise of every sum that one session takes: one entry of a ledger."""
        return [integers.plan for _, integers in self.sums]

    @property
    def epsilon_of_all_sessions(self) -> float:
        """Privacy loss of a user if every agreed session is run: ε of them together, same δ."""
        together = Cost.of(plan.cost for plan in self.plans * self.federation.sessions)
        return together.at(self.guarantee.privacy.delta)

    @property
    def epsilon_if_all_others_collude(self) -> float:
        """Privacy loss of all sessions where all other users show a server what they sent."""
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
        """Part of the report: users in the sum, protocol, and bytes per user."""
        federation = self.federation
        return {
            "protocol": federation.protocol,
            "secure_sum": SUMS[federation.protocol],
            "federation": federation.digest.hex(),
            "session": facts.session,
            "users": len(federation.users),
            "survivors": len(opened.users),
            "surviving_users": [federation.display_name(user) for user in sorted(opened.users)],
            "missing": {
                federation.display_name(u): step for u, step in sorted(facts.missing.items())
            },
            "bytes_per_user": facts.bytes_per_user,
        }

    def _unreachable(
        self, opened: Opened, submission: Submission, integers: IntegerEncoder
    ) -> list[str]:
        """Why honest users cannot have made a sum, if so."""
        sizes = torch.tensor([self.sizes[user] for user in sorted(opened.users)])
        found = unreachable(integers.decode(opened.total), submission, integers, sizes)
        return [] if found is None else [found]

    @property
    def holds_against(self) -> str:
        """With whom the operator may collude, beside the honest fraction that the noise assumes."""
        if self.federation.protocol == "shares":
            return "either of the two servers, colluding with all other users"
        share = self.federation.corrupt_fraction
        return f"the server, colluding with at most {share:g} of the users"

    def _all_sessions(self) -> dict[str, float]:
        return {
            "sessions": self.federation.sessions,
            "epsilon_of_all_sessions": self.epsilon_of_all_sessions,
        }
