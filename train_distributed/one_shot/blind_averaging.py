"""Blind averaging: every user trains a head, the weighted sum of all heads is released.

Algorithm 3 of Kirschte et al. 2024, with local sizes of one's own: user i submits n_i W_i, and the
sum is divided by Σ n_i. n_i·2L/(Λ n_i) is the same for all, so a record moves the sum by 2L/Λ
whoever holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from heads import Head, fit_exact, fit_sgd, project_ball, sgd_rounding, sgd_sensitivity
from heads.exact import certified_sensitivity, default_tolerance
from heads.head import Bound
from heads.projection import ball_margin
from train_distributed.one_shot.users import Chunk

Solver = Literal["exact", "sgd"]
ROUND_UP = 1 + 2.0**-36  # of entries, by more than double rounding or rows a little too long


@dataclass(frozen=True, kw_only=True)
class BlindAveraging:
    """How every user turns its rows into one vector, and what a record moves of it.

    A radius projects: at every step of SGD, and once after the exact solver (projection onto a
    ball never expands, so the certified sensitivity stands).
    """

    head: Head
    dim: int  # d, constant included
    solver: Solver = "exact"
    epochs: int = 150  # of SGD
    batch_size: int = 20  # of SGD
    bound: Bound = "tight"

    def validate(self) -> None:
        """Checks what the head cannot know.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        if self.solver not in ("exact", "sgd"):
            raise ValueError(f"solver must be 'exact' or 'sgd', got {self.solver!r}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        self.head.sensitivity(1, bound=self.bound)

    @property
    def num_classes(self) -> int:
        """The number K of classes of the head."""
        return self.head.num_classes

    @property
    def dimension(self) -> int:
        """Length of a submission, d K."""
        return self.dim * self.head.num_classes

    @property
    def compositions(self) -> int:
        """How many equal parts of a submission a record moves, each by `record_reach`."""
        return self.head.compositions

    @property
    def scale(self) -> float:
        """Factor under which a submission's sensitivity is the same in all directions."""
        return 1.0

    @property
    def grid_powers(self) -> None:
        """Trained weights lie on no grid: they are rounded, and the rounding is charged."""

    @property
    def without_radius(self) -> Head:
        """The head whose minimiser the exact solver finds, before it is projected."""
        return self.head if self.head.radius is None else replace(self.head, radius=None)

    def entry_bound(self, n: int) -> float:
        """n ‖W‖ bounds every entry."""
        return n * self.weight_bound(n) * ROUND_UP

    def record_reach(self, sizes: Tensor) -> float:
        """u: L2 movement of one part of a submission when one record is replaced.

        n s(n), s rising from 2L/(Λn) by what the solver leaves: the certificate and the cast to
        float32, and the projection's own rounding (exact), or what float64 adds to all steps
        (`heads.sgd_rounding`).
        """
        n = int(sizes.max())  # rounding grows with n, the rest of n s(n) is constant
        if self.solver == "exact":
            tolerance = default_tolerance(self.head, n)
            tight = n * certified_sensitivity(self.head, n, tolerance, torch.float32)
            if self.head.radius is not None:
                margin = ball_margin(self.dim + self.num_classes, torch.float64)
                tight += 4 * n * margin * self.weight_bound(n)
        else:
            tight = n * self._of_steps(sgd_sensitivity, n)
        if self.bound == "paper":
            return max(tight, n * self.head.sensitivity(n, bound="paper"))
        return tight

    def user_reach(self, sizes: Tensor) -> Tensor:
        """(users,) r_i: movement of one part when all of a user's records are replaced, 2 R n_i.

        Without projection ‖W‖ ≤ L/Λ all the same: from zero, W ← (1 − αΛ)W − αg with ‖g‖ ≤ L.
        """
        bound = max(self.weight_bound(int(n)) for n in (sizes.min(), sizes.max()))
        return 2 * sizes.double() * bound

    def record_removal(self, sizes: Tensor) -> float:
        """L/Λ less than `record_reach`: one gradient of norm L vanishes, no other takes its place.

        A record that is taken out has no loss, and 1/n stays: the objective's gradient moves by
        L/n instead of 2L/n, in every step of SGD too, and what solver and rounding leave is as it
        was.
        """
        return self.record_reach(sizes) - self.head.lipschitz / self.head.l2_reg

    def user_removal(self, sizes: Tensor) -> Tensor:
        """(users,) without any record the head is zero: n_i ‖W_i‖, half of `user_reach`."""
        return self.user_reach(sizes) / 2

    def weight_bound(self, n: int) -> float:
        """The largest norm that one composition of a head can have; R holds of the floats."""
        if self.solver == "exact":
            free = self.head.lipschitz + default_tolerance(self.head, n)
            free *= (1 + 1e-6) / self.head.l2_reg  # rounding, float32 at most
        else:
            free = self.head.lipschitz / self.head.l2_reg
            free *= 1 + self._of_steps(sgd_rounding, n)
        return free if self.head.radius is None else min(free, self.head.radius)

    def _of_steps(self, bound: Callable[..., float], n: int) -> float:
        """What a bound of `heads.sgd_rounding` says of a user of n rows."""
        return bound(self.head, n, self.dim, epochs=self.epochs, batch_size=self.batch_size)

    def submit(self, chunk: Chunk) -> Tensor:
        """n_i W_i without noise: (u, d K) float64."""
        if self.solver == "exact":
            weights = fit_exact(
                self.without_radius, chunk.x, chunk.y, counts=chunk.counts
            ).weights.double()
            if self.head.radius is not None:
                weights = project_ball(weights, self.head.radius, self.head.norm_dims)
        else:
            weights = fit_sgd(
                self.head,
                chunk.x.double(),
                chunk.y,
                epochs=self.epochs,
                batch_size=self.batch_size,
                counts=chunk.counts,
            )
        return (weights * chunk.counts[:, None, None]).flatten(1)

    def classifier(self, total: Tensor, rows: int, noise_std: Tensor | float) -> Tensor:
        """(d, K) weights from the noised sum over `rows` rows: their mean."""
        return total.unflatten(0, (self.dim, self.head.num_classes)) / rows
