"""Base of a federation's tasks: one noised sum and its part of the report."""

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.terms import EvaluationTerms, Terms
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.reachable import unreachable
from train_distributed.one_shot.summation import Plan
from train_distributed.privacy.guarantee import Guarantee, Submission
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.released.numbers import rounded_up
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import report_bytes
from train_distributed.secure_sum.roll import Roll
from train_distributed.secure_sum.window import SecondSum, Window

AnyTerms = TypeVar("AnyTerms", Terms, EvaluationTerms)
MOST_NAMED = 1000  # users in a report
SUMS = {
    "secagg": "SecAgg+ among the users, one server",
    "shares": "additive shares at two servers, with proofs of length",
}


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """Facts about a session that a model's report needs besides the sum."""

    session: str  # its digest, hexadecimal: the same in every party's messages
    bytes_per_user: int  # sent by the user that sent most
    missing: dict[int, str] = field(default_factory=dict)  # user -> where it was lost


def plan_of(federation: Federation, method: Method | Submission, terms: AnyTerms) -> Plan:
    """Every sum that one session takes.

    Raises:
        ValueError: no promise, or others add the noise than those whom the protocol has for it.
    """
    privacy = terms.privacy
    if not privacy.private:
        raise ValueError(f"epsilon must be finite in a federation, got {privacy.epsilon}")
    by = "servers" if federation.protocol == "shares" else "users"
    if privacy.noise_by != by:
        raise ValueError(
            f"noise_by must be {by!r} with protocol {federation.protocol}, got {privacy.noise_by!r}"
        )
    return Plan.of(method, sizes_of(federation, terms.sizes), privacy, federation.certain)


def sizes_of(federation: Federation, sizes: Mapping[int, int]) -> Tensor:
    """(w,) rows of all users, as agreed: those of a list, or of a roll by rising rows.

    Noise and promise do not depend on which user has how many.
    """
    if federation.roll is None:
        return torch.tensor([sizes[user] for user in sorted(federation.users)])
    return repeated(federation.roll.sizes)


def repeated(sizes: Mapping[int, int]) -> Tensor:
    """(w,) rows of users, from rows and the number of users that have so many, by rising rows."""
    rows, users = torch.tensor(sorted(sizes.items())).unbind(1)
    return rows.repeat_interleave(users)


