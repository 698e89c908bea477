"""What does not fit a window is refused in one line, before anything is drawn."""

import json
from dataclasses import replace

import pytest

from tests.train_distributed.federation.folders.windows import SETTINGS, Home
from train_distributed.commands.federation import Start
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.privacy.promise import Privacy


def test_what_does_not_fit_is_refused_in_one_line(initiated, tmp_path) -> None:
    home = Home(initiated(**SETTINGS))
    with pytest.raises(ValueError, match="must be a user's"):
        home.report(0, folder=home.home / "server1").run()
    with pytest.raises(ValueError, match="must be those of an aggregator"):
        Aggregate(home.home / "user0", home.window).run()
    for given, words in (
        ({"aggregators": ("h:1",)}, "aggregators must be 2, got 1"),
        ({"aggregators": ("h:1", "h")}, "HOST:PORT"),
        ({"aggregators": ("h:1", "h:70000")}, "HOST:PORT"),
        ({"aggregators": ("h:1", "h:2"), "hours": 0.0}, "hours must be in"),
    ):
        made = MakeWindow(home.home / "fed", given["aggregators"], tmp_path / "no")
        with pytest.raises(ValueError, match=words):
            replace(made, **given).run()
        assert not (tmp_path / "no").exists()
    (home.window / "roll").write_bytes(bytes(240))
    with pytest.raises(ValueError, match="roll must have the hash"):
        Aggregate(home.home / "server1", home.window).run()
    (home.window / "roll").write_bytes(bytes(239))
    with pytest.raises(ValueError, match="must hold lines of 80 bytes"):
        Aggregate(home.home / "server1", home.window).run()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SETTINGS | {"privacy": Privacy(5.0, 1e-5, 0.8)}, "honest_fraction must be left out where"),
        ({"privacy": Privacy(5.0, 1e-5, noise_by="servers")}, "noise_by must be 'users' with"),
    ],
)
def test_shares_and_noise_of_servers_go_together(initiated, settings, words) -> None:
    with pytest.raises(ValueError, match=words):
        initiated(**settings)


def test_shares_have_no_sessions(initiated) -> None:
    home = initiated(**SETTINGS)
    with pytest.raises(ValueError, match="make a window and collect"):
        Start(home / "fed").run()
    invitation = home / "fed" / "invitation"
    with pytest.raises(ValueError, match="a user reports"):
        Start(home / "user0", invitation, embeddings=home / "user0" / "embeddings").run()


def test_a_window_is_of_shares(initiated) -> None:
    with pytest.raises(ValueError, match="must be of protocol shares, got secagg"):
        Home(initiated())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_std", 0.5),
        ("minimum", 0),
        ("minimum", 4),
        ("closes", 1),
        ("nonce", "00"),
        ("roll", None),
        ("sizes", {}),
        ("sizes", {"12": [3]}),
        ("sizes", {"12": [3, 2**32]}),
        ("sizes", {"012": [3, 9]}),
        ("sizes", {"12": [1, 9]}),
        ("context", "0"),
        ("aggregators", []),
        ("dimension", 2**40),
        ("more", 1),
    ],
)
def test_a_file_of_a_window_that_was_damaged_is_refused(initiated, field, value) -> None:
    home = Home(initiated(**SETTINGS))
    path = home.window / WINDOW
    values = json.loads(path.read_text()) | {field: value}
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=str(path)):
        WindowFile.load(path)
