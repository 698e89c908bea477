"""Options of the learners that we compare with: one class for each kind, loaded without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pretrain import check
from train_distributed.one_shot.registry import HeadOptions

GraphName = Literal["regular", "ring", "star"]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """A learner without settings."""


@dataclass(frozen=True, kw_only=True)
class DpFlOptions:
    """DP-SGD on one layer, by Opacus; the defaults are those of Kirschte et al. 2024, Sec. 7.1."""

    learning_rate: float = 4.0
    """Learning rate of SGD."""
    gradient_clip: float = 0.1
    """Norm C to which a record's gradient is clipped."""
    epochs: int = 40
    """Passes over the rows, in expectation."""
    batch_size: int = 1024
    """Expected batch size b."""

    def __post_init__(self) -> None:
        check.positive(**vars(self))


@dataclass(frozen=True, kw_only=True)
class RegularisedOptions:
    """An average of minimisers."""

    l2_reg: float | None = None
    """L2 regularisation Λ (default: by a public rule)."""


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """Gradient descent, one secure sum a round."""

    l2_reg: float = 1e-3
    """L2 regularisation Λ."""
    rounds: int | None = None
    """Rounds M, all under one promise (default: ln N, rounded up)."""


@dataclass(frozen=True, kw_only=True)
class AmpOptions:
    """Approximate minima perturbation."""

    eps_frac: float = 0.99
    """Share ε₃/ε₁ of the budget for the random linear term."""
    eps_out_frac: float = 0.001
    """Share of ε and δ for inexact solutions."""

    def __post_init__(self) -> None:
        check.within("(0, 1)", **vars(self))


@dataclass(frozen=True, kw_only=True)
class AdmmOptions:
    """ADMM among neighbours: public constants, fixed before data is seen.

    Raises:
        ValueError: an unknown graph, or no iteration.
    """

    rho: float = 0.3
    """Regulariser ρ of every node."""
    eta: float = 0.3
    """Penalty η on disagreement of neighbours."""
    loss_weight: float = 1.0
    """Weight C of the loss."""
    iterations: int = 10
    """Number of iterations T."""
    graph: GraphName = "regular"
    """Graph of communicating nodes: random of one degree, a ring, or a star."""
    degree: int = 4
    """Degree of the random graph; with at most degree + 1 users all know each other."""
    edges: Path | None = None
    """File with one pair of users per line, instead of --graph."""

    def __post_init__(self) -> None:
        check.one_of(get_args(GraphName), graph=self.graph)
        check.at_least(1, iterations=self.iterations)


@dataclass(frozen=True, kw_only=True)
class CharterOptions:
    """Cutting planes: public constants, fixed before data is seen.

    Raises:
        ValueError: a number outside its range.
    """

    half_width: float = 1.0
    """Half the side of the cube that is searched."""
    gradient_clip: float = 0.08
    """Bound G0 on a gradient, over the norm of a row."""
    cut_rounds: int | None = None
    """Number K of cutting rounds (default: as many as the smallest user can share out, at most
    2)."""
    rounds_per_feature: float = 0.5
    """K over the number of features, where nothing else says K."""
    bits: int | None = None
    """Bits per number that a client sends (default: the paper's)."""
    constants: Literal["tight", "paper"] = "tight"
    """Constants of the noise: the smallest proven ones, or the paper's."""

    def __post_init__(self) -> None:
        check.positive(
            half_width=self.half_width,
            gradient_clip=self.gradient_clip,
            rounds_per_feature=self.rounds_per_feature,
        )

    def rounds(self, dimension: int) -> int:
        """Cut rounds K for rows of d numbers."""
        if self.cut_rounds is None:
            return math.ceil(self.rounds_per_feature * dimension)
        return self.cut_rounds


OPTIONS: Mapping[str, type] = {
    "dp-fl": DpFlOptions,
    "output-perturbation": RegularisedOptions,
    "gradient-perturbation": GradientOptions,
    "dp-svm-smo": RegularisedOptions,
    "amp": AmpOptions,
    "centralised-softmax": HeadOptions,
    "centralised-svm": HeadOptions,
    "admm-dual": AdmmOptions,
    "admm-primal": AdmmOptions,
    "charter": CharterOptions,
    "charter-sum": CharterOptions,
    "non-private-softmax": NoOptions,
    "non-private-svm": NoOptions,
}
