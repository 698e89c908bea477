"""Further rounds after the first sum: clipped gradients, and what their noisy sums say of W.

Round t sums G_t = Σ clip_c(x_i (p_i − y_i)ᵀ), the gradient of the softmax loss at the weights that
were released last. Where W* is the minimum and H the Hessian, G_t/N ≈ H (W_t − W*) + noise, so each
round measures z_t = W_t − H⁻¹ G_t/N = W* + noise. Weights are the posterior mean of W* given the
mean of the later half of these, under the prior N(W_0, v H⁻¹) whose scale v is of maximum
likelihood: the gradient is believed where it stands out of its noise, and W_0 elsewhere.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from train_distributed.one_shot.class_gaussians import Gaussians, fitted_scale
from train_distributed.one_shot.users import Chunk

FIRST_SHARE = 0.5  # of μ², spent by the first sum; these two were chosen on public classes
CLIP_SHARE = 0.125  # c of a gradient, of the rows' clip norm
MOST_ROUNDS = 1000
DRAWN = 4000  # rows from the Gaussian model, to average the Hessian over
LEAST_CURVATURE = 1e-9  # of a direction, over the largest; less is taken for none
LARGEST_WEIGHT = 1e100  # products with rows stay finite
ROUNDING = 1 + 1e-12  # of one row's gradient in float64


@dataclass(frozen=True, kw_only=True)
class ClippedGradient:
    """Every user submits Σ clip_c(x (p − e_y)ᵀ), p = softmax(Wᵀx): one round at public weights W.

    Raises:
        ValueError: weights that are not finite, or so large that scores may not be.
    """

    weights: Tensor  # (d, K) float64 W
    clip_norm: float  # c
    grid_powers: None = None
    scale: float = 1.0
    compositions: int = 1

    def __post_init__(self) -> None:
        if not (self.weights.abs() <= LARGEST_WEIGHT).all():  # also true for NaN
            raise ValueError(f"weights must be finite and at most {LARGEST_WEIGHT:g}, got others")

    @property
    def dimension(self) -> int:
        """Length of a submission: d K."""
        return self.weights.numel()

    def entry_bound(self, n: int) -> float:
        """n gradients of norm at most c, and what their float64 sum may be off by."""
        return n * self.clip_norm * (ROUNDING + n * 2.0**-52)

    def record_reach(self, sizes: Tensor) -> float:
        """2c: two gradients of norm at most c, whatever W is, and what float64 may be off by.

        A sum of n gradients of norm c is exact to n 2⁻⁵³ of n c, whatever the order, on either of
        two neighbours.
        """
        n = int(sizes.max())
        return 2 * self.clip_norm * (ROUNDING + n**2 * 2.0**-52)

    def user_reach(self, sizes: Tensor) -> Tensor:
        """(users,) n_i records' worth."""
        return sizes.double() * self.record_reach(sizes)

    def record_removal(self, sizes: Tensor) -> float:
        """c less: one gradient instead of two."""
        return self.record_reach(sizes) - self.clip_norm

    def user_removal(self, sizes: Tensor) -> Tensor:
        """(users,) n_i records' worth."""
        return sizes.double() * self.record_removal(sizes)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64; rows beyond a user's count add nothing."""
        x = chunk.x.double()
        residual = torch.softmax(x @ self.weights, 2)
        residual.scatter_add_(2, chunk.y[..., None], -torch.ones_like(residual[..., :1]))
        norms = torch.linalg.vector_norm(x, dim=2) * torch.linalg.vector_norm(residual, dim=2)
        own = torch.arange(x.shape[1]) < chunk.counts[:, None]
        factor = torch.where(norms > self.clip_norm, self.clip_norm / norms, 1.0) * own
        return (x.mT @ (residual * factor[..., None])).flatten(1)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """What all sums so far say of the weights; a value, which the next sum turns into the next.

    The Hessian is taken as A ⊗ M (Martens and Grosse 2015), A the mean of diag(p) − p pᵀ and M that
    of x xᵀ, weighted by 1 − ‖p‖², over rows drawn from the Gaussian model: no private row is read.
    A's null direction, along which all classes gain alike, is left out.
    """

    start: Tensor  # (d, K) W_0
    offset: Tensor  # (d, K): to be added in the end, for other class probabilities than the rows'
    rows_basis: Tensor  # (d, d) eigenvectors of M
    class_basis: Tensor  # (K, K - 1) eigenvectors of A
    curvature: Tensor  # (d, K - 1) h, eigenvalues of A ⊗ M; 0: none
    clip_norm: float  # c of the gradients
    targets: tuple[Tensor, ...] = ()  # (d, K - 1) each: z_t − W_0 in that basis
    variances: tuple[float, ...] = ()  # of the noise in an entry of G_t/N

    @classmethod
    def of(
        cls, start: Tensor, offset: Tensor, gaussians: Gaussians, constant: float, clip_norm: float
    ) -> "Descent":
        """Before the first further round.

        Args:
            start: (d, K) weights that the first sum gave.
            offset: (d, K).
            gaussians: what it showed of the classes.
            constant: a, the first entry of every row.
            clip_norm: of the rows.
        """
        generator = torch.Generator().manual_seed(0)  # the same public draws for everybody
        features = gaussians.draw(DRAWN, generator)
        reach = math.sqrt(clip_norm**2 - constant**2)
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        features = torch.where(norms > reach, features * (reach / norms), features)
        x = torch.cat([torch.full((len(features), 1), constant).double(), features], 1)
        p = torch.softmax(x @ start, 1)
        spread = 1 - p.square().sum(1)
        values, class_basis = torch.linalg.eigh(torch.diag(p.mean(0)) - p.mT @ p / len(p))
        moments = (x * spread[:, None]).mT @ x / spread.sum().clamp(min=1e-300)
        moment_values, rows_basis = torch.linalg.eigh(moments)
        curvature = torch.outer(moment_values, values[1:])
        least = LEAST_CURVATURE * curvature.max()
        return cls(
            start=start,
            offset=offset,
            rows_basis=rows_basis,
            class_basis=class_basis[:, 1:],
            curvature=torch.where(curvature > least, curvature, 0.0),
            clip_norm=CLIP_SHARE * clip_norm,
        )

    @property
    def gradient(self) -> ClippedGradient:
        """What the next round sums."""
        return ClippedGradient(weights=self.weights, clip_norm=self.clip_norm)

    @property
    def released(self) -> Tensor:
        """(d, K) weights for the class probabilities that were asked for."""
        return self.weights + self.offset

    @property
    def weights(self) -> Tensor:
        """(d, K) W_0 + v/(v + s²/h) of the mean of the later half of all z_t − W_0."""
        if not self.targets:
            return self.start
        used = max(1, math.ceil(len(self.targets) / 2))
        mean = torch.stack(self.targets[-used:]).mean(0)
        live = self.curvature > 0
        squares = self.curvature[live] * mean[live].square()
        noise = sum(self.variances[-used:]) / used**2 / self.curvature[live]
        scale = fitted_scale(squares, noise)
        kept = torch.zeros_like(mean)
        kept[live] = scale / (scale + noise).clamp(min=torch.finfo(torch.float64).tiny)
        return self.start + self.rows_basis @ (kept * mean) @ self.class_basis.mT

    def after(self, total: Tensor, rows: int, noise_std: float) -> "Descent":
        """With one more round.

        Args:
            total: (d K,) noised sum of `gradient` over users.
            rows: n of all users in it.
            noise_std: of the noise in one entry.
        """
        shape = self.start.shape
        gradient = self.rows_basis.mT @ (total.unflatten(0, shape) / rows) @ self.class_basis
        moved = self.rows_basis.mT @ (self.weights - self.start) @ self.class_basis
        step = torch.where(self.curvature > 0, gradient / self.curvature, 0.0)
        return replace(
            self,
            targets=(*self.targets, moved - step),
            variances=(*self.variances, (noise_std / rows) ** 2),
        )
