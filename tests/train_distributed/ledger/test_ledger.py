"""What a ledger counts: reserved is spent, up to a limit, in one ledger for the same rows."""

import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.__main__ import MENU
from train_distributed.commands.counting import Merge, Show
from train_distributed.ledger import ledger as ledger_file
from train_distributed.ledger.entry import Entry, Limit, gaussian_fields
from train_distributed.ledger.ledger import Ledger
from train_distributed.privacy.mechanism import DiscreteGaussian

LIMIT = Limit(epsilon=1.5, delta=1e-5)
UNKNOWN = "id must be of an entry in the ledger"


def spent(ledger: Ledger) -> float:
    return Ledger.open(ledger.path).total().epsilon(1e-5)


def test_what_is_reserved_counts_whether_or_not_it_is_spent(ledger) -> None:
    first = ledger.reserve(GAUSSIAN)
    assert spent(ledger) == pytest.approx(1.0, rel=1e-4)
    ledger.spend(first)
    assert spent(ledger) == pytest.approx(1.0, rel=1e-4)
    assert ledger.reserve(GAUSSIAN) != first
    assert spent(ledger) == pytest.approx(1.465, rel=1e-3)
    assert [r.spent for r in ledger.state().records] == [True, False]
    for id, words in (("", UNKNOWN), ("0" * 16, UNKNOWN), (first, "not spent yet")):
        with pytest.raises(ValueError, match=words):
            ledger.spend(id)


def test_what_no_noise_was_drawn_for_is_given_back_once(ledger) -> None:
    ledger.limit(LIMIT)
    first, second = ledger.reserve(GAUSSIAN), ledger.reserve(GAUSSIAN)
    with pytest.raises(ValueError, match="limit of ledger"):
        ledger.afford(GAUSSIAN)
    ledger.give_back(second)
    assert [r.id for r in ledger.state().records] == [first]
    assert spent(ledger) == pytest.approx(1.0, rel=1e-4)
    for use in (ledger.give_back, ledger.spend):
        for wrong in (second, "0" * 16):
            with pytest.raises(ValueError, match=UNKNOWN):
                use(wrong)
    ledger.afford(GAUSSIAN)
    assert ledger.reserve(GAUSSIAN) != second
    ledger.spend(first)
    with pytest.raises(ValueError, match="must be of an entry that is not spent"):
        ledger.give_back(first)
    assert ledger.state().given_back == 1


def test_what_can_be_afforded_is_asked_without_a_trace(ledger, tmp_path) -> None:
    ledger.afford(GAUSSIAN)
    assert not list(tmp_path.iterdir())
    Ledger(tmp_path / "other.ledger").reserve(GAUSSIAN)
    with pytest.raises(ValueError, match="which counts these rows already"):
        ledger.afford(GAUSSIAN)


def test_a_reference_is_counted_once(ledger) -> None:
    entry = replace(GAUSSIAN, reference="federation/session0")
    assert ledger.reserve(entry) == ledger.reserve(replace(entry, result="again"))
    with pytest.raises(ValueError, match="must be of the same entry"):
        ledger.reserve(replace(entry, epsilon=2.0))
    assert ledger.reserve(replace(entry, reference="federation/session1"))
    assert ledger.state().length == 2


def test_a_reference_of_an_older_version_is_of_whoever_adds_the_noise(ledger) -> None:
    older = replace(GAUSSIAN, reference="federation/session0")
    stated = replace(older, noise_by="servers")
    assert ledger.reserve(older) == ledger.reserve(stated)
    other = replace(stated, reference="federation/session1")
    ledger.reserve(other)
    with pytest.raises(ValueError, match="must be of the same entry"):
        ledger.reserve(replace(other, noise_by="users"))


def test_a_limit_of_what_is_promised_admits_it(tmp_path) -> None:
    for epsilon, delta in ((0.01, 1e-9), (1.0, 1e-5), (30.0, 1e-3)):
        planned = DiscreteGaussian.for_promise(
            epsilon, delta, sensitivity=1.0, honest=3, dimension=9
        )
        fields = gaussian_fields(planned) | {"epsilon": epsilon, "delta": delta}
        ledger = Ledger.open(tmp_path / f"{epsilon}.ledger")
        ledger.limit(Limit(epsilon=epsilon, delta=delta))
        ledger.reserve(replace(GAUSSIAN, data=str(epsilon), **fields))


