"""Partition of rows among users: every row belongs to exactly one user, every user has a row."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embed.hold_out import random_keys
from pretrain import check

SCHEMES = ("iid", "one-class", "dirichlet", "by-writer")
_PADDING = 1.25  # a bucket's largest user over its smallest: at most a fifth of it is padding


@dataclass(frozen=True)
class Bucket:
    """Some users of similar size, as one rectangle of row indices.

    A user with fewer rows than the widest repeats its own first row: a gather stays valid and
    shows nobody else's data. Mask the repeats by `counts`.
    """

    users: Tensor  # (u,) int64, which users
    rows: Tensor  # (u, n) int64, row indices
    counts: Tensor  # (u,) int64, how many of the n belong to the user

    @property
    def mask(self) -> Tensor:
        """(u, n) bool, true where `rows` is the user's own and not a repeat."""
        return torch.arange(self.rows.shape[1]) < self.counts[:, None]


@dataclass(frozen=True, eq=False)
class Partition:
    """User i holds rows `order[offsets[i]:offsets[i + 1]]`.

    Raises:
        ValueError: offsets that do not cut `order` into one non-empty piece per user.
    """

    order: Tensor  # (N,) int64, a permutation of the rows
    offsets: Tensor  # (users + 1,) int64, from 0 to N

    def __post_init__(self) -> None:
        counts = self.offsets.diff()
        if len(self.offsets) < 2 or self.offsets[0] != 0 or self.offsets[-1] != len(self.order):
            raise ValueError(f"offsets must run from 0 to {len(self.order)}, got {self.offsets}")
        if counts.min() < 1:
            empty = int(counts.argmin())
            raise ValueError(f"users must each hold a row, got {counts[empty]} for user {empty}")

    @property
    def users(self) -> int:
        """The number of users."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> Tensor:
        """(users,) int64, rows per user."""
        return self.offsets.diff()

    def shuffled(self, generator: torch.Generator | None = None) -> "Partition":
        """Partition of the same rows, every user's in a random order; see `one_shot.statistic`.

        A generator makes the order reproducible, for simulations; None: the operating system
        draws it.
        """
        drawn = drawn_keys((len(self.order),), generator).argsort(stable=True)
        owner = torch.arange(self.users).repeat_interleave(self.counts)[drawn]
        return Partition(self.order[drawn[owner.argsort(stable=True)]], self.offsets)

    def rows(self, user: int) -> Tensor:
        """(n,) int64, the rows of one user."""
        return self.order[self.offsets[user] : self.offsets[user + 1]]

    def buckets(self, chunk_rows: int = 65_536) -> Iterator[Bucket]:
        """Every user once, in buckets of similar size, smallest users first.

        Args:
            chunk_rows: largest number of row indices in a bucket, padding included; a single user
                with more rows is a bucket alone. Memory beyond the partition is bounded by it.

        Raises:
            ValueError: chunk_rows < 1.
        """
        check.at_least(1, chunk_rows=chunk_rows)
        return self._buckets(chunk_rows)

    def _buckets(self, chunk_rows: int) -> Iterator[Bucket]:
        sizes, users = self.counts.sort(stable=True)
        start = 0
        while start < len(users):
            similar = int(torch.searchsorted(sizes, _PADDING * sizes[start], right=True))
            stop = min(similar, start + max(1, chunk_rows // int(sizes[similar - 1])))
            counts = sizes[start:stop]
            column = torch.arange(int(counts[-1]))
            inside = torch.where(column < counts[:, None], column, 0)
            first = self.offsets[users[start:stop]]
            yield Bucket(users[start:stop], self.order[first[:, None] + inside], counts)
            start = stop


def drawn_keys(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Independent uniform int64 keys of this shape, by a generator; None: by `random_keys`."""
    if generator is not None:
        return torch.randint(2**62, shape, generator=generator)
    return torch.from_numpy(random_keys(math.prod(shape)).view(np.int64)).view(shape)


