"""Decentralised learning by ADMM: without noise, and with dual or primal perturbation.

Zhang and Zhu, Dynamic differential privacy for ADMM-based distributed classification learning.
Every node p minimises its own

    Z_p(f) = C/B_p Σ L(y f·x) + ρ/2 ‖f‖²

and agrees with its neighbours; the limit without noise is argmin Σ_p Z_p, with the regulariser once
per node. All nodes step together, and nothing but `State.sent` reaches a neighbour.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from train_distributed.privacy.float_noise import exponential_norm
from train_distributed.research.admm import calibration, solver
from train_distributed.research.admm.graph import Graph
from train_distributed.research.admm.nodes import Nodes

METHODS = ("none", "dvp", "pvp")


@dataclass(frozen=True, kw_only=True)
class AdmmSettings:
    """One run.

    Raises:
        ValueError: a number outside its range, an unknown method.
    """

    method: str  # "none", "dvp" (dual perturbation), "pvp" (primal perturbation)
    iterations: int  # T
    rho: float  # ρ
    eta: float  # η
    loss_weight: float = 1.0  # C
    alpha: float | tuple[float, ...] = float("inf")  # α(t), of an iteration and problem
    tolerance: float = 1e-9  # of a step's gradient norm, in units of C/B_p

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name in ("iterations", "rho", "eta", "loss_weight", "tolerance"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and > 0, got {getattr(self, name)}")
        if len(self.alphas) != self.iterations:
            raise ValueError(
                f"alpha must be a number or one per iteration ({self.iterations}), "
                f"got {len(self.alphas)}"
            )
        for alpha in self.alphas:
            if not alpha > 0:
                raise ValueError(f"alpha must be > 0, got {alpha}")
            if self.method != "none" and alpha == float("inf"):
                raise ValueError(f"alpha must be finite for method {self.method!r}, got inf")

    @property
    def alphas(self) -> tuple[float, ...]:
        """(T,), α(t)."""
        if isinstance(self.alpha, tuple):
            return self.alpha
        return (float(self.alpha),) * self.iterations


@dataclass(frozen=True, eq=False)
class State:
    """Where all nodes are after an iteration."""

    iteration: int  # t, from 0
    own: Tensor  # (P, K, d) f_p; never leaves the node under primal perturbation
    noise: Tensor  # (P, K, d) e_p, what was added to `own` before it was sent
    sent: Tensor  # (P, K, d) what the neighbours saw
    dual: Tensor  # (P, K, d) λ_p


def iterations(
    nodes: Nodes,
    graph: Graph,
    settings: AdmmSettings,
    generator: torch.Generator | None,
    *,
    shares: Tensor | None = None,
) -> Iterator[State]:
    """The states after iterations 1 … T, from f(0) = 0, λ(0) = 0, e(0) = 0.

    Args:
        nodes: the rows, one node per node of the graph.
        graph: who talks to whom.
        settings: the method and its constants.
        generator: of the noise; None draws from the operating system.
        shares: (K,) > 0, problem k spends shares[k] α(t); None: α(t) each.

    Raises:
        ValueError: nodes and graph of different sizes, shares that are not K positive numbers.
    """
    if len(nodes.counts) != graph.nodes:
        raise ValueError(f"graph must have {len(nodes.counts)} nodes, got {graph.nodes}")
    shares = torch.ones(nodes.shape[1], dtype=torch.float64) if shares is None else shares
    if shares.shape != (nodes.shape[1],) or not bool((shares > 0).all()):
        raise ValueError(f"shares must be {nodes.shape[1]} numbers > 0, got {shares.tolist()}")
    return _iterations(nodes, graph, settings, generator, shares)


def _iterations(
    nodes: Nodes,
    graph: Graph,
    settings: AdmmSettings,
    generator: torch.Generator | None,
    shares: Tensor,
) -> Iterator[State]:
    zero = torch.zeros(nodes.shape, dtype=torch.float64)
    state = State(0, zero, zero, zero, zero)
    for alpha in settings.alphas:
        last = state.iteration == settings.iterations - 1
        if settings.method == "none":
            state = _advance(nodes, graph, settings, state, anchor=state.own)
        elif settings.method == "dvp" or last:
            state = dual_step(nodes, graph, settings, state, alpha * shares, generator)
        else:
            state = primal_step(nodes, graph, settings, state, alpha * shares, generator)
        yield state


def dual_step(
    nodes: Nodes,
    graph: Graph,
    settings: AdmmSettings,
    state: State,
    alphas: Tensor,
    generator: torch.Generator | None,
) -> State:
    """Algorithm 2: the dual variable is perturbed; also the last iteration of Algorithm 3.

    Everything it uses of the past has been sent: the anchors are the nodes' own *sent* values.
    `alphas` (K,) is what each problem spends.
    """
    curvature = settings.rho + 2 * settings.eta * graph.degrees
    zeta, phi = torch.tensor(
        [
            [
                calibration.dual_noise(alpha, int(rows), settings.loss_weight, float(q))
                for alpha in alphas.tolist()
            ]
            for rows, q in zip(nodes.counts, curvature, strict=True)
        ],
        dtype=torch.float64,
    ).permute(2, 0, 1)[..., None]
    noise = exponential_norm(nodes.shape, generator) / zeta
    shift = settings.loss_weight / (2 * nodes.sizes) * noise
    return _advance(nodes, graph, settings, state, anchor=state.sent, shift=shift, phi=phi)


def primal_step(
    nodes: Nodes,
    graph: Graph,
    settings: AdmmSettings,
    state: State,
    alphas: Tensor,
    generator: torch.Generator | None,
) -> State:
    """Algorithm 3: f_p stays at its node, f_p + e_p is sent; `alphas` (K,) is spent."""
    zeta = torch.tensor(
        [
            [
                calibration.primal_noise(alpha, int(rows), settings.loss_weight, settings.rho)
                for alpha in alphas.tolist()
            ]
            for rows in nodes.counts
        ],
        dtype=torch.float64,
    )[..., None]
    noise = exponential_norm(nodes.shape, generator) / zeta
    return _advance(nodes, graph, settings, state, anchor=state.own - state.noise, noise=noise)


def _advance(
    nodes: Nodes,
    graph: Graph,
    settings: AdmmSettings,
    state: State,
    *,
    anchor: Tensor,
    shift: Tensor | float = 0.0,
    phi: Tensor | float = 0.0,
    noise: Tensor | None = None,
) -> State:
    """(10) with anchors (anchor_p + sent_i)/2 and dual λ + shift, and (11) with what is sent."""
    eta, degrees = settings.eta, graph.degrees[:, None, None]
    around = degrees * anchor + graph.neighbour_sum(state.sent)
    shift = torch.as_tensor(shift, dtype=torch.float64).expand(nodes.shape)
    own = solver.solve_step(
        nodes,
        loss_weight=settings.loss_weight,
        quadratic=settings.rho + phi + 2 * eta * degrees,
        linear=2 * (state.dual + shift) - eta * around,
        start=state.own,
        tolerance=settings.tolerance,
        parts=_parts(graph, eta, state, shift),
    )
    noise = torch.zeros_like(own) if noise is None else noise
    sent = own + noise
    dual = state.dual + eta / 2 * (degrees * sent - graph.neighbour_sum(sent))
    return State(state.iteration + 1, own, noise, sent, dual)


def _parts(graph: Graph, eta: float, state: State, shift: Tensor) -> Tensor:
    """(P, K, 1), the norms of all that a step's linear term is added up from."""
    own, noise, sent, dual, shift = (
        value.norm(dim=-1, keepdim=True)
        for value in (state.own, state.noise, state.sent, state.dual, shift)
    )
    around = graph.degrees[:, None, None] * (own + noise) + graph.neighbour_sum(sent)
    return 2 * (dual + shift) + eta * around
