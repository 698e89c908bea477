"""`window`, `aggregator`, `report` and `collect` over real lines, from folders to the model."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.federation.folders.windows import SETTINGS, Home, running
from train_distributed.commands.federation import Join, Status, aggregating, collecting, reporting
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.ledger.ledger import Ledger
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.secure_sum.journal import FILE
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.store.store import read_store


def kept_reports(folder: Path) -> list[bytes]:
    """Reports in the journals of a user's folder."""
    rows = [read_store(path, "journal") for path in (folder / "state").glob(f"*/{FILE}")]
    return [row.content for each in rows for row in each if row.name.endswith(".report")]


@pytest.fixture
def opened(initiated, monkeypatch) -> Iterator[Callable[..., Home]]:
    stops = []

    def make(hours: float = 24.0, **settings) -> Home:
        home = Home(initiated(**(SETTINGS | settings)), hours=hours)
        for folder in home.aggregators:
            aggregator = running(Aggregate(folder, home.window), monkeypatch)
            aggregator.__enter__()
            stops.append(partial(aggregator.__exit__, None, None, None))
        return home

    yield make
    for stop in stops:
        stop()


def plain_sum(home: Home, users: tuple[int, ...]) -> np.ndarray:
    """(d,) int64 sum of what these users submit, without noise."""
    task = home.task()
    rows = {user: EmbeddingSet.open(home.home / f"user{user}" / "embeddings") for user in users}
    return np.sum([task.encoded(user, rows[user]).view(np.int64) for user in users], 0)


def test_from_reports_to_the_model(opened, capsys) -> None:
    home = opened()
    for user in (2, 0, 0):
        home.report(user).run()
    home.collect(status=True).run()
    said = capsys.readouterr().out
    assert re.search(r"^aggregator 0: \d reports(, \d waiting)?, 0 refused, open$", said, re.M)
    assert not (home.home / "model").exists()
    Status(home.home / "fed").run()
    named = WindowFile.load(home.window / WINDOW).window.digest.hex()[:16]
    assert re.search(rf"^window {named}, [^\n]* UTC: open$", capsys.readouterr().out, re.M)
    home.collect().run()
    assert "2 of 3 users in" in capsys.readouterr().out
    home.collect(status=True).run()
    assert capsys.readouterr().out.count("2 reports, 0 refused, closed\n") == 2
    Status(home.home / "fed").run()
    assert re.search(rf"^window {named}, [^\n]* UTC: closed$", capsys.readouterr().out, re.M)
    window = WindowFile.load(home.window / WINDOW).window
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert report["survivors"] == 2
    assert report["missing"] == {"user 1 (hospital-1)": "report"}
    assert report["session"] == window.digest.hex()
    assert (report["noise"], report["noise_by"]) == ("discrete", "servers")
    assert (report["honest_servers"], report["noise_servers"]) == (1, 2)
    assert "epsilon_if_all_others_collude" not in report
    assert report["suitable_for_release"] is True
    assert [home.used(user) for user in range(3)] == [1, 0, 1]


def test_the_model_is_that_of_the_plain_sum_where_no_noise_is_added(opened, monkeypatch) -> None:
    monkeypatch.setattr(aggregating, "discrete_gaussian", lambda std, d: np.zeros(d, np.int64))
    home = opened()
    for user in (0, 2):
        home.report(user).run()
    home.collect().run()
    total = plain_sum(home, (0, 2)).view(np.uint64)
    expected = home.task().released(
        Opened(total, frozenset({0, 2})), facts=SessionFacts(session="", bytes_per_user=0)
    )
    from train_distributed import Release

    found = Release.load(home.home / "model")
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_either_aggregator_adds_all_the_noise_that_was_promised(opened, monkeypatch) -> None:
    drawn: list[tuple[float, np.ndarray]] = []

    def recorded(std: float, size: int) -> np.ndarray:
        drawn.append((std, discrete_gaussian(std, size)))
        return drawn[-1][1]

    monkeypatch.setattr(aggregating, "discrete_gaussian", recorded)
    home = opened()
    window = WindowFile.load(home.window / WINDOW)
    for user in range(3):
        home.report(user).run()
    tls = trust(home.home / "fed" / "invitation" / "ca.pem")
    with Aggregators(window.window, window.addresses, tls) as aggregators:
        opened_sum = aggregators.open(read_private(home.home / "fed"))
    noise = opened_sum.total.view(np.int64) - plain_sum(home, (0, 1, 2))
    assert [std for std, _ in drawn] == 2 * [home.task().mechanism.stds_in_steps]
    assert window.window.noise_std == home.task().mechanism.stds_in_steps
    assert np.array_equal(noise, drawn[0][1] + drawn[1][1])