def test_a_limit_is_not_passed_and_takes_the_place_of_no_other(ledger) -> None:
    tight, other = Limit(epsilon=0.5, delta=1e-5), Limit(epsilon=9.0, delta=1e-5, unit="user")
    for own in (None, Limit(epsilon=9.0, delta=1e-5), LIMIT):
        if own:
            ledger.limit(own)
        with pytest.raises(ValueError, match=r"got 0\.5"):
            ledger.reserve(GAUSSIAN, tight)
        with pytest.raises(ValueError, match=r"must be >= inf, got 9"):
            ledger.reserve(GAUSSIAN, other)
        assert ledger.total().epsilon(1e-5) == 0
        assert ledger.path.exists() == (own is not None)
    ledger.reserve(GAUSSIAN)
    ledger.reserve(GAUSSIAN)
    before = ledger.path.read_bytes()
    with pytest.raises(ValueError, match=r"limit of ledger private.ledger must be >= 1\.8"):
        ledger.reserve(GAUSSIAN)
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize("part", ["Train", "rows", "train ", "TRAIN"])
def test_only_parts_of_a_set_are_parts(ledger, part: str) -> None:
    """Any other word would be a part that shares no row with those of a set."""
    with pytest.raises(ValueError, match=f"part must be one of .*got '{part}'"):
        ledger.reserve(replace(GAUSSIAN, part=part, split="s"))
    assert not ledger.path.exists()


def test_nobody_can_try_rows_on_what_a_result_says_of_its_ledger(tmp_path, monkeypatch) -> None:
    """Who knows the entry, its time, place and all lines before it does not find the hash."""
    clock = SimpleNamespace(now=lambda zone: datetime(2026, 1, 1, tzinfo=zone))
    monkeypatch.setattr(ledger_file, "datetime", clock)  # which stands still
    told = []
    for _ in range(2):
        ledger = Ledger.open(tmp_path / "rows.ledger")
        report = ledger.report(ledger.reserve(GAUSSIAN))
        told.append({report["head"], report["entry"]})
        ledger.path.unlink()
    assert not told[0] & told[1]


def test_two_that_open_ledgers_of_the_same_rows_at_once_are_not_both_counted(tmp_path, monkeypatch):
    """Each would find no other ledger before the other has written: one of them must wait."""
    counted, refused = [], []
    look = Ledger._refuse_elsewhere

    def look_and_dawdle(ledger: Ledger, entry: Entry) -> None:
        look(ledger, entry)
        time.sleep(0.2)

    def open_and_reserve(name: str) -> None:
        try:
            counted.append(Ledger.open(tmp_path / name).reserve(GAUSSIAN))
        except ValueError as error:
            refused.append(str(error))

    monkeypatch.setattr(Ledger, "_refuse_elsewhere", look_and_dawdle)
    names = [f"{letter}.ledger" for letter in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_and_reserve, names))
    assert len(counted) == 1
    assert all("which counts these rows already" in words for words in refused)


def test_a_limit_is_tightened_freely_and_raised_on_the_record(ledger) -> None:
    ledger.limit(LIMIT)
    ledger.limit(replace(LIMIT, epsilon=1.0))
    assert ledger.state().raised == 0
    for looser in (LIMIT, replace(LIMIT, epsilon=1.0, delta=1e-4)):
        with pytest.raises(ValueError, match="limit must not allow more than epsilon 1 at"):
            ledger.limit(looser)
    ledger.limit(LIMIT, raised=True)
    assert (ledger.state().limit, ledger.state().raised) == (LIMIT, 1)
    ledger.reserve(GAUSSIAN)
    ledger.limit(replace(LIMIT, epsilon=0.1))
    with pytest.raises(ValueError, match=r"got 0\.1"):
        ledger.reserve(replace(GAUSSIAN, sigma=1e6))


def test_many_at_once_stay_within_the_limit(ledger) -> None:
    """Each in a thread with a descriptor of its own, which is to the lock as a process is."""
    limit = Limit(epsilon=3.0, delta=1e-5)
    ledger.limit(limit)
    refused = []

    def reserve(_: int) -> None:
        try:
            Ledger.open(ledger.path).reserve(GAUSSIAN)
        except ValueError as error:
            refused.append(error)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(reserve, range(18)))
    assert len(refused) + len(ledger.state().records) == 18
    assert ledger.total().epsilon(1e-5) <= 3.0
    with pytest.raises(ValueError, match="limit of ledger"):
        ledger.reserve(GAUSSIAN)


