"""The users' clip: a user's whole submission brought to a public norm before its noise.

What all records of one user move is then a matter of two vectors of norm at most C_u, not of n_i
records: 50 rows of many classes, whose sums cancel, are much shorter than 50 times one row.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heads.projection import ball_margin, ball_scale, weight_norms
from heads.ranges import require_scale
from train_distributed.one_shot.class_sums import ClassSums
from train_distributed.one_shot.discriminant import Discriminant
from train_distributed.one_shot.least_squares import LeastSquares
from train_distributed.one_shot.users import Chunk

if TYPE_CHECKING:
    from train_distributed.one_shot.statistic import Method

BLOCK = 1 << 22  # numbers that are clipped together


@dataclass(frozen=True, kw_only=True)
class UserClip:
    """A method whose users scale v_i, their scaled submission, to v_i min(1, C_u/‖v_i‖).

    **Sensitivity.** All compositions are clipped together, so however many records of a user are
    replaced, its submission moves by at most 2 C_u, that is 2 C_u/√C of each of C equal parts; and
    by C_u if it was or becomes zero. Projecting onto a ball moves no two points apart, so the
    method's own bounds stand beside these, and the smaller one holds, for records, users and groups
    of either (g users move the sum by at most 2 g C_u).

    **Floating point.** The ball that is aimed at is smaller by `heads.projection.ball_margin` m,
    more than all rounding of norm, factor and product: the exact norm of what is submitted is at
    most C_u. Two submissions lie no further from their projections than 2 C_u m each, which is
    charged to the method's own bounds. Statistics, whole steps of a grid, are rounded towards zero
    to such steps again: no norm grows, and no coordinate's difference by a step or more, which
    `summation.Integers` charges as it charges the rounding of weights.

    **Bias.** Users whose sums are long weigh less. Class sums and moments of one user are scaled
    alike, so statistics are those of weighted rows, whose number the noised counts tell (`rows`).
    An average of heads is still divided by N: heads that were clipped are shorter, which changes
    no argmax where all are by the same factor.
    """

    method: "Method"
    norm: float  # C_u, public

    def validate(self) -> None:
        """Raises ValueError for a norm out of scale, or a setting of the method's out of range."""
        require_scale("user_clip", self.norm)
        if getattr(self.method, "rounds", 0):
            raise ValueError("user_clip must be left out with rounds, which clip every record")
        self.method.validate()

    @property
    def num_classes(self) -> int:
        """As of the method, like all that follows without a word."""
        return self.method.num_classes

    @property
    def dimension(self) -> int:
        """Length of a submission."""
        return self.method.dimension

    @property
    def compositions(self) -> int:
        """C."""
        return self.method.compositions

    @property
    def scale(self) -> float | Tensor:
        """Under which submissions are clipped."""
        return self.method.scale

    @property
    def grid_powers(self) -> Tensor | None:
        """(dimension,) int, or None."""
        return self.method.grid_powers

    def entry_bound(self, n: int) -> float:
        """That of statistics before they are clipped, which float64 must hold exactly too."""
        bound = self.method.entry_bound(n)
        return min(bound, self.norm) if self.grid_powers is None else bound

    def record_reach(self, sizes: Tensor) -> float:
        """min(u + 4 m C_u/√C, 2 C_u/√C), u the method's own."""
        return min(self.method.record_reach(sizes) + self._rounding(sizes), 2 * self._part)

    def user_reach(self, sizes: Tensor) -> Tensor:
        """(users,) min(r_i + 4 m C_u/√C, 2 C_u/√C), r_i the method's own."""
        own = self.method.user_reach(sizes) + self._rounding(sizes)
        return own.clamp(max=2 * self._part)

    def record_removal(self, sizes: Tensor) -> float:
        """As `record_reach`: what stays may be as long as C_u and point anywhere."""
        return min(self.method.record_removal(sizes) + self._rounding(sizes), 2 * self._part)

    def user_removal(self, sizes: Tensor) -> Tensor:
        """(users,) at most C_u/√C, as nothing stays."""
        return self.method.user_removal(sizes).clamp(max=self._part)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 clipped submissions, unscaled; whole steps of the chunk's grid."""
        return self.clipped_(self.method.submit(chunk), chunk.grid)

    def clipped_(self, submitted: Tensor, grid: float | None = None) -> Tensor:
        """Clips (u, dimension) unscaled submissions in place.

        Args:
            submitted: float64, each user's as the method makes it.
            grid: of their rows; None: nothing is rounded.
        """
        steps = None
        if grid is not None and self.grid_powers is not None:
            steps = grid ** self.grid_powers.double()
        aim = self.norm * (1 - self._margin)
        scale = self.scale
        for part in submitted.split(max(1, BLOCK // self.dimension)):
            norms = weight_norms((part * scale)[..., None], (-2, -1))[..., 0]
            part.mul_(ball_scale(norms, aim))
            if steps is not None:
                part.div_(steps).trunc_().mul_(steps)
        return submitted

    def rows(self, total: Tensor, rows: int, noise_std: float) -> int:
        """How many rows the noised, clipped statistics of `rows` rows hold: at least one.

        The constant row says it with noise √K s/a. What is missing is believed as far as it is more
        than twice that noise: too few rows do more harm than too many, and clips are chosen so that
        few are missing. Trained weights hold all rows.
        """
        if not isinstance(self.method, ClassSums | LeastSquares | Discriminant):
            return rows
        constant = self.method.transform.constant
        missing = rows - float(total[: self.num_classes].sum()) / constant
        noise = self.num_classes * (2 * noise_std / constant) ** 2
        keep = max(0.0, 1 - noise / max(missing, 1e-150) ** 2)
        return min(rows, max(1, round(rows - keep * max(missing, 0.0))))

    def classifier(self, total: Tensor, rows: int, noise_std: float) -> Tensor:
        """(d, K) weights of the method, from as many rows as are left."""
        return self.method.classifier(total, self.rows(total, rows, noise_std), noise_std)

    @property
    def _margin(self) -> float:
        """m, of vectors of this length; of scaled ones, a product more, it has room for that."""
        return ball_margin(self.dimension + 1, torch.float64)

    @property
    def _part(self) -> float:
        """C_u/√C, of one composition where all move alike."""
        return self.norm / math.sqrt(self.compositions)

    def _rounding(self, sizes: Tensor) -> float:
        """4 m C_u/√C, or less where no submission is as long as C_u."""
        longest = float(self.method.user_removal(sizes).max())
        return 4 * self._margin * min(self._part, longest)