def apart(generator: torch.Generator | None) -> torch.Generator | None:
    """Generator that follows from another one's state, and leaves it as it is; None of None.

    What is drawn from either does not depend on how much is drawn from the other.
    """
    if generator is None:
        return None
    state = hashlib.sha256(generator.get_state().numpy().tobytes()).digest()
    return torch.Generator().manual_seed(int.from_bytes(state[:8]) >> 1)


def split(
    labels: Tensor,
    users: int | None,
    scheme: str = "iid",
    *,
    num_classes: int | None = None,
    sizes: Tensor | None = None,
    concentration: float | None = None,
    writers: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Partition:
    """Gives every row to exactly one user.

    iid: rows in random order; sizes differ by at most one unless `sizes` says otherwise.
    one-class: all rows of a user have one label. Every class present gets users in proportion to
        its rows (largest remainders, at least one); their sizes differ by at most one.
    dirichlet: sizes as in iid; each user draws its class proportions from Dirichlet(α · class
        frequencies) and its rows without replacement (Hsu et al. 2019). The last users take what
        the others left.
    by-writer: a user is a writer, in ascending order of the ids.

    Args:
        labels: (N,) integer in [0, num_classes).
        users: from 1 to N. by-writer: the number of distinct writers, or None.
        scheme: one of SCHEMES.
        num_classes: if given, the labels' upper bound.
        sizes: (users,) integer >= 1 with sum N; iid and dirichlet only.
        concentration: α > 0; dirichlet only, and required there. Small is far from iid.
        writers: (N,) integer ids; by-writer only, and required there.
        generator: order of the rows and of everything drawn; None keeps the given order (dirichlet
            requires one).

    Raises:
        ValueError: an argument outside its range, missing or foreign to the scheme.

    Examples:
        >>> labels = torch.tensor([0, 1, 0, 1, 0])
        >>> split(labels, 2).counts
        tensor([3, 2])
        >>> by_class = split(labels, 2, "one-class")
        >>> by_class.rows(0), by_class.rows(1)
        (tensor([0, 2, 4]), tensor([1, 3]))
    """
    check.one_of(SCHEMES, scheme=scheme)
    _check_labels(labels, num_classes)
    _check_options(scheme, sizes=sizes, concentration=concentration, writers=writers)
    check.positive(**check.drop_none(concentration=concentration))
    if scheme == "by-writer":
        assert writers is not None
        return _by_writer(labels, writers, users)
    if users is None or not 1 <= users <= len(labels):
        raise ValueError(f"users must be in [1, {len(labels)}], the number of rows, got {users}")
    shuffled = torch.arange(len(labels))
    if generator is not None:
        shuffled = torch.randperm(len(labels), generator=generator)
    if scheme == "one-class":
        return _one_class(labels, users, shuffled)
    sizes = even_sizes(len(labels), users) if sizes is None else _checked(sizes, users, len(labels))
    if scheme == "iid":
        return Partition(shuffled, _offsets(sizes))
    if generator is None:
        raise ValueError("generator must be given for scheme 'dirichlet', got None")
    assert concentration is not None
    return _dirichlet(labels, sizes, concentration, shuffled, generator)


def even_sizes(rows: int, users: int) -> Tensor:
    """(users,) int64 with sum `rows`; the first `rows % users` users hold one more."""
    return rows // users + (torch.arange(users) < rows % users).long()


def _one_class(labels: Tensor, users: int, shuffled: Tensor) -> Partition:
    classes, rows_per_class = labels.unique(return_counts=True)
    if users < len(classes):
        raise ValueError(f"users must be >= {len(classes)}, one per class present, got {users}")
    extra = (rows_per_class - 1).double() / max(1, int((rows_per_class - 1).sum()))
    users_per_class = 1 + _apportion(users - len(classes), extra.numpy())
    sizes = [
        even_sizes(int(rows), int(count))
        for rows, count in zip(rows_per_class, users_per_class, strict=True)
    ]
    by_class = labels[shuffled].argsort(stable=True)
    return Partition(shuffled[by_class], _offsets(torch.cat(sizes)))


def _by_writer(labels: Tensor, writers: Tensor, users: int | None) -> Partition:
    check.shape(tuple(labels.shape), writers=writers)
    ids, counts = writers.unique(return_counts=True)
    if users is not None and users != len(ids):
        raise ValueError(f"users must be {len(ids)}, the number of writers, or None, got {users}")
    return Partition(writers.argsort(stable=True), _offsets(counts))


def _dirichlet(
    labels: Tensor,
    sizes: Tensor,
    concentration: float,
    shuffled: Tensor,
    generator: torch.Generator,
) -> Partition:
    _, dense, counts = labels.unique(return_inverse=True, return_counts=True)
    rows = shuffled[dense[shuffled].argsort(stable=True)]  # class after class
    left = counts.numpy().copy()
    next_row = np.concatenate([[0], left.cumsum()[:-1]])
    rng = _numpy_generator(generator)
    shares = rng.dirichlet(concentration * left / left.sum(), size=len(sizes))
    order = np.empty(len(labels), dtype=np.int64)
    filled = 0
    for share, size in zip(shares, sizes.tolist(), strict=True):
        for k, take in enumerate(_draw(size, share, left, rng)):
            order[filled : filled + take] = rows[next_row[k] : next_row[k] + take]
            filled += take
            next_row[k] += take
            left[k] -= take
    return Partition(torch.from_numpy(order), _offsets(sizes))


def _draw(size: int, share: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(K,) int64 <= left with sum `size`: multinomial by `share`, what is short drawn again."""
    taken = np.zeros_like(left)
    while (short := size - taken.sum()) > 0:
        open_share = np.where(taken < left, share, 0.0)
        if not open_share.sum() > 0:  # nothing it wants is left: as the rest is distributed
            open_share = (left - taken).astype(float)
        drawn = rng.multinomial(short, open_share / open_share.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def _apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """(n,) int64 with sum `total`, near total · shares: largest remainders."""
    exact = total * shares
    whole = np.floor(exact).astype(np.int64)
    remainder = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[remainder] += 1
    return whole


def _offsets(sizes: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.long().cumsum(0)])


def _numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """NumPy has the Dirichlet and multinomial draws that torch has only for the global state."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))


def _check_labels(labels: Tensor, num_classes: int | None) -> None:
    if labels.ndim != 1 or len(labels) == 0 or labels.is_floating_point():
        raise ValueError(
            f"labels must be a non-empty integer vector, got {labels.dtype} {tuple(labels.shape)}"
        )
    upper = int(labels.max()) + 1 if num_classes is None else num_classes
    outside = labels[(labels < 0) | (labels >= upper)]
    if len(outside):
        raise ValueError(f"labels must be in [0, {upper}), got {int(outside[0])}")


def _check_options(scheme: str, **options: object) -> None:
    uses = {
        "sizes": ("iid", "dirichlet"),
        "concentration": ("dirichlet",),
        "writers": ("by-writer",),
    }
    for name, value in options.items():
        if value is not None and scheme not in uses[name]:
            raise ValueError(f"{name} must be None for scheme {scheme!r}, got {value}")
        if value is None and name != "sizes" and scheme in uses[name]:
            raise ValueError(f"{name} must be given for scheme {scheme!r}, got None")


def _checked(sizes: Tensor, users: int, rows: int) -> Tensor:
    if sizes.shape != (users,) or sizes.is_floating_point():
        raise ValueError(f"sizes must be {users} integers, got {sizes.dtype} {tuple(sizes.shape)}")
    if int(sizes.sum()) != rows:
        raise ValueError(f"sizes must sum to the {rows} rows, got {int(sizes.sum())}")
    return sizes
