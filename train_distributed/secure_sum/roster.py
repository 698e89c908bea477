"""What the server of protocol B knows of the graph: who has whom on its list."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from train_distributed.secure_sum.errors import TooFewUsers
from train_distributed.secure_sum.secagg import Advert, SecAgg


class Roster:
    """Who has whom on its list, and who is whose partner."""

    def __init__(self, setup: SecAgg) -> None:
        self.setup = setup
        self.adverts: dict[int, Advert] = {}
        self.points: dict[int, dict[int, int]] = {}  # user -> who is on its list -> Shamir's point
        self.partners: dict[int, list[int]] = {}  # rising; of users that were told of each other
        self.sharing = frozenset[int]()  # who shared keys
        self.dealt_to: dict[int, frozenset[int]] = {}  # of those, who has the user on its list

    def add(self, user: int, advert: Advert) -> None:
        """Takes a user's advertisement."""
        self.adverts[user] = advert
        chosen = self.setup.list_of(user, advert.list_seed)
        self.points[user] = {holder: point for point, holder in enumerate(chosen, 1)}

    def connected(self, users: Iterable[int]) -> frozenset[int]:
        """The users left when those with too short lists are taken out, again and again."""
        left = frozenset(users)
        while True:
            keep = {
                u for u in left if len(left & self.points[u].keys()) >= self.setup.graph.threshold
            }
            if len(keep) == len(left):
                return left
            left = frozenset(keep)

    def check_list(self, user: int, survivors: frozenset[int]) -> None:
        """Checks that enough of a user's list survived to open its secret.

        Raises:
            TooFewUsers: fewer than the threshold.
        """
        kept, least = len(survivors & self.points[user].keys()), self.setup.graph.threshold
        if kept < least:
            raise TooFewUsers(f"survivors of user {user}'s list must be >= {least}, got {kept}")

    def pair(self, users: frozenset[int]) -> None:
        """Makes partners of all users that are on one another's list, either way."""
        partners: dict[int, set[int]] = {user: set() for user in sorted(users)}
        for user in users:
            for holder in users & self.points[user].keys():
                partners[user].add(holder)
                partners[holder].add(user)
        self.partners = {user: sorted(peers) for user, peers in partners.items()}

    def share(self, users: frozenset[int]) -> None:
        """Fixes who shared keys."""
        dealt: dict[int, list[int]] = {user: [] for user in users}
        for dealer in sorted(users):
            for holder in users & self.points[dealer].keys():
                dealt[holder].append(dealer)
        self.sharing = users
        self.dealt_to = {user: frozenset(dealers) for user, dealers in dealt.items()}


class Made(Mapping[int, bytes]):
    """Messages that are made when they are read: all at once would be many times a vector."""

    def __init__(self, users: Sequence[int], make: Callable[[int], bytes]) -> None:
        self._users, self._make = dict.fromkeys(users), make

    def __getitem__(self, user: int) -> bytes:
        if user not in self._users:
            raise KeyError(user)
        return self._make(user)

    def __iter__(self) -> Iterator[int]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)
