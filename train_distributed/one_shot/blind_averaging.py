"""Blind averaging: every user trains a head, the weighted mean of all heads is released.

Algorithm 3 of Kirschte et al. 2024, with local sizes of one's own: user i submits n_i W_i, and the
sum is divided by Σ n_i. n_i·2L/(Λ n_i) is the same for all, so a record moves the sum by 2L/Λ
whoever holds it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from embed import PublicTransform
from heads import (
    Head,
    HuberSVMHead,
    LogisticHead,
    SoftmaxHead,
    class_sums,
    fit_exact,
    fit_sgd,
    project_ball,
    sgd_rounding,
    sgd_sensitivity,
)
from heads.exact import certified_sensitivity, default_tolerance
from heads.head import Bound
from heads.projection import ball_margin
from pretrain import check
from train_distributed.one_shot.class_prior import (
    ClassPrior,
    checked_prior,
    reported_prior,
    shares_of,
)
from train_distributed.one_shot.method import Estimator, Fitted, Method
from train_distributed.one_shot.registry import for_findings
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic
from train_distributed.privacy.guarantee import ROUND_UP

Solver = Literal["exact", "sgd"]
MEAN_SHARE = 0.1  # prior: of a head's squared sensitivity, for the sum of features


@dataclass(frozen=True, kw_only=True)
class TrainedHeads(Statistic):
    """n_i W_i of every user, W_i the head trained on its rows.

    A radius projects: at every step of SGD, and once after the exact solver (projection onto a
    ball never expands, so the certified sensitivity holds).

    **Centred heads.** A prior other than "private" sets the intercepts anew: at the mean of all
    rows the classes score as rows without features would teach, in the prior's shares. A heavily
    regularised head learns W_k ~ (π_k μ_k − μ̄/K)/Λ and no bias that goes with it, so where private
    pictures lie far from the public centre, their common part decides between classes. For that
    mean every user adds Σ x of its features. Head and features are one vector, noised jointly: a
    record moves each of C compositions by u and the features by 2r, r² = c² − a², so

        movement of one of C equal parts = √(u² + (γ 2r)²/C),   γ r = √(C MEAN_SHARE) min(L/Λ, R).
    """

    head: Head
    dim: int  # d, constant included
    solver: Solver = "exact"
    epochs: int = 150  # of SGD
    batch_size: int = 20  # of SGD
    bound: Bound = "tight"
    prior: ClassPrior = "private"  # of a plain head, as published
    constant: float | None = None  # a, the first column of all rows; needed for another prior
    findings: bool = False  # rows must have several findings each; without, they may

    def validate(self) -> None:
        """Raises ValueError for a setting out of range that the head cannot know."""
        check.one_of(get_args(Solver), solver=self.solver)
        check.at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        self.head.sensitivity(1, bound=self.bound)
        prior = checked_prior(self.prior, self.num_classes)
        if prior == "private":
            return
        if isinstance(self.head, HuberSVMHead) and prior != "equal":
            raise ValueError(
                "prior must be 'equal' or 'private' for an SVM, whose margins follow no shares; "
                f"a softmax or logistic head or a discriminant can have another, got {self.prior!r}"
            )
        if self.constant is None or not 0 < self.constant < self.head.clip_norm:
            raise ValueError(
                f"constant must be given and in (0, {self.head.clip_norm}) for prior "
                f"{self.prior!r}, got {self.constant}"
            )

    @property
    def centred(self) -> bool:
        """Whether the features' sum is sent as well."""
        return self.prior != "private"

    @property
    def mean_scale(self) -> float:
        """γ, factor of the features' sum."""
        longest = self.head.lipschitz / self.head.l2_reg
        longest = longest if self.head.radius is None else min(longest, self.head.radius)
        return math.sqrt(self.compositions * MEAN_SHARE) * longest / self._reach

    @property
    def _reach(self) -> float:
        """r, the largest length of a row's features."""
        assert self.constant is not None
        return math.sqrt(self.head.clip_norm**2 - self.constant**2)

    def _joint(self, moved: float, rows: float, n: int) -> float:
        """Movement of one part, `moved` by a head, where the features of `rows` of n change.

        Added up in float64, n features of length r are exact to n² 2⁻⁵³ r.
        """
        if not self.centred:
            return moved
        features = self.mean_scale * self._reach * (rows + n**2 * 2.0**-52)
        return math.hypot(moved, features / math.sqrt(self.compositions)) * ROUND_UP

    def check_rows(self, transform: PublicTransform) -> None:
        """Raises ValueError for rows of another clip norm or other columns than the head's."""
        if (self.head.clip_norm, self.dim) != (transform.clip_norm, transform.dim):
            raise ValueError(
                f"method must be made for rows of norm {transform.clip_norm} and {transform.dim} "
                f"columns, got one for {self.head.clip_norm} and {self.dim}"
            )
        if self.centred and self.constant != transform.constant:  # features may be longer than r
            raise ValueError(
                f"transform must have the heads' constant {self.constant}, got {transform.constant}"
            )

    @property
    def num_classes(self) -> int:
        """The number K of classes of the head."""
        return self.head.num_classes

    def report(self) -> dict[str, Any]:
        """L2 regularisation Λ, for the report."""
        return {"l2_reg": self.head.l2_reg}

    @property
    def dimension(self) -> int:
        """Length of a submission: d K, and d − 1 features where heads are centred."""
        return self.dim * self.num_classes + (self.dim - 1) * self.centred

    @property
    def compositions(self) -> int:
        """Number of parts of a submission that a record moves, each by `record_sensitivity`."""
        return self.head.compositions

    @property
    def scale(self) -> float | Tensor:
        """Factor of the head, 1; (D,) factors where γ is that of the features' sum."""
        if not self.centred:
            return 1.0
        factors = torch.ones(self.dimension, dtype=torch.float64)
        factors[self.dim * self.num_classes :] = self.mean_scale
        return factors

    @property
    def without_radius(self) -> Head:
        """The head whose minimiser the exact solver finds, before it is projected."""
        return self.head if self.head.radius is None else replace(self.head, radius=None)

    def positions(self, wide: Statistic) -> Tensor:
        """(D,) places in the submission of heads on rows with more features."""
        assert isinstance(wide, TrainedHeads)
        kept = torch.arange(self.dim * self.num_classes)
        if not self.centred:
            return kept
        return torch.cat([kept, wide.dim * wide.num_classes + torch.arange(self.dim - 1)])

    def entry_bound(self, n: int) -> float:
        """n ‖W‖ bounds every entry of a head, n γ r every feature's sum."""
        bound = n * self.weight_bound(n) * ROUND_UP
        return max(bound, n * self._joint(0.0, 1, n) * math.sqrt(self.compositions))

    def record_sensitivity(self, sizes: Tensor) -> float:
        """L2 movement of one part of a submission when one record is replaced.

        u is the largest n s(n) of all sizes, s being 2L/(Λn) and what the solver leaves: the
        certificate and the cast to float32, and the projection's own rounding (exact), or what
        float64 adds to all steps (`heads.sgd_rounding`), which is more for a small user in the Gram
        form than for a large one on the weights.
        """
        distinct = sizes.unique().tolist()
        return max(self._joint(self._moved_by_record(n), 2, n) for n in distinct)

    def _moved_by_record(self, n: int) -> float:
        """L2 movement of one part of a head's submission, of a user of n rows."""
        if self.solver == "exact":
            tolerance = default_tolerance(self.head, n)
            moved = n * certified_sensitivity(self.head, n, tolerance, torch.float32)
            if self.head.radius is not None:
                margin = ball_margin(self.dim + self.num_classes, torch.float64)
                moved += 4 * n * margin * self.weight_bound(n)
        else:
            moved = n * self._of_steps(sgd_sensitivity, n)
        if self.bound == "paper":
            moved = max(moved, n * self.head.sensitivity(n, bound="paper"))
        return moved

    def user_sensitivity(self, sizes: Tensor) -> Tensor:
        """(users,) r_i: movement of one part when all of a user's records are replaced, 2 R n_i.

        Without projection ‖W‖ ≤ L/Λ all the same: from zero, W ← (1 − αΛ)W − αg with ‖g‖ ≤ L.
        """
        distinct, user = sizes.unique(return_inverse=True)
        reach = [self._joint(2 * n * self.weight_bound(n), 2 * n, n) for n in distinct.tolist()]
        return torch.tensor(reach, dtype=torch.float64)[user]

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """L/Λ less than a replaced record moves a head, and r less than it moves the features.

        One gradient of norm L vanishes without another: a record that is taken out has no loss, and
        1/n stays, so the objective's gradient moves by L/n instead of 2L/n, in every step of SGD
        too, and what solver and rounding leave is as it was.
        """
        less = self.head.lipschitz / self.head.l2_reg
        distinct = sizes.unique().tolist()
        return max(self._joint(self._moved_by_record(n) - less, 1, n) for n in distinct)

    def user_zero_out(self, sizes: Tensor) -> Tensor:
        """(users,) without any record the head is zero: n_i ‖W_i‖, half of `user_sensitivity`."""
        return self.user_sensitivity(sizes) / 2

    def weight_bound(self, n: int) -> float:
        """Bound on the norm of one composition of a head; R bounds the rounded weights too."""
        if self.solver == "exact":
            free = self.head.lipschitz + default_tolerance(self.head, n)
            free *= (1 + 1e-6) / self.head.l2_reg  # rounding, float32 at most
        else:
            free = self.head.lipschitz / self.head.l2_reg
            free *= 1 + self._of_steps(sgd_rounding, n)
        return free if self.head.radius is None else min(free, self.head.radius)

    def _of_steps(self, bound: Callable[..., float], n: int) -> float:
        """Value of a bound of `heads.sgd_rounding` for a user of n rows."""
        return bound(self.head, n, self.dim, epochs=self.epochs, batch_size=self.batch_size)

    def submit(self, chunk: Chunk) -> Tensor:
        """n_i W_i without noise: (u, d K) float64."""
        if self.findings and chunk.y.ndim != 3:
            raise ValueError("embeddings must hold findings, as options say, got a set of classes")
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
        return self.with_features((weights * chunk.counts[:, None, None]).flatten(1), chunk)

    def with_features(self, heads: Tensor, chunk: Chunk) -> Tensor:
        """(u, D) float64 submissions: (u, d K) heads, followed by Σ x where they are centred."""
        if not self.centred:
            return heads
        features = class_sums(chunk.x[..., 1:], chunk.one_class, 1, counts=chunk.counts)[..., 0]
        return torch.cat([heads, features], 1)


