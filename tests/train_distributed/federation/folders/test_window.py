"""`window`, `aggregator`, `report` and `collect` over real lines, from folders to the model."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation.folders.homes import (
    FACTS,
    SETTINGS,
    Home,
    embeddings,
    rows_of,
)
from train_distributed import Release
from train_distributed.commands.federation import Status, aggregating, reporting
from train_distributed.federation.aggregator_client import Aggregators, Refused
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW
from train_distributed.ledger.ledger import Ledger
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.secure_sum.aggregator import CENTRE, read_centre, write_order
from train_distributed.secure_sum.errors import AlreadyOpened, ProtocolError
from train_distributed.secure_sum.journal import FILE
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.store.store import read_store

TWO = {"options": {"sums": 2}}


def kept_reports(folder: Path) -> list[bytes]:
    rows = [read_store(path, "journal") for path in (folder / "state").glob(f"*/{FILE}")]
    return [row.content for each in rows for row in each if row.name.endswith(".report")]


def lines(home: Home) -> Aggregators:
    tls = trust(home.window / "ca.pem")
    return Aggregators(home.file.window, home.file.addresses, tls, 3.0)


def keys_of(home: Home) -> PrivateKeys:
    return read_private(home.home / "fed")


def model_report(home: Home) -> dict[str, Any]:
    return json.loads((home.model / "report.json").read_text())


def first_sum(home: Home, *users: int) -> None:
    """These users report to the first of two sums, and its centre is published."""
    for user in users:
        home.report(user, patience=0.2).run()
    home.collect().run()
    assert not home.model.exists()


def centre_of(home: Home) -> bytes:
    with lines(home) as found:
        return read_centre(home.file.window, found.published())


def test_from_reports_to_the_model(opened, capsys) -> None:
    home = opened()
    for user in (2, 0, 0):
        home.report(user).run()
    window, named = home.file.window, home.file.window.digest.hex()[:16]
    for state in ("open", "closed"):
        capsys.readouterr()
        home.collect(status=True).run()
        Status(home.home / "fed").run()
        said = capsys.readouterr().out
        counts = rf"^aggregator 0: \d reports(, \d waiting)?, 0 refused, {state}$"
        assert re.search(counts, said, re.M)
        assert re.search(rf"^window {named}, [^\n]* UTC: {state}$", said, re.M)
        assert said.count("2 reports, 0 refused, closed\n") == 2 * (state == "closed")
        assert home.model.exists() == (state == "closed")
        if state == "open":
            home.collect().run()
            assert "2 of 3 users in" in capsys.readouterr().out
    report = model_report(home)
    assert report["survivors"] == 2
    assert report["missing"] == {"user 1 (hospital-1)": "report"}
    assert report["session"] == window.digest.hex()
    assert (report["noise"], report["noise_by"]) == ("discrete", "servers")
    assert (report["honest_servers"], report["noise_servers"]) == (1, 2)
    assert "epsilon_if_all_others_collude" not in report
    assert report["suitable_for_release"] is True
    assert [home.used(user) for user in range(3)] == [1, 0, 1]
    (kept,) = kept_reports(home.home / "user0")
    assert report["bytes_per_user"] == len(kept)


@pytest.mark.parametrize("sums", [1, 2])
def test_the_model_is_that_of_the_plain_sums_and_the_planned_noise(opened, monkeypatch, sums):
    drawn: list[tuple[float, np.ndarray]] = []

    def recorded(std: float, size: int) -> np.ndarray:
        drawn.append((std, discrete_gaussian(std, size)))
        return drawn[-1][1]

    monkeypatch.setattr(aggregating, "discrete_gaussian", recorded)
    home = opened(options={"sums": sums})
    task, window = home.task(), home.file.window
    opened_sums = list[Opened]()

    def add(sent: list[np.ndarray], users: frozenset[int]) -> None:
        noise = drawn[-2][1] + drawn[-1][1]
        opened_sums.append(Opened(np.sum(sent, 0, np.uint64) + noise.view(np.uint64), users))

    def first(users: frozenset[int]) -> None:
        add([task.encoded(user, rows_of(home.home, user)) for user in users], users)

    if sums == 2:
        first_sum(home, 0, 1, 2)
        first(frozenset({0, 1, 2}))
        assert task.publish(opened_sums[0]) == centre_of(home)
    both = frozenset({0, 2})
    for user in both:
        home.report(user).run()
    home.collect().run()
    if sums == 1:
        first(both)
    else:
        centre = centre_of(home)
        add([task.encoded_at(user, rows_of(home.home, user))(centre) for user in both], both)
        assert window.second is not None
        assert dict(window.second.steps) == task.norm_bounds[1] != task.norm_bounds[0]
    expected = task.released(*opened_sums, facts=FACTS)
    np.testing.assert_array_equal(Release.load(home.model).weights, expected.weights)
    planned = [float(each.stds_in_steps) for each in task.plan.integers]
    assert [std for std, _ in drawn] == [std for std in planned for _ in range(2)]
    assert (len(planned), window.noise_std) == (sums, planned[0])


def test_two_sums_of_one_window(opened, monkeypatch, capsys) -> None:
    """A user that comes for the second sum alone pays for both."""
    home = opened(**TWO)
    first_sum(home, 0, 1)
    said = capsys.readouterr().out
    assert said.count("once its centre is published, report again") == 2
    assert "collect again when they have" in said
    with pytest.raises(ValueError, match="users to be opened must be >= 2, got 0"):
        home.collect().run()
    home.stack.close()
    home.start(monkeypatch)
    for user in (0, 2, 2):
        home.report(user).run()
    home.collect(status=True).run()
    said = capsys.readouterr().out
    assert re.search(r"aggregator 0, second sum: \d reports(, \d waiting)?", said)
    home.collect().run()
    report = model_report(home)
    assert (report["rounds"], report["survivors"]) == (2, 2)
    assert report["missing"] == {"user 1 (hospital-1)": "report"}
    assert report["share_per_round"] == [0.1, 0.9]
    assert report["noise_by"] == "servers"
    assert [home.used(user) for user in range(3)] == [1, 1, 1]
    for owner in ("fed/operator", "user0/embeddings", "user2/embeddings"):
        (record,) = Ledger.open((home.home / owner).with_suffix(".ledger")).state().records
        assert record.entry.cost.at(1e-5) == pytest.approx(5.0, rel=1e-5)


def test_too_few_reports_are_not_opened_and_the_window_goes_on(opened) -> None:
    home = opened()
    home.report(1).run()
    with pytest.raises(ValueError, match=r"TooFewUsers: users to be opened must be >= 2, got 1"):
        home.collect().run()
    assert not home.model.exists()
    home.report(0).run()
    home.collect().run()
    with pytest.raises(ValueError, match="closed"):
        home.report(2).run()
    assert home.used(2) == 0  # nothing was drawn
    with pytest.raises(FileExistsError):
        home.collect().run()
    home.collect("again").run()  # the same sum
    models = [(home.home / name / "model.safetensors").read_bytes() for name in ("model", "again")]
    assert models[0] == models[1]


def test_a_report_killed_before_it_was_kept_is_of_the_same_session(opened, monkeypatch) -> None:
    """One that cannot be made uses up none."""
    home, spend = opened(), reporting.spend_session
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "make_report", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            home.report(0).run()
    assert home.used(0) == 0
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "spend_session", lambda *of, **given: spend(*of, **given) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            home.report(0).run()
    assert home.used(0) == 1
    for _ in range(2):
        home.report(0).run()
    assert home.used(0) == 1


@pytest.mark.parametrize("sums", [1, 2])
def test_a_session_goes_on_with_the_rows_whose_ledger_counts_it(opened, monkeypatch, sums) -> None:
    """Whether a first sum is to be made again, or the second one follows."""
    home, spend = opened(options={"sums": sums}), reporting.spend_session
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "spend_session", lambda *of, **given: spend(*of, **given) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            home.report(0).run()
    if sums == 2:
        first_sum(home, 0, 1, 2)
    rows = home.home / "elsewhere" / "rows"
    embeddings(77).save(rows)
    with pytest.raises(ValueError, match="ledger must be the one that counts the sessions of this"):
        home.report(0, embeddings=rows, patience=0.2).run()
    assert not rows.with_suffix(".ledger").exists()
    home.report(0, patience=0.2).run()


@pytest.mark.parametrize("sums", [1, 2])
def test_a_user_reports_in_as_many_windows_as_sessions_were_agreed(opened, sums: int) -> None:
    home = opened(options={"sums": sums})
    home.report(0, patience=0.2).run()
    other = home.changed_window(nonce=bytes(32))
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more"):
        home.report(0, window=other, patience=600.0).run()
    assert home.used(0) == 1


def test_a_user_whose_state_is_lost_gives_nothing_away_twice(opened) -> None:
    home = opened()
    home.report(0).run()
    beside = Ledger.open(home.home / "user0" / "embeddings.ledger")
    for window in (home.changed_window(nonce=bytes(32)), home.window / WINDOW):
        shutil.rmtree(home.home / "user0" / "state")
        with pytest.raises(ValueError, match=r"sessions must be <= 1, got one more: .* counts 1"):
            home.report(0, window=window).run()
        assert beside.state().length == 1
        assert not kept_reports(home.home / "user0")


def test_a_window_that_was_changed_gets_no_report(windowed) -> None:
    for changes, words in (
        ({"minimum": 1}, "must be of federation"),
        ({"dimension": 7}, "must be of federation"),
        ({"noise_std": 2.0}, "must be of federation"),
        ({"roll": bytes(32)}, "must be of federation"),
        ({"context": b"window"}, "must be of federation"),
        ({"opens": 5, "closes": 10}, "report must come from 1970"),
    ):
        with pytest.raises(ValueError, match=words):
            windowed.report(0, window=windowed.changed_window(**changes)).run()
        assert windowed.used(0) == 0


def test_killed_between_both_aggregators_the_centre_stays_the_same(opened, monkeypatch) -> None:
    home = opened(**TWO)
    for user in range(3):
        home.report(user, patience=0.2).run()
    plain = Aggregators._ordered

    def killed(self, aggregator, what, *rest):
        if what == CENTRE and aggregator == HELPER:
            raise KeyboardInterrupt
        return plain(self, aggregator, what, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Aggregators, "_ordered", killed)
        with pytest.raises(KeyboardInterrupt):
            home.collect().run()
    centre = centre_of(home)
    home.report(0).run()  # acknowledged by the leader, and waits for the helper
    home.stack.close()
    home.start(monkeypatch)
    home.report(1).run()
    home.collect(patience=20.0).run()
    assert centre_of(home) == centre
    report = model_report(home)
    assert (report["rounds"], report["survivors"]) == (2, 2)


def order_of(home: Home, centre: bytes, keys: PrivateKeys | None = None) -> bytes:
    return write_order(home.file.window, CENTRE, [centre], keys or keys_of(home))


def test_a_second_centre_is_refused_by_aggregators_and_users(opened, monkeypatch) -> None:
    home = opened(**TWO)
    first_sum(home, 0, 1, 2)
    home.report(0).run()
    other = (0.99 * np.frombuffer(centre_of(home))).tobytes()
    for aggregator in (LEADER, HELPER):
        with lines(home) as found, pytest.raises(Refused, match="centre must happen once"):
            found._ordered(aggregator, CENTRE, "/centre", [other], keys_of(home))
    with monkeypatch.context() as patched:
        patched.setattr(Aggregators, "published", lambda _: order_of(home, other))
        with pytest.raises(AlreadyOpened, match="centre must happen once"):
            home.report(0).run()
        with pytest.raises(ValueError, match="there is no such task"):
            home.report(1).run()  # whom it is shown first: the aggregators do not have that sum
    assert home.used(0) == home.used(1) == 1


def test_a_hostile_centre_is_refused_before_anything_is_made(opened, monkeypatch) -> None:
    home = opened(**TWO)
    for user in range(2):
        home.report(user, patience=0.2).run()
    window, d = home.file.window, home.file.window.dimension
    with lines(home) as found, pytest.raises(Refused, match="must commit before a centre"):
        found.publish(np.zeros(d).tobytes(), keys_of(home))
    for order, words in (
        (order_of(home, np.full(d, np.nan).tobytes()), "centre must be finite"),
        (order_of(home, np.full(d, np.inf).tobytes()), "centre must be finite"),
        (order_of(home, np.full(d, 1e9).tobytes()), "centre_norm must be"),
        (order_of(home, np.zeros(d - 1).tobytes()), "centre must be"),
        (order_of(home, b""), "centre must be"),
        (order_of(home, np.zeros(d).tobytes(), PrivateKeys.generate()), "sign"),
        (write_order(window, b"s", [bytes(8 * d)], keys_of(home)), "ORDER must publish the centre"),
        (b"noise", "message must"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Aggregators, "published", lambda _, order=order: order)
            with pytest.raises((ProtocolError, ValueError), match=words):
                home.report(0).run()
    home.collect().run()
    home.report(0).run()  # none of them counts


def test_every_centre_has_a_window_of_its_own(initiated: Callable[..., Path]) -> None:
    window = Home(initiated(**SETTINGS | TWO)).file.window
    centres = [np.full(window.dimension, value).tobytes() for value in (0.0, 0.1)]
    digests = {window.digest, *(window.at(centre).digest for centre in (*centres, centres[0]))}
    assert len(digests) == 3
    assert window.at(centres[0]).second is None
    assert window.second is not None
    packed = window.second.packed
    for prefix in (packed, struct.pack(">Q", len(packed)) + packed):  # a context is no second sum
        forged = replace(window, second=None, context=prefix + window.context)
        assert forged.digest != window.digest
    for changed in ({"dimension": 7}, {"noise_std": 1.5}, {"steps": {12: 9}}):
        second = replace(window.second, **changed)
        assert replace(window, second=second).digest not in digests
