"""Protocols of a submission and of a method that is built on it."""

from typing import Protocol

from torch import Tensor

from train_distributed.one_shot.users import Chunk
from train_distributed.privacy.guarantee import Reach


class Submission(Reach, Protocol):
    """A vector of numbers that every user submits, and how far a record moves it."""

    @property
    def dimension(self) -> int:
        """D, the length of a submission."""
        ...

    @property
    def scale(self) -> float | Tensor:
        """Factor, or (D,) factors, under which the submission's sensitivity is stated."""
        ...

    @property
    def grid_powers(self) -> Tensor | None:
        """(D,) int: entries are multiples of g**power if rows are multiples of g.

        None: they are not, whatever the rows.
        """
        ...

    def entry_bound(self, n: int) -> float:
        """Largest |entry| of the scaled submission of a user with n rows."""
        ...


class Submitted(Submission, Protocol):
    """What every user submits, computed from its rows."""

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, D) float64 submissions, unscaled, without noise."""
        ...


class Method(Submitted, Protocol):
    """What every user submits, how far a record moves it, what the sum is good for."""

    @property
    def num_classes(self) -> int:
        """The number K of classes, which is public."""
        ...

    def validate(self) -> None:
        """Raises ValueError for a setting out of range."""
        ...

    def classifier(self, total: Tensor, rows: int, noise_std: float) -> Tensor:
        """(d, K) weights from the noised, unscaled sum; `noise_std` per entry of the scaled one."""
        ...
