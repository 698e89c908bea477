"""The privacy curve as a command, in any of its three directions."""

import math
from dataclasses import dataclass
from typing import Literal

from pretrain import check


@dataclass(frozen=True)
class Account:
    """Compute epsilon, delta or the noise multiplier of Gaussian noise from the other two."""

    epsilon: float | None = None
    """ε for one replaced record."""
    delta: float | None = None
    """δ in (0, 1)."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise that is certain, divided by the sensitivity of one
    composition: of all honest users together, or of one honest server."""
    compositions: int = 1
    """Number of compositions: 1 for softmax and statistics, K for one-vs-rest heads."""

    users: int | None = None
    """Number of users; also prints whom the promise needs, and the noise of each and of the sum."""
    noise_by: Literal["users", "servers"] = "users"
    """Who adds the noise, with --users: every user a share, or each of two servers all of it."""
    honest_fraction: float | None = None
    """Share of honest users, where users add the noise (default: 0.5, for a single user 1)."""

    def run(self) -> dict[str, float]:
        """Prints the three numbers, one of them computed; with `users`, the noise of each party.

        Raises:
            ValueError: not exactly two are given, or one is out of range.
        """
        from train_distributed import accounting

        given = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
        }
        missing = [name for name, value in given.items() if value is None]
        if len(missing) != 1:
            raise ValueError(
                "exactly two of epsilon, delta, noise_multiplier must be given, "
                f"got {3 - len(missing)}"
            )
        known = {name: float(value) for name, value in given.items() if value is not None}
        solved = getattr(accounting, missing[0])(**known, compositions=self.compositions)
        numbers = known | {missing[0]: float(solved)}
        parties = self._parties(numbers)  # refused before anything is printed
        for name in given:
            print(f"{name:17} {numbers[name]:.10g}")
        print(f"{'compositions':17} {self.compositions}")
        for line in parties:
            print(line)
        return numbers

    def _parties(self, numbers: dict[str, float]) -> list[str]:
        """Lines on whom the promise needs, and the noise of each and of the sum."""
        if self.users is None:
            check.not_set("without users", honest_fraction=self.honest_fraction)
            return []
        from train_distributed.privacy.promise import Privacy

        check.at_least(1, users=self.users)
        promise = Privacy(
            numbers["epsilon"], numbers["delta"], self.honest_fraction, noise_by=self.noise_by
        )
        promise.validate()
        honest = promise.certain_shares(self.users)
        each = numbers["noise_multiplier"] / math.sqrt(honest)
        adders = promise.noise_shares(self.users)
        return [
            f"{'holds if':17} {honest} of {adders} {self.noise_by} are honest",
            f"{'noise of each':17} {each:.10g} times the sensitivity",
            f"{'noise in the sum':17} {each * math.sqrt(adders):.10g} times the sensitivity",
        ]
