"""The privacy curve as a command, in any of its three directions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Account:
    """Compute epsilon, delta or the noise multiplier of Gaussian noise from the other two."""

    epsilon: float | None = None
    """ε for one replaced record."""
    delta: float | None = None
    """δ in (0, 1)."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise divided by the sensitivity of one composition."""
    compositions: int = 1
    """Number of compositions: 1 for softmax and statistics, K for one-vs-rest heads."""

    def run(self) -> None:
        """Prints the three numbers, one of them computed.

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
        known = {name: value for name, value in given.items() if value is not None}
        solved = getattr(accounting, missing[0])(**known, compositions=self.compositions)
        for name in given:
            print(f"{name:17} {known.get(name, solved):.10g}")
        print(f"{'compositions':17} {self.compositions}")
