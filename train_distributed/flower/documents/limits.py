"""What a user takes part in at most, whatever an operator wishes: options of its commands."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A user's own limits; a federation beyond one of them is refused before anything is sent."""

    most_epsilon: float = 10.0
    """A user: epsilon of all sums together, with all that its rows and this folder gave away."""
    most_delta: float = 1e-4
    """A user: delta of all sums together, likewise."""
    least_users: int = 2
    """A user: fewest users of whom the federation may open a sum."""
    most_epsilon_alone: float = math.inf
    """A user: epsilon of all agreed sums if all other users collude with a server."""

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
