"""One set of users is opened per session, whatever one server and the relay try."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from train_distributed.secure_sum import errors
from train_distributed.secure_sum.graph import whole_users
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.keys import open_seal
from train_distributed.secure_sum.opening import DIGEST_BYTES
from train_distributed.secure_sum.parties import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.prg import add_stream
from train_distributed.secure_sum.replicated import ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.shares import share_context
from train_distributed.secure_sum.tally import tally
from train_distributed.secure_sum.wire import Kind, payload_of

W, D = 6, 3
LIAR = FIRST_SERVER + 2


def _two_worlds(parties, shares: dict[int, dict[int, bytes]]) -> list[bytes]:
    """The relay tells each of two honest servers that the other is lost; the liar helps both.

    Returns:
        OPENINGs of the honest servers that could be made to open: of all users, and of all but 0.
    """
    worlds = []
    honest = [s for s in parties.servers if s != LIAR]
    for server, left in zip(honest, (range(W), range(1, W)), strict=True):
        machine = parties.servers[server]
        for user in left:
            machine.receive(shares[user][server])
        held = payload_of(machine.hold())
        machine.receive(parties.sign(Kind.HOLDING, LIAR, EVERYONE, held))
        machine.settle(set(honest) - {server})
        commit = machine.commit()
        echo = parties.sign(Kind.COMMIT, LIAR, EVERYONE, payload_of(commit))
        machine.receive(echo)
        for user in parties.users:
            with contextlib.suppress(errors.AlreadyOpened):
                machine.receive(user.witness([commit, echo]))
        with contextlib.suppress(errors.OutOfOrder):
            worlds.append(machine.open())
    return worlds


def _shares(parties, sent) -> dict[int, dict[int, bytes]]:
    return {i: dict(user.submit(sent[i])) for i, user in enumerate(parties.users)}


def test_a_lying_server_and_relay_cannot_have_two_sets_opened(
    make_replicated: Callable, vectors: Callable
) -> None:
    """Users are witnesses to one set each, so only one of the two worlds can open."""
    parties = make_replicated(W, D)
    assert len(_two_worlds(parties, _shares(parties, vectors(W, D)))) == 1


def test_without_witnesses_they_can_and_see_a_users_vector(
    make_replicated: Callable, vectors: Callable
) -> None:
    """What the signatures of two of three servers would allow by themselves."""
    sent, parties = vectors(W, D), make_replicated(W, D)
    shares = _shares(parties, sent)
    for machine in parties.servers.values():
        machine._setup = replace(parties.setup, witnesses=0)
    opened = [payload_of(o)[DIGEST_BYTES:] for o in _two_worlds(parties, shares)]
    with_user, without = (np.frombuffer(o, np.uint64).reshape(2, D)[1] for o in opened)
    vector = with_user - without  # of user 0: part 2, the one that the liar lacks
    context = share_context(parties.setup.session, 0, LIAR)
    sealed = payload_of(shares[0][LIAR])[3 * DIGEST_BYTES :]
    seeds = open_seal(parties.keys[LIAR].opening, sealed, context)
    for seed in (seeds[:32], seeds[32:]):
        add_stream(vector, seed)
    assert np.array_equal(vector, sent[0])


@pytest.mark.parametrize("w", [5, 20, 100, 1001])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.4])
def test_two_sets_of_witnesses_have_more_users_in_common_than_are_corrupt(
    w: int, fraction: float, make_replicated: Callable
) -> None:
    setup = make_replicated(5, 1).setup
    users = {i: i.to_bytes(32, "big") for i in range(w)}
    setup = type(setup).agree_on(
        nonce=bytes(32),
        dimension=1,
        minimum=1,
        users=users,
        servers=setup.session.servers,
        corrupt_fraction=fraction,
    )
    corrupt = whole_users(w, fraction, "corrupt_fraction")
    assert 2 * setup.witnesses - w > corrupt >= 2 * (setup.witnesses - 1) - w
    assert setup.witnesses <= w - corrupt or fraction >= 0.4  # else the honest do not suffice


@pytest.mark.parametrize("servers", [3, 4, 5, 6])
def test_any_two_certificates_share_an_honest_server_or_need_witnesses(
    servers: int, make_replicated: Callable
) -> None:
    setup = make_replicated(5, 1, servers).setup
    counts = [n for n in range(servers + 1) if setup.agrees(n, 0)]
    assert counts == ([3] if servers == 3 else [servers - 1, servers])
    for one, two in itertools.product(counts, repeat=2):
        assert one + two - servers >= 2  # at least one of them does not lie
    assert setup.agrees(servers - 1, setup.witnesses)
    assert not setup.agrees(servers - 2, 5)


def _through(parties, sent, live: list[int]) -> dict[int, bytes]:
    parties.round(_shares(parties, sent), live)
    commits = {server: parties.servers[server].commit() for server in live}
    parties.exchange(commits)
    return commits


@pytest.mark.parametrize("servers", [3, 4])
def test_restarted_parties_take_no_step_of_a_session_again(
    servers: int, make_replicated: Callable, vectors: Callable, tmp_path: Path
) -> None:
    sent = vectors(W, D)

    def journals(party: int) -> DurableJournal:
        return DurableJournal(tmp_path / str(party))

    parties = make_replicated(W, D, servers, journals=journals)
    live = list(parties.servers)[:-1]
    commits = _through(parties, sent, live)
    words = [user.witness(list(commits.values())) for user in parties.users]
    for server in live:
        for word in words:
            parties.servers[server].receive(word)
    openings = {server: parties.servers[server].open() for server in live}
    opened = tally(parties.setup, commits[FIRST_SERVER], openings).opened
    assert np.array_equal(opened.total, sent.sum(0))

    again = ReplicatedUser(parties.setup, 0, parties.keys[0], journals(0))
    with pytest.raises(errors.AlreadyOpened, match="submit"):
        again.submit(sent[0])
    with pytest.raises(errors.AlreadyOpened, match="witness"):
        again.witness(list(commits.values()))
    with pytest.raises(errors.AlreadyOpened, match="open"):
        parties.servers[FIRST_SERVER].open()
    keys = parties.keys[FIRST_SERVER]
    reborn = ReplicaServer(parties.setup, FIRST_SERVER, keys, journals(FIRST_SERVER))
    reborn._users = dict(parties.servers[FIRST_SERVER]._users)
    with pytest.raises(errors.AlreadyOpened, match="commit"):
        reborn.commit()


def test_a_set_below_the_minimum_is_neither_signed_nor_witnessed(
    make_replicated: Callable, vectors: Callable
) -> None:
    parties, sent = make_replicated(W, D, minimum=3), vectors(W, D)
    shares = {i: dict(parties.users[i].submit(sent[i])) for i in range(2)}
    parties.round(shares)
    with pytest.raises(errors.TooFewUsers, match="users must be >= 3 to be opened"):
        parties.servers[FIRST_SERVER].commit()
    payload = parties.setup.session.bitmap({0, 1}) + bytes(32)
    commits = [parties.sign(Kind.COMMIT, s, EVERYONE, payload) for s in (LIAR, FIRST_SERVER)]
    with pytest.raises(errors.TooFewUsers, match="users must be >= 3"):
        parties.users[0].witness(commits)


def test_a_witness_wants_all_servers_but_one_to_have_signed_one_set(
    make_replicated: Callable,
) -> None:
    parties = make_replicated(W, D)
    setup, everyone = parties.setup, EVERYONE
    sets = [setup.session.bitmap(range(n)) + bytes(32) for n in (4, 5)]
    one, two = (parties.sign(Kind.COMMIT, s, everyone, sets[0]) for s in (LIAR, FIRST_SERVER))
    other = parties.sign(Kind.COMMIT, FIRST_SERVER, everyone, sets[1])
    by_user = parties.sign(Kind.COMMIT, 1, everyone, sets[0])
    user = parties.users[0]
    for commits, error in [
        ([], errors.OutOfOrder),
        ([one], errors.OutOfOrder),
        ([one, one], errors.OutOfOrder),
        ([one, other], errors.SetMismatch),
        ([one, by_user], errors.WrongSender),
        ([one, two, one, two], errors.MalformedMessage),
        ([one, two[:-1]], errors.TruncatedMessage),
    ]:
        with pytest.raises(error):
            user.witness(commits)
    assert user.witness([one, two])
