"""Parties come from files, folders, tables and standard input, and every user has one place."""

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.train_distributed.federation.folders.windows import SETTINGS
from train_distributed.commands.federation import Init, Join
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.commands.federation.enrolling import COLUMNS, parties_of
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.place import PLACES, place_path, with_roll
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.secure_sum.roll import Roll


def table(files: list[Path]) -> str:
    lines = io.StringIO()
    writer = csv.DictWriter(lines, COLUMNS)
    writer.writeheader()
    writer.writerows(json.loads(path.read_text()) for path in files)
    return lines.getvalue()


def init(home: Path, parties: list[Path], **changes: object) -> Init:
    made = Init(
        home / "fed",
        tuple(parties),
        home / "public.safetensors",
        ("127.0.0.1",),
        class_names=("a", "b", "c"),
        protocol="shares",
        minimum=2,
    )
    return replace(made, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["files", "folder", "table", "standard input"])
def test_parties_come_from_files_a_folder_a_table_or_standard_input(
    kind: str, joined: Callable[..., list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = joined(3, 1)
    given = {"files": files, "folder": [tmp_path / "all"], "table": [tmp_path / "p.csv"]}
    (tmp_path / "all").mkdir()
    for path in files:
        (tmp_path / "all" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "p.csv").write_text(table(files))
    monkeypatch.setattr(sys, "stdin", io.StringIO(table(files)))
    init(tmp_path, given.get(kind, [Path("-")])).run()
    federation = Federation.load(tmp_path / "fed" / "federation.json")
    roll = Roll.read(tmp_path / "fed" / "roll")
    assert [roll[number].name for number in roll] == ["hospital-0", "hospital-1", "hospital-2"]
    assert [roll[n].key.hex() for n in roll] == [Party.load(path).verifying for path in files[:3]]
    assert federation.names == {2**31 + 1: "adder-1"}
    with_roll(federation, tmp_path / "fed")


def test_a_bad_line_of_a_table_is_named(joined: Callable[..., list[Path]], tmp_path: Path) -> None:
    good, path = table(joined(2)), tmp_path / "p.csv"
    head, first, second = good.split("\r\n")[:3]
    for text, words in {
        "\n".join([head, first, second.replace("hospital-1", "hospital-9")]): (
            r"p\.csv:3: signature must be the party's own"
        ),
        "\n".join([head, second.replace(",12,", ",13,")]): r"p\.csv:2: signature must be",
        "\n".join([head, second.replace(",12,", ",x,")]): r"p\.csv:2: rows must be a whole number",
        "\n".join([head, second.replace(",12,", f",{'9' * 5000},")]): r"p\.csv:2: rows must be",
        "\n".join([head, first, second + ",more"]): r"p\.csv:3: more must be left out",
        "\n".join([head, second[:40]]): r"p\.csv:2: \w+ must be",
        head.replace("rows", "rules"): r"p\.csv must have columns verifying, sealing, name",
        "": "must have columns",
        "\n".join([head, '"' + second]): "must be CSV in UTF-8",
        "\n".join([head, "x" * 200_000]): "must be CSV in UTF-8",
    }.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=words) as refused:
            list(parties_of([path]))
        assert len(str(refused.value)) < 400
    path.write_bytes(head.encode() + b"\n\xff\n")
    with pytest.raises(ValueError, match="UTF-8"):
        list(parties_of([path]))


def test_nobody_is_enrolled_twice(joined: Callable[..., list[Path]], tmp_path: Path) -> None:
    *users, server = joined(3, 1)
    Join(tmp_path / "user0", "again", rows=5).run()
    again = tmp_path / "user0" / "again.party.json"
    Join(tmp_path / "namesake", "hospital-1", rows=5).run()
    namesake = tmp_path / "namesake" / "hospital-1.party.json"
    Join(tmp_path / "server1", "as-user", rows=5).run()
    as_user = tmp_path / "server1" / "as-user.party.json"
    both = r"user 0 \(hospital-0\) and user 3 \(again\)"
    for files, words in (
        ([*users, again, server], f"a key of its own, {both}"),
        ([*users, users[0], server], "a key of its own"),
        ([*users, namesake, server], "a name of its own"),
        ([*users, as_user, server], "server adder-1 must have a key and a name of its own"),
        ([*users], "of shares, must be 1, got 0"),
        ([*users, server, server], "of shares, must be 1, got 2"),
        ([server], "must hold users, got none"),
    ):
        with pytest.raises(ValueError, match=words):
            init(tmp_path, files).run()
        assert not (tmp_path / "fed").exists()


def test_a_place_that_is_not_proved_is_refused(initiated: Callable[..., Path]) -> None:
    home = initiated(**SETTINGS)
    invitation = Invitation.read(home / "fed" / "invitation")
    keys = [read_private(home / f"user{number}") for number in range(2)]
    own, other = (place_path(invitation.folder / PLACES, k.public.verifying) for k in keys)
    good = json.loads(own.read_text())
    assert len(own.read_bytes()) < 10_000
    for changed in (
        good | {"rows": 13},
        good | {"name": "hospital-9"},
        good | {"number": 1},
        good | {"proof": good["proof"][:-1]},
        json.loads(other.read_text()),
    ):
        own.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match="must prove that key"):
            invitation.placed(keys[0])
    for changed, words in ((good | {"rows": 0}, "rows must be"), (good | {"more": 1}, "left out")):
        own.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=words):
            invitation.placed(keys[0])
    sizes = {13: 3}
    roll = structs.replace(invitation.federation.roll, sizes=sizes)  # pyright: ignore[reportArgumentType]
    own.write_text(json.dumps(good))
    lied = replace(invitation, federation=structs.replace(invitation.federation, roll=roll))
    with pytest.raises(ValueError, match="must prove that key"):
        lied.placed(keys[0])  # its rows are not among the sizes that noise was planned for


def test_who_has_the_roll_finds_what_was_changed_in_it(initiated: Callable[..., Path]) -> None:
    home = initiated(**SETTINGS)
    fed = home / "fed"
    lines = np.fromfile(fed / "roll", Roll.read(fed / "roll").lines.dtype)
    lines["rows"][1] += 1
    lines.tofile(fed / "roll")
    with pytest.raises(ValueError, match="roll must have the hash"):
        MakeWindow(fed, ("h:1", "h:2"), home / "window").run()


def test_options_of_secagg_are_refused_with_shares(
    joined: Callable[..., list[Path]], tmp_path: Path
) -> None:
    files = joined(3, 1)
    for option in ("corrupt_fraction", "dropout_fraction"):
        with pytest.raises(ValueError, match=f"{option} must be left out with protocol shares"):
            init(tmp_path, files, **{option: 0.2}).run()


def test_of_very_many_users_no_file_is_written_for_each(
    joined: Callable[..., list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train_distributed.commands.federation.setup.MOST_PLACES", 2)
    init(tmp_path, joined(3, 1)).run()
    invitation = Invitation.read(tmp_path / "fed" / "invitation")
    assert not (invitation.folder / PLACES).exists()
    keys = read_private(tmp_path / "user0")
    with pytest.raises(ValueError, match="must be registered in"):
        invitation.placed(keys).identify(keys, tmp_path / "user0")
