"""Connections to a server: their limits, and which one is closed where there are too many.

A line is a stranger's until a registered key is proven on it. Strangers have places of their own;
where these are full, the network with the most of them loses the line that was used least recently.
Whoever has a registered key needs a stranger's place only as long as a handshake and a header take,
and then has places that no stranger can fill.
"""

import ipaddress
from collections.abc import Iterator
from typing import Protocol


class Line(Protocol):
    """One connection."""

    def leave(self, why: str) -> None:
        """Ends it, at whatever stage it is."""
        ...


class Places:
    """The lines of strangers, by network, and those of every proven key.

    Args:
        strangers: most lines without a proven key, of all networks together.
        of_a_key: most lines of one key.
    """

    def __init__(self, strangers: int, of_a_key: int = 0) -> None:
        self._most, self._most_of_key = strangers, of_a_key
        self._groups: dict[str | bytes, dict[Line, None]] = {}  # those used least recently first
        self._group: dict[Line, str | bytes] = {}  # network of a stranger, or proven key
        self._strangers = 0

    def __len__(self) -> int:
        return len(self._group)

    def __iter__(self) -> Iterator[Line]:
        return iter([*self._group])

    def enter(self, line: Line, host: str) -> None:
        """A new line, from an IP address; another one may have to leave for it."""
        self._join(line, network(host))
        if self._strangers > self._most:
            self.make_room()

    def make_room(self) -> None:
        """A stranger leaves, the one that waits for longest in the network with most of them."""
        crowds = (lines for group, lines in self._groups.items() if isinstance(group, str))
        if crowd := max(crowds, key=len, default=None):
            self._leaves(crowd)

    def used(self, line: Line) -> None:
        """Notes that something was done on a line."""
        if (group := self._group.get(line)) is not None:
            self._groups[group][line] = self._groups[group].pop(line)

    def prove(self, line: Line, key: bytes) -> None:
        """The line is that of a registered key; beyond its places the oldest of them leaves."""
        if not isinstance(self._group.get(line), str):
            return  # it has left, or was proven before
        self.gone(line)
        self._join(line, key)
        if len(self._groups[key]) > self._most_of_key:
            self._leaves(self._groups[key])

    def gone(self, line: Line) -> None:
        """The line has ended."""
        if (group := self._group.pop(line, None)) is not None:
            self._strangers -= isinstance(group, str)
            del self._groups[group][line]
            if not self._groups[group]:
                del self._groups[group]

    def _join(self, line: Line, group: str | bytes) -> None:
        self._groups.setdefault(group, {})[line] = None
        self._group[line] = group
        self._strangers += isinstance(group, str)

    def _leaves(self, lines: dict[Line, None]) -> None:
        first = next(iter(lines))
        self.gone(first)
        first.leave("crowded")


def network(host: str) -> str:
    """An IPv4 address, or the /64 that somebody with one IPv6 address has all of; else the host.

    Examples:
        >>> network("192.0.2.7"), network("2001:db8:1:2:3::4"), network("::ffff:192.0.2.7")
        ('192.0.2.7', '2001:db8:1:2::', '192.0.2.7')
    """
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))
