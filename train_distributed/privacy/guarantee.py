"""What users submit, how far a record or a user moves it, and what a promise makes of that."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from heads.rows import SLACK
from train_distributed import accounting
from train_distributed.privacy.promise import SERVERS, Privacy, group_sensitivity

# Relative margin of sensitivities and noise: covers float64 rounding and rows whose computed norm
# exceeds the clip norm, by SLACK as computed and by d 2⁻⁵⁴ more in truth for d up to 2¹⁶, where the
# square counts twice.
ROUND_UP = 1 + 4 * SLACK + 2.0**-36


class Submission(ABC):
    """Vector of numbers that every user sends, with the sensitivity of their sum.

    Movements are L2 norms of one of C equal parts of a scaled submission.
    """

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D, the length of a submission."""

    @property
    def compositions(self) -> int:
        """C, the equal parts of a submission that a record moves; 1: all entries jointly."""
        return 1

    @property
    def scale(self) -> float | Tensor:
        """Factor, or (D,) factors, under which the sensitivity is stated."""
        return 1.0

    @property
    def grid_powers(self) -> Tensor | None:
        """(D,) int: entries are multiples of g**power if rows are multiples of g.

        None: they are not, whatever the rows.
        """
        return None

    @property
    def additive(self) -> bool:
        """True for a sum over rows: all users' rows pooled give the sum of their submissions.

        Entries on the rows' grid are then exact; of all others the rounding is charged.
        """
        return self.grid_powers is not None

    @abstractmethod
    def entry_bound(self, n: int) -> float:
        """Largest |entry| of the scaled submission of a user with n rows."""

    @abstractmethod
    def record_sensitivity(self, sizes: Tensor) -> float:
        """Movement when one record is replaced."""

    def user_sensitivity(self, sizes: Tensor) -> Tensor:
        """(users,) movement when all n_i records of a user are replaced: n_i times one's."""
        return sizes.double() * self.record_sensitivity(sizes)

    @abstractmethod
    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Movement when one record is taken out and its user's published size stays."""

    def user_zero_out(self, sizes: Tensor) -> Tensor:
        """(users,) movement when all n_i records of a user are taken out."""
        return sizes.double() * self.zero_out_sensitivity(sizes)

    def norm_bounds(self, sizes: Tensor) -> Tensor:
        """(users,) largest L2 norms of scaled submissions: all records together move it so far."""
        return math.sqrt(self.compositions) * self.user_zero_out(sizes)


@dataclass(frozen=True)
class Guarantee:
    """Promise and sensitivity of one sum; all lengths in scaled, submitted units.

    Everything here is computed from public numbers: sizes, settings, never rows.
    """

    privacy: Privacy
    users: int  # w
    min_survivors: int  # m_min
    honest: int  # H, shares of the noise that are certain in a sum of any m_min survivors
    compositions: int  # C
    sensitivity: float  # of one composition, for the stated unit and group
    noise_multiplier: float  # of one composition; 0: no noise
    removal: float  # sensitivity where the unit's rows are taken out and all sizes stay
    share: float = 1.0  # of the promise's μ² that this sum spends; others spend the rest

    @classmethod
    def of(
        cls,
        sizes: Tensor,
        method: Submission,
        privacy: Privacy,
        min_survivors: int | None = None,
        *,
        share: float = 1.0,
    ) -> "Guarantee":
        """The guarantee of a method for users of these sizes.

        Args:
            sizes: (users,) n_i, public.
            method: what is submitted.
            privacy: the promise, of all sums together that have a share of it.
            min_survivors: m_min; None: all users.
            share: of μ² = C/σ², in (0, 1]; Gaussian sums whose shares come to 1 keep the promise
                together, each noised by σΔ/√share.

        Raises:
            ValueError: no certainly honest user, or a promise out of range.

        Examples:
            Ten users of 50 rows, half of them honest; a record moves a submission by 2:

            >>> import torch
            >>> from types import SimpleNamespace
            >>> submission = SimpleNamespace(
            ...     compositions=1,
            ...     record_sensitivity=lambda sizes: 2.0,
            ...     user_sensitivity=lambda sizes: 2.0 * sizes,
            ...     zero_out_sensitivity=lambda sizes: 1.0,
            ...     user_zero_out=lambda sizes: 1.0 * sizes,
            ... )
            >>> guarantee = Guarantee.of(torch.full((10,), 50), submission, Privacy(1.0, 1e-5))
            >>> guarantee.honest
            5
            >>> f"{guarantee.sensitivity:.4f} {guarantee.noise_multiplier:.4f}"
            '2.0000 3.7306'
        """
        privacy.validate()
        users = len(sizes)
        honest = privacy.certain_shares(users, min_survivors)
        moved = partial(
            group_sensitivity, sizes=sizes, unit=privacy.unit, group_size=privacy.group_size
        )
        reach = method.user_sensitivity(sizes)
        by_user = privacy.unit == "user"  # some of a user's records may turn its submission round
        removed_reach = method.user_zero_out(sizes) if by_user else reach
        multiplier = accounting.noise_multiplier(
            privacy.epsilon, privacy.delta, method.compositions
        )
        return cls(
            privacy=privacy,
            users=users,
            min_survivors=users if min_survivors is None else min_survivors,
            honest=honest,
            compositions=method.compositions,
            sensitivity=moved(method.record_sensitivity(sizes), reach) * ROUND_UP,
            noise_multiplier=multiplier,
            removal=moved(method.zero_out_sensitivity(sizes), removed_reach) * ROUND_UP,
            share=share,
        )

    @property
    def joint_sensitivity(self) -> float:
        """Sensitivity Δ of the whole submission: √C times that of one composition."""
        return math.sqrt(self.compositions) * self.sensitivity * ROUND_UP

    @property
    def joint_removal(self) -> float:
        """Movement of the whole submission where the unit's rows are taken out."""
        return math.sqrt(self.compositions) * self.removal * ROUND_UP

    @property
    def touched_users(self) -> int:
        """A, the most users whose submissions a neighbour changes."""
        return min(self.privacy.group_size, self.users)

    def report(self) -> dict[str, Any]:
        """The promise in words and numbers, JSON-ready."""
        if self.privacy.noise_by == "servers":
            assumed = {"honest_servers": self.honest, "noise_servers": SERVERS}
        else:
            fraction = float(self.privacy.fraction(self.users))
            assumed = {"honest_fraction": fraction, "honest_users": self.honest}
        return self.privacy.report() | {
            "privacy_curve": "gaussian",
            "noise_by": self.privacy.noise_by,
            **assumed,
            "min_survivors": self.min_survivors,
            "compositions": self.compositions,
            "sensitivity": self.sensitivity,
            "noise_multiplier": self.noise_multiplier,
        }