def test_the_ledger_of_a_set_lies_beside_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "mine/", "./mine", str(tmp_path / "mine"), "mine/.", "link"):
        assert Ledger.beside(Path(name)).path == tmp_path / "mine.ledger"
    chosen = Ledger.chosen(None, Path("mine"))
    assert chosen is not None
    assert chosen.path == tmp_path / "mine.ledger"
    assert Ledger.chosen(Path("none"), Path("mine")) is None


@pytest.mark.parametrize("change", [{}, {"data": "another encoder's", "images": "i"}])
def test_rows_that_another_ledger_counts_are_refused(tmp_path, change) -> None:
    """A copy of the set, or another embedding of its images, beside it."""
    entry = replace(GAUSSIAN, images="i")
    Ledger.open(tmp_path / "mine.ledger").reserve(entry)
    with pytest.raises(ValueError, match=r"ledger must be .*mine\.ledger, which counts these"):
        Ledger.open(tmp_path / "copy.ledger").reserve(replace(entry, **change))
    (tmp_path / "elsewhere").mkdir()
    far = Ledger.chosen(tmp_path / "elsewhere" / "x.ledger", tmp_path / "copy")
    assert far is not None
    with pytest.raises(ValueError, match=r"which counts these rows already"):
        far.reserve(replace(entry, **change))
    with pytest.raises(ValueError, match=r"ledger must be called NAME\.ledger, got .*a\.db"):
        Ledger.open(tmp_path / "a.db")  # which the ledgers beside it would not find
    Ledger.open(tmp_path / "other.ledger").reserve(replace(entry, data="o", images=""))
    (tmp_path / "accounts.ledger").write_text("2026-01-01 * Opening balance\n")
    Ledger.open(tmp_path / "third.ledger").reserve(replace(entry, data="t", images=""))


def test_what_a_result_says_of_its_entry(ledger) -> None:
    told = ledger.report(id := ledger.reserve(GAUSSIAN))
    assert json.loads(json.dumps(told)) == told
    assert (told["entry"], told["file"]) == (id, "private.ledger")
    assert told["epsilon_total"] == pytest.approx(1.0, rel=1e-4)
    bare = replace(GAUSSIAN, sigma=0.0, epsilon=math.inf, noise="none")
    assert ledger.report(ledger.reserve(bare))["epsilon_total"] == "not private"


def test_another_release_of_a_set_is_called_so(ledger) -> None:
    for kind, expected in (("evaluation", "release"), ("release", "re-release")):
        ledger.reserve(replace(GAUSSIAN, data="d", kind=kind))
        assert ledger.release_kind("d") == expected
    assert ledger.release_kind("e") == "release"


COPY = r"ledger must be {original}, which counts for all copies, got its copy .*: --ledger "


@pytest.fixture
def original(tmp_path: Path) -> Ledger:
    """Ledger of the set `mine`, which has spent once."""
    (tmp_path / "mine").mkdir()
    ledger = Ledger.beside(tmp_path / "mine")
    ledger.spend(ledger.reserve(GAUSSIAN))
    return ledger


def copied(original: Ledger, place: Path) -> Path:
    """The set that a copy of the ledger lies beside, as `cp -r` makes both."""
    place.parent.mkdir(exist_ok=True)
    place.mkdir()
    shutil.copy(original.path, place.with_name(f"{place.name}.ledger"))
    return place


def chosen(embeddings: Path, given: Path | None = None) -> Ledger:
    ledger = Ledger.chosen(given, embeddings)
    assert ledger is not None
    return ledger


@pytest.mark.parametrize("place", ["copy", "elsewhere/mine"])
def test_a_copy_names_its_original_which_counts_for_both(original, tmp_path, place, capsys) -> None:
    copy = copied(original, tmp_path / place)
    beside = Ledger.beside(copy)
    for write in (
        lambda: chosen(copy),
        lambda: beside.reserve(GAUSSIAN),
        lambda: beside.limit(Limit(epsilon=1.0, delta=1e-5)),
        lambda: beside.spend(beside.state().records[0].id),
        lambda: beside.merge(original),
    ):
        with pytest.raises(ValueError, match=COPY.format(original=original.path)) as refused:
            write()
        assert "\n" not in str(refused.value)
    assert beside.state() == original.state()
    for shown in (beside, original):
        Show(ledger=shown.path).run()
        said = f"a copy: what counts is {original.path}, which may"
        assert (said in capsys.readouterr().out) is (shown is beside)
    chosen(copy, original.path).reserve(GAUSSIAN)  # as the error says
    chosen(tmp_path / "mine").reserve(GAUSSIAN)
    assert len(original.state().records) == 3
    assert len(beside.state().records) == 1


