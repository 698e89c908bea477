"""Connections to the server: their limits, and which one is closed where there are too many.

A line is a stranger's until a registered key is proven on it. Strangers have few seconds and places
of their own; where these are full, the address with the most of them loses its oldest. Whoever has
a registered key needs a stranger's place only as long as a handshake and a header take, and then
has places that no stranger can fill.
"""

import ipaddress
from collections import Counter
from typing import Protocol


class Line(Protocol):
    """One connection."""

    def leave(self) -> None:
        """Ends it, at whatever stage it is."""
        ...


class Places:
    """The lines of strangers, oldest first, and those of every proven key."""

    def __init__(self, strangers: int, of_a_key: int) -> None:
        """No line is there yet.

        Args:
            strangers: most lines without a proven key, of all addresses together.
            of_a_key: most lines of one key.
        """
        self._most, self._most_of_key = strangers, of_a_key
        self._strangers: dict[Line, str] = {}  # -> its network
        self._proven: dict[bytes, dict[Line, None]] = {}
        self._key: dict[Line, bytes] = {}

    def enter(self, line: Line, address: str) -> None:
        """A new line, from an IP address; another one may have to leave for it."""
        self._strangers[line] = network(address)
        if len(self._strangers) > self._most:
            self.make_room()

    def make_room(self) -> None:
        """The oldest stranger leaves, of those from the network with the most of them."""
        if self._strangers:
            ((crowd, _),) = Counter(self._strangers.values()).most_common(1)
            oldest = next(line for line, of in self._strangers.items() if of == crowd)
            self.gone(oldest)
            oldest.leave()

    def prove(self, line: Line, key: bytes) -> None:
        """The line is that of a registered key; beyond its places the oldest of them leaves."""
        if self._strangers.pop(line, None) is None:
            return  # it has left, or was proven before
        lines = self._proven.setdefault(key, {})
        lines[line], self._key[line] = None, key
        if len(lines) > self._most_of_key:
            oldest = next(iter(lines))
            self.gone(oldest)
            oldest.leave()

    def gone(self, line: Line) -> None:
        """The line has ended."""
        self._strangers.pop(line, None)
        if (key := self._key.pop(line, None)) is not None:
            del self._proven[key][line]


def network(address: str) -> str:
    """An IPv4 address, or the /64 that somebody with one IPv6 address has all of.

    Examples:
        >>> network("192.0.2.7"), network("2001:db8:1:2:3::4"), network("::ffff:192.0.2.7")
        ('192.0.2.7', '2001:db8:1:2::', '192.0.2.7')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))
