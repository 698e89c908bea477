"""Parties of a new federation: from their files, a folder, a table, or standard input.

Users of protocol `shares` go to the roll one after another, so that memory does not grow with them.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pretrain import check
from pretrain.cli.waiting import Waiting
from train_distributed.federation.documents.federation import SERVERS
from train_distributed.federation.documents.party import SUFFIX, Party
from train_distributed.secure_sum.roll import Roll, User

STANDARD_INPUT, TABLE = Path("-"), ".csv"
COLUMNS = Party.__struct_fields__  # of a table, in any order


def parties_of(paths: Sequence[Path]) -> Iterator[tuple[Path, Party]]:
    """Parties in the order given, and where each comes from.

    Args:
        paths: party files, folders of them, tables in CSV with the fields of a party file as
            columns, or "-" for such a table on standard input.

    Raises:
        ValueError: a bad file or line, which is named.
    """
    for path in paths:
        if path.is_dir():
            for each in sorted(path.glob(f"*{SUFFIX}")):
                yield each, Party.load(each)
        elif path == STANDARD_INPUT:
            with Waiting("a table of parties on standard input", "its end has not come"):
                yield from _of_table(sys.stdin, Path("standard input"))
        elif path.suffix == TABLE:
            with path.open(newline="", encoding="utf-8") as lines:
                yield from _of_table(lines, path)
        else:
            yield path, Party.load(path)


def listed(paths: Sequence[Path]) -> tuple[list[Party], list[Party]]:
    """Users and computation servers of protocol `secagg`, in the order given.

    Raises:
        ValueError: a bad file, two that share a key or a name, or a server.
    """
    if len(set(paths)) != len(paths):
        raise ValueError("parties must be given once each, got a file twice")
    parties = list(parties_of(paths))
    for what in ("verifying", "sealing", "name"):
        first: dict[str, Path] = {}
        for path, party in parties:
            other = first.setdefault(getattr(party, what), path)
            if other != path:
                kind = what if what == "name" else f"{what} key"
                raise ValueError(
                    f"every party must have a {kind} of its own, {other} and {path} share one"
                )
    users = [party for _, party in parties if party.role == "user"]
    servers = [party for _, party in parties if party.role == "server"]
    _check_counts("secagg", len(users), servers)
    return users, servers


def enrolled(paths: Sequence[Path], file: Path) -> tuple[Roll, list[Party]]:
    """Roll of the users of protocol `shares`, written to a new file, and the computation servers.

    Raises:
        ValueError: a bad file or line, two users that share a key or a name, or not one server.
    """
    servers, count = list[Party](), 0
    with file.open("xb") as roll:
        for _, party in parties_of(paths):
            if party.role == "server":
                servers.append(party)
                _check_counts("shares", 1, servers[:2])
                continue
            roll.write(User(bytes.fromhex(party.verifying), party.rows, party.name).line)
            count += 1
    _check_counts("shares", count, servers)
    roll, (server,) = Roll.read(file), servers
    for what in ("key", "name"):
        roll.check_distinct(what)
    if roll.find(bytes.fromhex(server.verifying)) is not None or roll.has_name(server.name):
        raise ValueError(f"server {server.name} must have a key and a name of its own, shares one")
    return roll, servers


def _check_counts(protocol: str, users: int, servers: Iterable[Party]) -> None:
    check.equal(
        SERVERS[protocol] - 1,
        **{f"servers beside the operator, of {protocol},": len(list(servers))},
    )
    if not users:
        raise ValueError("parties must hold users, got none")


def _of_table(lines: Iterable[str], name: Path) -> Iterator[tuple[Path, Party]]:
    table = csv.DictReader(lines, restkey="more", strict=True)
    try:
        if sorted(table.fieldnames or ()) != sorted(COLUMNS):
            raise ValueError(f"{name} must have columns {', '.join(COLUMNS)}")
        for values in table:
            source = Path(f"{name}:{table.line_num}")
            yield source, Party.of_line(values, source)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{name}:{table.line_num} must be CSV in UTF-8, got: {error}") from error
