"""Decentralised learning by ADMM: without noise, and with dual or primal perturbation.

Zhang and Zhu, Dynamic differential privacy for ADMM-based distributed classification learning.
Every node p minimises its own

    Z_p(f) = C/B_p Σ L(y f·x) + ρ/2 ‖f‖²

and agrees with its neighbours; the limit without noise is argmin Σ_p Z_p, with the regulariser once
per node. All nodes step together, and nothing but `AdmmState.sent` reaches a neighbour.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain import check
from train_distributed.privacy.float_noise import exponential_norm
from train_distributed.research.rivals.admm import calibration, solver
from train_distributed.research.rivals.admm.graph import Graph, Nodes

METHODS = ("none", "dvp", "pvp")


@dataclass(frozen=True, kw_only=True)
class AdmmSettings:
    """Method and constants of a run.

    Raises:
        ValueError: a number outside its range, an unknown method.
    """

    method: str  # "none", "dvp" (dual perturbation), "pvp" (primal perturbation)
    iterations: int  # T
    rho: float  # ρ
    eta: float  # η
    loss_weight: float = 1.0  # C
    alpha: float = float("inf")  # α, of an iteration and problem
    tolerance: float = 1e-9  # of a step's gradient norm, in units of C/B_p

    def __post_init__(self) -> None:
        check.one_of(METHODS, method=self.method)
        for name in ("iterations", "rho", "eta", "loss_weight", "tolerance"):
            check.positive(**{name: getattr(self, name)})
        check.within("(0, inf]" if self.method == "none" else "(0, inf)", alpha=self.alpha)


@dataclass(frozen=True, eq=False)
class AdmmState:
    """Variables of all nodes after an iteration."""

    iteration: int  # t, from 0
    own: Tensor  # (P, K, d) f_p; never leaves the node under primal perturbation
    noise: Tensor  # (P, K, d) e_p, what was added to `own` before it was sent
    sent: Tensor  # (P, K, d) what the neighbours saw
    dual: Tensor  # (P, K, d) λ_p

    @classmethod
    def zero(cls, nodes: Nodes) -> "AdmmState":
        """State before the first iteration."""
        zero = torch.zeros(nodes.shape, dtype=torch.float64)
        return cls(0, zero, zero, zero, zero)


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes with their rows, the graph that joins them, and the method.

    Raises:
        ValueError: nodes and graph of different sizes.
    """

    nodes: Nodes
    graph: Graph
    settings: AdmmSettings

    def __post_init__(self) -> None:
        check.equal(len(self.nodes.counts), nodes_of_graph=self.graph.nodes)

    def iterations(
        self, generator: torch.Generator | None, *, shares: Tensor | None = None
    ) -> Iterator[AdmmState]:
        """The states after iterations 1 … T, from f(0) = 0, λ(0) = 0, e(0) = 0.

        Args:
            generator: of the noise; None draws from the operating system.
            shares: (K,) > 0, problem k spends shares[k] α an iteration; None: α each.

        Raises:
            ValueError: shares that are not K positive numbers.
        """
        problems = self.nodes.shape[1]
        shares = torch.ones(problems, dtype=torch.float64) if shares is None else shares
        check.shape((problems,), shares=shares)
        check.positive(shares=float(shares.min()))
        return self._iterations(generator, self.settings.alpha * shares)

    def _iterations(self, generator: torch.Generator | None, alphas: Tensor) -> Iterator[AdmmState]:
        state = AdmmState.zero(self.nodes)
        for t in range(self.settings.iterations):
            if self.settings.method == "none":
                state = self._advance(state, anchor=state.own)
            elif self.settings.method == "dvp" or t == self.settings.iterations - 1:
                state = self.dual_step(state, alphas, generator)
            else:
                state = self.primal_step(state, alphas, generator)
            yield state

    def dual_step(
        self, state: AdmmState, alphas: Tensor, generator: torch.Generator | None
    ) -> AdmmState:
        """Algorithm 2: the dual variable is perturbed; also the last iteration of Algorithm 3.

        Everything it uses of the past has been sent: the anchors are the nodes' own *sent* values.
        `alphas` (K,) is what each problem spends.
        """
        weight, counts = self.settings.loss_weight, self.nodes.counts.tolist()
        curvature = self.settings.rho + 2 * self.settings.eta * self.graph.degrees
        zeta, phi = torch.tensor(
            [
                [calibration.dual_noise(alpha, rows, weight, q) for alpha in alphas.tolist()]
                for rows, q in zip(counts, curvature.tolist(), strict=True)
            ],
            dtype=torch.float64,
        ).permute(2, 0, 1)[..., None]
        noise = exponential_norm(self.nodes.shape, generator) / zeta
        shift = weight / (2 * self.nodes.sizes) * noise
        return self._advance(state, anchor=state.sent, shift=shift, phi=phi)

    def primal_step(
        self, state: AdmmState, alphas: Tensor, generator: torch.Generator | None
    ) -> AdmmState:
        """Algorithm 3: f_p stays at its node, f_p + e_p is sent; `alphas` (K,) is spent."""
        weight, rho = self.settings.loss_weight, self.settings.rho
        zeta = torch.tensor(
            [
                [calibration.primal_noise(alpha, rows, weight, rho) for alpha in alphas.tolist()]
                for rows in self.nodes.counts.tolist()
            ],
            dtype=torch.float64,
        )[..., None]
        noise = exponential_norm(self.nodes.shape, generator) / zeta
        return self._advance(state, anchor=state.own - state.noise, noise=noise)

    def _advance(
        self,
        state: AdmmState,
        *,
        anchor: Tensor,
        shift: Tensor | float = 0.0,
        phi: Tensor | float = 0.0,
        noise: Tensor | None = None,
    ) -> AdmmState:
        """(10) with anchors (anchor_p + sent_i)/2 and dual λ + shift, then (11)."""
        eta, graph, degrees = self.settings.eta, self.graph, self.graph.degrees[:, None, None]
        around = degrees * anchor + graph.neighbour_sum(state.sent)
        shift = torch.as_tensor(shift, dtype=torch.float64).expand(self.nodes.shape)
        own = solver.solve_step(
            self.nodes,
            loss_weight=self.settings.loss_weight,
            quadratic=self.settings.rho + phi + 2 * eta * degrees,
            linear=2 * (state.dual + shift) - eta * around,
            start=state.own,
            tolerance=self.settings.tolerance,
            parts=_parts(graph, eta, state, shift),
        )
        noise = torch.zeros_like(own) if noise is None else noise
        sent = own + noise
        dual = state.dual + eta / 2 * (degrees * sent - graph.neighbour_sum(sent))
        return AdmmState(state.iteration + 1, own, noise, sent, dual)


def _parts(graph: Graph, eta: float, state: AdmmState, shift: Tensor) -> Tensor:
    """(P, K, 1), the norms of all that a step's linear term is added up from."""
    own, noise, sent, dual, shift = (
        value.norm(dim=-1, keepdim=True)
        for value in (state.own, state.noise, state.sent, state.dual, shift)
    )
    around = graph.degrees[:, None, None] * (own + noise) + graph.neighbour_sum(sent)
    return 2 * (dual + shift) + eta * around
