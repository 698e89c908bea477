"""Users that `simulate`, `rival` and `evaluate` make up, or those that the set names."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain import check
from train_distributed.commands.choices import Noise, Scheme

if TYPE_CHECKING:
    import torch

    from embed import EmbeddingSet
    from train_distributed.partition import Partition


@dataclass(frozen=True, kw_only=True)
class SimulatedUsers:
    """Who holds which rows, and what noise is added."""

    users: int | None = None
    """Number of users that are made up (default: those that the set names)."""
    scheme: Scheme | None = None
    """Which rows a user holds: `iid` (default with --users), `one-class` or
    `dirichlet`; `own`: as the set says."""
    concentration: float | None = None
    """Concentration of dirichlet: small values give users few classes."""
    noise: Noise | None = None
    """`float` (default) for simulations, `discrete` as it is released."""

    def simulated(
        self, rows: "EmbeddingSet", part: int, generator: "torch.Generator | None"
    ) -> "Partition | None":
        """Users of the rows of a split; None: the set's own. Raises as `simulated_partition`."""
        usual = "own" if self.users is None else "iid"
        scheme = self.scheme or usual
        return simulated_partition(
            rows, part, scheme, self.users, generator, concentration=self.concentration
        )


def simulated_partition(
    rows: "EmbeddingSet",
    part: int,
    scheme: Scheme,
    users: int | None,
    generator: "torch.Generator | None",
    *,
    concentration: float | None = None,
) -> "Partition | None":
    """Simulated partition of the rows of split `part`; None: users are the set's own.

    Args:
        rows: embedding set.
        part: its split.
        scheme: of the partition; `own`: the set's.
        users: number of simulated users; 1 for a set without users.
        generator: makes the partition reproducible; None: the operating system seeds one.
        concentration: of the dirichlet partition.

    Raises:
        ValueError: options that do not fit the set or the scheme.
    """
    import torch

    from train_distributed.partition import split

    if scheme == "own":
        if rows.users is not None or concentration is not None:
            check.not_set("for scheme 'own'", users=users, concentration=concentration)
        elif users != 1:
            raise ValueError(
                "users must be named by the embedding set, or be 1 for one user's own rows "
                f"(--users 1), or be simulated; got {users or 'none'} for {rows.directory}"
            )
        return None
    labels = torch.from_numpy(rows.labels[rows.split == part])
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return split(labels, users, scheme, concentration=concentration, generator=generator)