class SumTask(ABC, Generic[AnyTerms]):
    """Noise and report of a sum, for both kinds of tasks."""

    federation: Federation
    terms: AnyTerms  # their sizes are empty where the users are on a roll
    plan: Plan

    def rows_of(self, users: Iterable[int]) -> Tensor:
        """(m,) rows of these users, as agreed, in the order of their numbers.

        Raises:
            ValueError: a number that is none of the users', or whose line of the roll is not here.
        """
        federation, sizes = self.federation, self.terms.sizes
        if isinstance(federation.known, Roll):
            return torch.from_numpy(federation.known.rows_of(users))
        if federation.roll:
            sizes = {user: line.rows for user, line in federation.known.items()}
        found = []
        for user in sorted(users):
            if user not in sizes:
                raise ValueError(f"identity must be one of {sorted(sizes)}, got {user}")
            found.append(sizes[user])
        return torch.tensor(found)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the first sum: its share of the promise, and its sensitivity."""
        return self.plan.sums[0].guarantee

    @property
    def mechanism(self) -> DiscreteGaussian:
        """Integers and noise of the first sum."""
        return self.plan.integers[0]

    @cached_property
    def norm_bounds(self) -> list[dict[int, int]]:
        """Rows -> length in steps that the vector of a user with so many rows may have, by sum.

        A user's bound depends on its own rows and on which sizes there are, not on how many users
        have them.
        """
        roll = self.federation.roll
        sizes = torch.tensor(sorted(roll.sizes if roll else set(self.terms.sizes.values())))
        bounds = [
            mechanism.norm_bounds(planned.submission, sizes)
            for planned, mechanism in zip(self.plan.sums, self.plan.integers, strict=True)
        ]
        return [dict(zip(sizes.tolist(), each, strict=True)) for each in bounds]

    def window(self, nonce: bytes, opens: int, closes: int) -> Window:
        """The window in which the sums are taken: all else follows from what was agreed.

        Args:
            nonce: 32 bytes, fresh.
            opens: seconds since 1970, UTC.
            closes: likewise.

        Raises:
            ValueError: another protocol.
        """
        federation = self.federation
        if federation.roll is None:
            raise ValueError(f"a window must be of protocol shares, got {federation.protocol}")
        bounds, *second = self.norm_bounds
        return Window(
            nonce=nonce,
            dimension=federation.dimension,
            minimum=federation.certain,
            roll=bytes.fromhex(federation.roll.root),
            sizes={rows: (users, bounds[rows]) for rows, users in federation.roll.sizes.items()},
            servers=federation.server_keys,
            noise_std=float(self.mechanism.stds_in_steps),
            opens=opens,
            closes=closes,
            context=b"window" + federation.digest,
            second=SecondSum(
                dimension=federation.second_dimension,
                noise_std=float(self.plan.integers[1].stds_in_steps),
                steps=second[0],
            )
            if second
            else None,
        )

    @property
    def epsilon_of_all_sessions(self) -> float:
        """Privacy loss of a user if every agreed session is run: ε of them together, same δ."""
        return self.plan.epsilon(self.federation.sessions)

    @property
    def epsilon_if_all_others_collude(self) -> float:
        """Privacy loss of all sessions where all other users show a server what they sent."""
        return self.plan.epsilon_if_all_others_collude(self.federation.sessions)

    @property
    def if_all_others_collude(self) -> str:
        """Sentence on the promise that remains where all other parties work together."""
        if self.guarantee.privacy.noise_by == "servers":
            return "if the two servers collude: they see all that was sent, whatever epsilon says"
        alone = rounded_up(self.epsilon_if_all_others_collude)
        return f"if all others collude: epsilon {alone} of all agreed sessions"

    @property
    def bytes_of_reports(self) -> int:
        """Bytes that a user of a window sends at most, in all its reports."""
        return sum(
            report_bytes(mechanism.dimension, max(bounds.values()))
            for mechanism, bounds in zip(self.plan.integers, self.norm_bounds, strict=True)
        )

    def noised(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """A submission with this user's fresh share of the noise."""
        return self.mechanism.noised(encoded)

    def _sum(self, opened: Opened, facts: SessionFacts) -> dict[str, Any]:
        """Part of the report: users in the sum, protocol, bytes per user, and all sessions."""
        federation, rows = self.federation, sizes_of(self.federation, self.terms.sizes)
        missing, survivors = sorted(facts.missing.items()), sorted(opened.users)
        named = {federation.display_name(u): step for u, step in missing[:MOST_NAMED]}
        if len(missing) > MOST_NAMED:
            named[f"{len(missing) - MOST_NAMED} other users"] = "not named here"
        few = len(survivors) <= MOST_NAMED
        return {
            "protocol": federation.protocol,
            "secure_sum": SUMS[federation.protocol],
            "federation": federation.digest.hex(),
            "session": facts.session,
            "users": federation.enrolled,
            "survivors": len(opened.users),
            **({"surviving_users": [*map(federation.display_name, survivors)]} if few else {}),
            "missing": named,
            "bytes_per_user": facts.bytes_per_user,
            "sessions": federation.sessions,
            "epsilon_of_all_sessions": self.epsilon_of_all_sessions,
            **self.guarantee.privacy.large_delta(int(rows.sum())),
            "holds_against": self.holds_against,
        }

    def _unreachable(self, *opened: Opened) -> list[str]:
        """Why honest users cannot have made these sums, the first of a session, if so."""
        found = []
        for each, of, mechanism in zip(opened, self.plan.sums, self.plan.integers, strict=False):
            total, sizes = mechanism.decode(each.total), self.rows_of(each.users)
            found.append(unreachable(total, of.submission, mechanism, sizes))
        return [why for why in found if why is not None]

    @property
    def holds_against(self) -> str:
        """With whom the operator may collude, beside the honest fraction that the noise assumes."""
        if self.federation.protocol == "shares":
            return "either of the two servers, colluding with all other users"
        share = self.federation.corrupt_fraction
        return f"the server, colluding with at most {share:g} of the users"