def test_reports_over_tls(opened) -> None:
    home = opened()
    for user in range(3):
        home.report(user).run()
    home.collect().run()
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert report["survivors"] == 3
    (kept,) = kept_reports(home.home / "user0")
    assert report["bytes_per_user"] == len(kept)


def test_a_link_is_all_that_a_user_needs(opened) -> None:
    """Federation, transform, its place and the window come from the operator's aggregator."""
    home = opened()
    window = WindowFile.load(home.window / WINDOW)
    digest = home.task().federation.digest.hex()
    link = "https://{}:{}/invitations/{}".format(*window.addresses[2**31], digest)
    for path in (home.home / "fed" / "invitation" / "places").iterdir():
        path.unlink()  # as where there are very many
    for user in (0, 2, 0):
        home.report(user, invitation=link, window=None).run()
    home.collect().run()
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert report["surviving_users"] == ["user 0 (hospital-0)", "user 2 (hospital-2)"]
    with pytest.raises(ValueError, match="must be registered in"):
        home.report(0, invitation=link, window=None, folder=_stranger(home)).run()
    with pytest.raises(ConnectionError, match="must be there, got status 404"):
        home.report(
            0, invitation=link[:-1] + "0" * (link[-1] != "0") + "1" * (link[-1] == "0")
        ).run()


def _stranger(home: Home) -> Path:
    Join(home.home / "stranger", "stranger", rows=12).run()
    return home.home / "stranger"


def test_too_few_reports_are_not_opened_and_the_window_goes_on(opened) -> None:
    home = opened()
    home.report(1).run()
    with pytest.raises(ValueError, match=r"TooFewUsers: users to be opened must be >= 2, got 1"):
        home.collect().run()
    assert not (home.home / "model").exists()
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


def test_a_window_that_all_have_reported_to_closes_by_itself(opened, monkeypatch, capsys) -> None:
    home = opened()
    left = [2, 1, 0]
    monkeypatch.setattr(collecting, "LOOK_SECONDS", 0.0)
    decided = Aggregators.decided

    def one_more(self: Aggregators, keys: PrivateKeys) -> int:
        if left:
            home.report(left.pop()).run()
        return decided(self, keys)

    monkeypatch.setattr(Aggregators, "decided", one_more)
    home.collect(wait=True).run()
    assert left == []
    assert "3 of 3 users in" in capsys.readouterr().out


def test_a_report_that_was_killed_before_it_was_kept_is_made_in_the_same_session(
    opened, monkeypatch
) -> None:
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


def test_a_user_reports_in_as_many_windows_as_sessions_were_agreed(opened, monkeypatch) -> None:
    home = opened()
    home.report(0).run()
    monkeypatch.setattr(Aggregators, "connect", lambda *given: None)  # serves the first window only
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more"):
        home.report(0, window=home.changed_window(nonce=bytes(32))).run()


def test_a_user_whose_state_is_lost_gives_nothing_away_twice(opened) -> None:
    """In another window or the same one: the ledger beside the rows remembers."""
    home = opened()
    home.report(0).run()
    beside = Ledger.open(home.home / "user0" / "embeddings.ledger")
    for window in (home.changed_window(nonce=bytes(32)), home.window / WINDOW):
        shutil.rmtree(home.home / "user0" / "state")
        with pytest.raises(ValueError, match=r"sessions must be <= 1, got one more: .* counts 1"):
            home.report(0, window=window).run()
        assert beside.state().length == 1
        assert not kept_reports(home.home / "user0")
    home.report(1).run()
    home.collect(status=True).run()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minimum": 1}, "must be of federation"),
        ({"dimension": 7}, "must be of federation"),
        ({"noise_std": 2.0}, "must be of federation"),
        ({"roll": bytes(32)}, "must be of federation"),
        ({"context": b"window"}, "must be of federation"),
        ({"opens": 5, "closes": 10}, "report must come from 1970"),
    ],
)
def test_a_window_that_was_changed_gets_no_report(opened, changes, words) -> None:
    home = opened()
    with pytest.raises(ValueError, match=words):
        home.report(0, window=home.changed_window(**changes)).run()
    assert home.used(0) == 0


def test_the_operator_s_state_says_of_every_window_whether_its_time_is_over(
    initiated, monkeypatch, capsys
) -> None:
    home = Home(initiated(**SETTINGS), hours=1.0)
    capsys.readouterr()
    for hours, words in ((-1, "not open yet"), (0, "open"), (2, "closed, its time is over")):
        now = time.time() + 3600 * hours
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda now=now: now)
            Status(home.home / "fed").run()
        assert f" UTC: {words}\n" in capsys.readouterr().out


def test_where_an_aggregator_is_gone_nothing_is_drawn(initiated) -> None:
    home = Home(initiated(**SETTINGS))
    with pytest.raises(OSError, match=r"aggregator 0 at 127\.0\.0\.1:\d+ must answer"):
        home.report(0, patience=0.0).run()
    assert home.used(0) == 0
