"""Codes of classes: class sums in other coordinates, of which one record moves less."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassCode:
    """Class sums S (d, K) as their sum over the classes, of weight β, and K − 1 differences.

    A record (u, y), ‖u‖ ≤ r, adds u a_yᵀ with a_y = (e_y − 1/K) + (β/K) 1, and c₀ e_y to the
    counts; with second moments of weight α also α uuᵀ. ⟨a_y, a_y⟩ = A = 1 − (1 − β²)/K, and
    ⟨a_y, a_z⟩ = A − 1 = −B for z ≠ y.

    **Theorem.** When one record is replaced, the sum moves by at most √max(S, D) in L2, where

        S = 4 A r² if α²r² ≤ A/2, else 2 (α r² + A/(2α))²,
        D = 2 r² + 2 c₀² if 2 α²r² ≤ B, else 2 (A r² + c₀² + α²r⁴ + B²/(4α²)),

    and for two features or more some pair of records moves it so far.

    **Proof.** Let t = ⟨u, v⟩ for records (u, y), (v, z). The squared distance is A(‖u‖² + ‖v‖²) −
    2⟨a_y, a_z⟩t + 2c₀²[y ≠ z] + α²(‖u‖⁴ + ‖v‖⁴ − 2t²). At a given t it grows with both lengths,
    and |t| ≤ ‖u‖‖v‖ ≤ r² leaves any t possible at full length, so let both be r. In t it is then
    a concave parabola, or a line where α = 0, on [−r², r²]. For y = z it is 2A(r² − t) +
    2α²(r⁴ − t²), largest at t = −A/(2α²), or at −r² if that lies below: S. For y ≠ z it is
    2Ar² + 2Bt + 2c₀² + 2α²(r⁴ − t²), largest at t = B/(2α²), or at r² if that lies above, where
    2Ar² + 2Br² = 2r²: D. ∎

    β = 1 is plain: a_y = e_y, and the sums stay as they are. With less, the noise of a difference
    of classes falls as √A, that of the sum over all classes, which public data tell much of, grows
    as √A/β. The coordinates are whole multiples of class sums (Helmert's contrasts), so sums of
    rows on a grid stay exact; `scale` makes them orthonormal, but for β.
    """

    num_classes: int  # K
    shared: float = 1.0  # β in (0, 1]

    @property
    def own(self) -> float:
        """A, the squared length of a class's code."""
        return 1 - self.apart

    @property
    def apart(self) -> float:
        """B = (1 − β²)/K, less the product of the codes of two classes."""
        return (1 - self.shared**2) / self.num_classes

    def scale(self) -> Tensor:
        """(K,) factors of the coordinates, float64; those of counts leave β out."""
        if self.shared == 1:
            return torch.ones(self.num_classes, dtype=torch.float64)
        return self._squares().rsqrt()

    def encode(self, sums: Tensor) -> Tensor:
        """(..., K) coordinates of (..., K) class sums, whole multiples: Σ S_j, Σ_{j<k} S_j − k S_k.

        Examples:
            >>> ClassCode(3, 0.5).encode(torch.tensor([5, 1, 2]))
            tensor([8, 4, 2])
            >>> ClassCode(3).encode(torch.tensor([5, 1, 2]))
            tensor([5, 1, 2])
        """
        if self.shared == 1:
            return sums
        before = sums.cumsum(-1)
        places = torch.arange(1, self.num_classes, device=sums.device)
        differences = before[..., :-1] - places * sums[..., 1:]
        return torch.cat([before[..., -1:], differences], -1)

    def decode(self, coordinates: Tensor) -> Tensor:
        """(..., K) class sums of (..., K) float64 coordinates."""
        if self.shared == 1:
            return coordinates
        basis = self.encode(torch.eye(self.num_classes, dtype=torch.float64))  # (class, coordinate)
        return (coordinates / self._squares()) @ basis.T

    def sensitivity(self, reach: float, constant: float, alpha: float = 0.0) -> float:
        """√max(S, D) for features of length r, `constant` c₀, and moments of weight α."""
        other = math.hypot(self._of_two(reach, alpha), constant)
        return max(self._of_one(reach, alpha), math.sqrt(2) * other)

    def norm(self, reach: float, constant: float, alpha: float = 0.0) -> float:
        """Largest L2 norm of what a record adds, √(A r² + c₀² + α²r⁴)."""
        return math.hypot(math.sqrt(self.own) * reach, constant, alpha * reach**2)

    def free_constant(self, reach: float, alpha: float = 0.0) -> float:
        """The largest c₀ with which D ≤ S: then counts cost nothing."""
        same, other = self._of_one(reach, alpha) / math.sqrt(2), self._of_two(reach, alpha)
        return math.sqrt(max(0.0, same - other)) * math.sqrt(same + other)

    def _of_one(self, reach: float, alpha: float) -> float:
        """√S, of two records of one class."""
        if alpha * reach <= math.sqrt(self.own / 2):
            return 2 * math.sqrt(self.own) * reach
        return math.sqrt(2) * (alpha * reach**2 + self.own / (2 * alpha))

    def _of_two(self, reach: float, alpha: float) -> float:
        """√(D/2) of two classes, counts left out."""
        if 2 * (alpha * reach) ** 2 <= self.apart:
            return reach
        return math.hypot(self.norm(reach, 0.0, alpha), self.apart / (2 * alpha))

    def _squares(self) -> Tensor:
        """(K,) squared lengths of the coordinates' multiples of class sums."""
        places = torch.arange(self.num_classes, dtype=torch.float64)
        squares = places * (places + 1)
        squares[0] = self.num_classes
        return squares
