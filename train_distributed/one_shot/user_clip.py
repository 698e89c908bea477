"""The users' clip: a user's whole submission brought to a public norm before its noise.

What all records of one user move is then a matter of two vectors of norm at most C_u, not of n_i
records: 50 rows of many classes, whose sums cancel, are much shorter than 50 times one row.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from embed.store import BLOCK
from heads.head import require_scale
from heads.projection import ball_margin, ball_scale, weight_norms
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic


@dataclass(frozen=True, kw_only=True)
class UserClip(Statistic):
    """Statistic whose users clip v_i = s_i − n_i c: s_i their scaled submission, c `centre`.

    They send v_i min(1, C_u/‖v_i‖), and N c is added to the opened sum. What n_i public rows are
    expected to submit is n_i c: public, so it needs neither length nor noise. What is left of 50
    pictures is a third shorter. Trained weights have no such centre.

    **Sensitivity.** All compositions are clipped together, so however many records of a user are
    replaced, its submission moves by at most 2 C_u, that is 2 C_u/√C of each of C equal parts; and
    by C_u if it was or becomes zero. n_i and c are public, and projecting onto a ball moves no two
    points apart, so the statistic's own bounds hold too, and the smaller one is stated, for
    records, users and groups of either (g users move the sum by at most 2 g C_u). A user that sends
    nothing leaves out n_i c as well: then n_i ‖c‖ is added to the statistic's own bound.

    **Floating point.** The ball that is aimed at is smaller by `heads.projection.ball_margin` m,
    more than all rounding of norm, factor and product: the exact norm of what is submitted is at
    most C_u. Two submissions lie no further from their projections than 2 C_u m each, which is
    charged to the statistic's own bounds. On a grid n_i c is rounded to whole steps, so that it is
    taken from sums exactly. Sums of whole steps are rounded towards zero to such steps again: no
    norm grows, and no coordinate's difference by a step or more, which
    `privacy.mechanism` charges as it charges the rounding of weights.

    **Bias.** Users whose sums are long weigh less. Class sums and moments of one user are scaled
    alike, by what the noised counts show (`restored`), as c leaves half of every count in. An
    average of heads is still divided by N: heads that were clipped are shorter, which changes no
    argmax where all are by the same factor.
    """

    statistic: Statistic
    norm: float  # C_u, public

    def validate(self) -> None:
        """Raises ValueError for a norm out of scale, or a setting of the statistic out of range."""
        require_scale("user_clip", self.norm)
        self.statistic.validate()

    def check_rows(self, transform: PublicTransform) -> None:
        """Checks the statistic's rows."""
        self.statistic.check_rows(transform)

    @property
    def unclipped(self) -> Statistic:
        """The statistic itself."""
        return self.statistic

    @property
    def centre(self) -> Tensor | None:
        """c, (dimension,) unscaled: what the statistic expects of a public row; None: zero."""
        return self.statistic.expected_row

    @property
    def dimension(self) -> int:
        """Length of a submission."""
        return self.statistic.dimension

    @property
    def compositions(self) -> int:
        """C of the statistic."""
        return self.statistic.compositions

    @property
    def scale(self) -> float | Tensor:
        """Factors under which submissions are clipped."""
        return self.statistic.scale

    @property
    def grid_powers(self) -> Tensor | None:
        """(dimension,) int, or None, of the statistic."""
        return self.statistic.grid_powers

    def positions(self, wide: Statistic) -> Tensor:
        """Places of the statistic's numbers."""
        return self.statistic.positions(wide.unclipped)

    @property
    def additive(self) -> bool:
        """False: pooled rows have another length."""
        return False

    def entry_bound(self, n: int) -> float:
        """Largest entry before the clip, which float64 must hold exactly as well."""
        bound = self.statistic.entry_bound(n)
        if self.grid_powers is None:
            return min(bound, self.norm)
        return bound + n * self._centre_norm

    def record_sensitivity(self, sizes: Tensor) -> float:
        """min(u + 4 m C_u/√C, 2 C_u/√C), u the statistic's own."""
        return min(self.statistic.record_sensitivity(sizes) + self._rounding(sizes), 2 * self._part)

    def user_sensitivity(self, sizes: Tensor) -> Tensor:
        """(users,) min(r_i + 4 m C_u/√C, 2 C_u/√C), r_i the statistic's own."""
        own = self.statistic.user_sensitivity(sizes) + self._rounding(sizes)
        return own.clamp(max=2 * self._part)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """At most 2 C_u/√C: what stays may be as long as C_u and point anywhere."""
        return min(
            self.statistic.zero_out_sensitivity(sizes) + self._rounding(sizes), 2 * self._part
        )

    def user_zero_out(self, sizes: Tensor) -> Tensor:
        """(users,) at most C_u/√C, as nothing stays, not even −n_i c."""
        own = self.statistic.user_zero_out(sizes) + sizes.double() * self._centre_norm
        return own.clamp(max=self._part)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 clipped submissions, unscaled; whole steps of the chunk's grid."""
        return self.clipped_(self.statistic.submit(chunk), chunk.counts, chunk.grid)

    def clipped_(self, submitted: Tensor, counts: Tensor, grid: float | None = None) -> Tensor:
        """Clips (u, dimension) unscaled submissions in place.

        Args:
            submitted: float64, each user's as the statistic makes it.
            counts: (u,) n_i.
            grid: of their rows; None: nothing is rounded.
        """
        steps = None
        if grid is not None and self.grid_powers is not None:
            steps = grid ** self.grid_powers.double()
        if self.centre is not None:
            expected = counts.double()[:, None] * self.centre
            submitted -= expected if steps is None else (expected / steps).round() * steps
        aim = self.norm * (1 - self._margin)
        scale = self.scale
        for part in submitted.split(max(1, BLOCK // self.dimension)):
            norms = weight_norms((part * scale)[..., None], (-2, -1))[..., 0]
            part.mul_(ball_scale(norms, aim))
            if steps is not None:
                part.div_(steps).trunc_().mul_(steps)
        return submitted

    def restored(self, noised: NoisedSum) -> NoisedSum:
        """The sum as it would be had nothing been clipped, as far as its count of rows shows.

        What is missing is believed as far as it is more than twice the noise of the count: too few
        rows do more harm than too many, and clips are chosen so that few are missing.
        """
        if self.centre is None:
            return noised
        left_out, _ = self.statistic.counted_rows(NoisedSum(self.centre, 1, 0.0))
        found, variance = self.statistic.counted_rows(noised)
        sent = (1 - left_out) * noised.rows
        if sent <= 0:  # it counts no rows
            return replace(noised, total=noised.total + noised.rows * self.centre)
        missing = max(sent - found, 1e-150)
        keep = max(0.0, 1 - 4 * variance / missing**2)
        left = max(1 - keep * missing / sent, 1 / noised.rows)
        total = noised.total / left + noised.rows * self.centre
        return NoisedSum(total, noised.rows, noised.noise_std / left)

    def report(self) -> dict[str, Any]:
        """The statistic's settings, the clip and what it means."""
        words = "every user's submission was scaled down to this L2 norm, if longer, before noise"
        if self.centre is not None:
            words += ", without what public rows are expected to add, which the opened sum got back"
        return self.statistic.report() | {"user_clip": self.norm, "user_clip_means": words}

    @property
    def _margin(self) -> float:
        """m for vectors of this length, with one more product for their scale."""
        return ball_margin(self.dimension + 1, torch.float64)

    @property
    def _centre_norm(self) -> float:
        """‖c‖ as scaled."""
        return 0.0 if self.centre is None else float((self.centre * self.scale).norm())

    @property
    def _part(self) -> float:
        """C_u/√C, of one composition where all move alike."""
        return self.norm / math.sqrt(self.compositions)

    def _rounding(self, sizes: Tensor) -> float:
        """4 m C_u/√C, or less where no submission is as long as C_u."""
        longest = float(self.statistic.user_zero_out(sizes).max())
        return 4 * self._margin * min(self._part, longest)