HEADS = {"softmax": SoftmaxHead, "svm": HuberSVMHead, "logistic": LogisticHead}


@dataclass(frozen=True, kw_only=True)
class AveragedHeads(Estimator):
    """Mean of all heads, weighted by their rows, for the class prior that is asked for."""

    statistic: TrainedHeads

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights from the noised sum over N rows; centred ones, see `TrainedHeads`."""
        heads = self.statistic
        size = heads.dim * heads.num_classes
        weights = noised.total[:size].unflatten(0, (-1, heads.num_classes)) / noised.rows
        if not heads.centred:
            return Fitted(weights, prior=heads.prior)
        assert heads.constant is not None
        equal = torch.full((heads.num_classes,), 1 / heads.num_classes, dtype=torch.float64)
        at_mean = noised.total[size:] / noised.rows @ weights[1:]
        intercepts = self.taught_by(shares_of(heads.prior, equal)) - at_mean / heads.constant
        return Fitted(torch.cat([intercepts[None], weights[1:]]), prior=heads.prior)

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights; shares of the users' rows are unknown."""
        if self.statistic.prior == "private":
            return reported_prior("private", None, class_names)
        unknown = torch.ones(self.statistic.num_classes, dtype=torch.float64)
        return reported_prior(self.statistic.prior, unknown / unknown.sum(), class_names)

    def taught_by(self, shares: Tensor) -> Tensor:
        """(K,) constant column that minimises J for (K,) shares of rows without features."""
        head, a = self.statistic.head, self.statistic.constant or 0.0
        targets = head.targets(torch.arange(head.num_classes), torch.float64)

        def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
            w = torch.from_numpy(weights)
            scores = (a * w).expand(head.num_classes, -1)
            value = head.l2_reg / 2 * w.square().sum() + shares @ head.data_loss(scores, targets)
            return float(value), (
                head.l2_reg * w + a * shares @ head.residual(scores.clone(), targets)
            ).numpy()

        found = minimize(loss, np.zeros(head.num_classes), jac=True, options={"gtol": 1e-10})
        return torch.from_numpy(found.x)


def build(
    name: str,
    transform: PublicTransform,
    num_classes: int,
    *,
    l2_reg: float,
    **options: Any,
) -> Method:
    """Blind averaging of heads of kind `name`; options: `radius`, fields of `TrainedHeads`."""
    if options.get("findings"):
        for_findings(name)
    of_head = {key: options.pop(key) for key in ("radius", "relaxation") if key in options}
    head = HEADS[name](
        num_classes=num_classes, clip_norm=transform.clip_norm, l2_reg=l2_reg, **of_head
    )
    heads = TrainedHeads(head=head, dim=transform.dim, constant=transform.constant, **options)
    return Method(name, heads, AveragedHeads(statistic=heads), num_classes)
