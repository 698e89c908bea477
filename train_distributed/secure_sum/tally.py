"""The sum from the openings of replicated servers: whose reports differ, and which are right."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    ProtocolError,
    ServersDisagree,
    SetMismatch,
    WrongSender,
)
from train_distributed.secure_sum.opening import DIGEST_BYTES, Opened
from train_distributed.secure_sum.parties import EVERYONE, name_of
from train_distributed.secure_sum.prg import WORD
from train_distributed.secure_sum.replicated import Replicated
from train_distributed.secure_sum.wire import Kind, bytes_to_words, read

Reports = dict[int, dict[int, bytes]]  # server -> part -> its sum, as it travels


@dataclass(frozen=True)
class Tally:
    """Sum that a session reveals, and what was wrong with the servers."""

    opened: Opened
    faults: dict[int, str]  # server -> why its opening does not count
    unchecked: tuple[int, ...]  # parts that one server alone has reported


def tally(setup: Replicated, commit: bytes, openings: Mapping[int, bytes]) -> Tally:
    """Adds the parts' sums, each as the servers report it that agree; anyone may.

    `commit` is a server's COMMIT, which names the users. Their sum is exact if at most one server
    lies or is lost.

    Raises:
        OutOfOrder: fewer than S-1 servers have opened this set.
        ServersDisagree: reports differ, and it is not clear which server lies; names them.
        ProtocolError: the COMMIT is not valid.
    """
    named = read(setup.session, commit, EVERYONE, {Kind.COMMIT: setup.commit_bytes})
    named.check_server(setup.session)
    reports, faults = _reports(setup, openings, named.payload)
    suspects = _suspects(reports)
    if suspects:
        if len(suspects) > 1:
            raise ServersDisagree(
                f"{_names(suspects)} must report the same sums of parts {_disputed(reports)}, "
                f"one of them lies"
            )
        (liar,) = suspects
        faults[liar] = f"reports wrong sums of parts {_disputed(reports)}"
        del reports[liar]
    total = np.zeros(setup.session.dimension, np.uint64)
    holders = {part: _sums(reports, part) for part in range(len(setup.servers))}
    for sums in holders.values():
        total += bytes_to_words(next(iter(sums.values())), setup.session.dimension)
    unchecked = tuple(part for part, sums in holders.items() if len(sums) == 1)
    return Tally(Opened(total, setup.users_of(named.payload)), faults, unchecked)


def _reports(
    setup: Replicated, openings: Mapping[int, bytes], commit: bytes
) -> tuple[Reports, dict[int, str]]:
    """Reports of the servers, and why the others do not count.

    Raises:
        OutOfOrder: more than one does not.
    """
    reports: Reports = {}
    faults: dict[int, str] = {}
    for server in setup.servers:
        try:
            if server not in openings:
                raise OutOfOrder("sent no OPENING")
            reports[server] = _report(setup, server, openings[server], commit)
        except ProtocolError as error:
            faults[server] = f"{type(error).__name__}: {error}"
    if len(faults) > 1:
        words = "; ".join(f"{name_of(server)}: {why}" for server, why in faults.items())
        raise OutOfOrder(f"all servers but one must open, got {words}")
    return reports, faults


def _report(setup: Replicated, server: int, opening: bytes, commit: bytes) -> dict[int, bytes]:
    envelope = read(setup.session, opening, EVERYONE, {Kind.OPENING: setup.opening_bytes})
    if envelope.sender != server:
        raise WrongSender(f"OPENING must come from server {server}, got {envelope.sender}")
    payload = envelope.payload
    if len(payload) != setup.opening_bytes:
        raise MalformedMessage(f"OPENING must be {setup.opening_bytes} bytes, got {len(payload)}")
    if payload[:DIGEST_BYTES] != hashlib.sha256(commit).digest():
        raise SetMismatch("OPENING must be of the committed set, got another")
    size = WORD.itemsize * setup.session.dimension
    starts = range(DIGEST_BYTES, len(payload), size)
    return {
        part: payload[start : start + size]
        for part, start in zip(setup.parts_of(server), starts, strict=True)
    }


def _sums(reports: Reports, part: int) -> dict[int, bytes]:
    return {server: sums[part] for server, sums in reports.items() if part in sums}


def _disputed(reports: Reports) -> list[int]:
    """Parts of which there are different reports."""
    parts = {part for sums in reports.values() for part in sums}
    return [part for part in sorted(parts) if len(set(_sums(reports, part).values())) > 1]


def _suspects(reports: Reports) -> set[int]:
    """Servers among which the liar is; one of them is it if there is one liar.

    Raises:
        ServersDisagree: no single liar explains the reports.
    """
    disputed = _disputed(reports)
    if not disputed:
        return set()
    lone = {s for s in reports if not _disputed({o: r for o, r in reports.items() if o != s})}
    if not lone:
        names = _names({server for part in disputed for server in _sums(reports, part)})
        raise ServersDisagree(f"{names} must report the same sums, several of them lie")
    return lone


def _names(servers: set[int]) -> str:
    return ", ".join(map(name_of, sorted(servers)))
