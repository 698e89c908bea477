"""Limits of a user on what it takes part in, whatever an operator asks: command options."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A user's own limits; a federation beyond one of them is refused before anything is sent."""

    most_epsilon: float = 10.0
    """A user: largest epsilon of all that its rows and this folder have given away, together with
    all agreed sums of this federation."""
    most_delta: float = 1e-4
    """A user: largest delta of the same."""
    least_users: int = 2
    """A user: smallest number of users whose sum may be opened."""
    most_epsilon_alone: float = math.inf
    """A user: largest epsilon of all agreed sums if all other users collude with a server."""

    def validate(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        for name in ("most_epsilon", "most_delta", "least_users", "most_epsilon_alone"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if not math.isfinite(self.most_epsilon):
            raise ValueError(f"most_epsilon must be finite, got {self.most_epsilon}")