def test_a_ledger_that_has_a_limit_only_is_known_as_a_copy_too(tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    original = Ledger.beside(tmp_path / "mine")
    original.limit(Limit(epsilon=1.5, delta=1e-5))
    copy = copied(original, tmp_path / "elsewhere" / "mine")
    with pytest.raises(ValueError, match=COPY.format(original=original.path)):
        Ledger.beside(copy).reserve(GAUSSIAN)


def test_what_was_moved_or_renamed_or_is_seen_by_another_path_goes_on(original, tmp_path) -> None:
    (tmp_path / "there").mkdir()
    moved = Ledger(original.path.rename(tmp_path / "there" / "rows.ledger"))
    moved.reserve(GAUSSIAN)
    (tmp_path / "link").symlink_to("there")
    Ledger(tmp_path / "link" / "rows.ledger").reserve(GAUSSIAN)
    again = Ledger(moved.path.rename(tmp_path / "there" / "other.ledger"))
    Ledger(tmp_path / "there" / "rows.ledger").reserve(replace(GAUSSIAN, data="of other rows"))
    again.reserve(GAUSSIAN)
    assert len(again.state().records) == 4


def test_a_place_that_has_a_ledger_of_other_rows_or_none_now_is_no_original(original, tmp_path):
    moved = Ledger(original.path.rename(tmp_path / "moved.ledger"))
    for content in (b"2026-01-01 * Opening balance\n", b""):
        original.path.write_bytes(content)
        moved.reserve(GAUSSIAN)
    original.path.unlink()
    original.path.mkdir()
    moved.reserve(GAUSSIAN)


def test_two_that_went_their_own_ways_are_refused_until_they_are_one(original, tmp_path) -> None:
    """As where the original was on another machine meanwhile."""
    away = tmp_path / "away"
    copy = copied(original, tmp_path / "copy")
    original.path.rename(away)
    Ledger.beside(copy).reserve(STATED)
    away.rename(original.path)
    other = tmp_path / "copy.ledger"
    with pytest.raises(ValueError, match=rf"be {other}, which counts .* --ledger {other}$"):
        original.reserve(GAUSSIAN)  # as the copy holds all of it, and more
    original.reserve(replace(GAUSSIAN, data="of other rows"))
    for ours, theirs in ((original.path, other), (other, original.path)):
        words = (
            f"without what {theirs} counts: blind-averaging ledger merge --ledger {ours} --other"
        )
        with pytest.raises(ValueError, match=words):
            Ledger(ours).reserve(GAUSSIAN)
    expected = Ledger.open(original.path).total().cost.squared_mu
    Merge(ledger=original.path, other=other).run()
    entries = [record.entry for record in original.state().records]
    assert entries == [GAUSSIAN, replace(GAUSSIAN, data="of other rows"), STATED]
    assert original.total().cost.squared_mu == expected
    assert original.total().cost.epsilon == STATED.epsilon
    original.reserve(GAUSSIAN)
    assert original.merge(Ledger(other)) == 0
    shutil.move(original.path, away)  # whatever becomes of the first
    with pytest.raises(ValueError, match=COPY.format(original=original.path)):
        Ledger(other).reserve(GAUSSIAN)


def test_ledgers_of_unrelated_rows_are_merged_whatever_the_limit(original, ledger) -> None:
    original.limit(Limit(epsilon=1.0, delta=1e-5))
    for data in ("a", "b"):
        ledger.reserve(replace(GAUSSIAN, data=data))
    assert original.merge(ledger) == 2
    assert original.total().epsilon(1e-5) > 1.5
    with pytest.raises(ValueError, match="limit of ledger"):
        original.reserve(replace(GAUSSIAN, sigma=1e6))


def test_what_cannot_be_merged_is_refused(original, tmp_path) -> None:
    for other in (original.path, tmp_path / "nowhere.ledger"):
        with pytest.raises(ValueError, match="other must be another ledger that exists, got"):
            Merge(ledger=original.path, other=other).run()
    assert len(original.state().records) == 1
    typed = ["merge", "--embeddings", "mine", "--other", "o"]
    assert MENU.parse(["ledger", *typed], "x") == Merge(embeddings=Path("mine"), other=Path("o"))


def test_an_original_that_cannot_be_read_is_not_there(original, tmp_path, monkeypatch) -> None:
    copy = copied(original, tmp_path / "elsewhere" / "mine")
    is_file = Path.is_file

    def closed(path: Path) -> bool:
        if path == original.path:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", closed)
    Ledger.beside(copy).reserve(GAUSSIAN)
