"""From keys to invitation: what the commands write, what they refuse, and what they load."""

import csv
import datetime
import io
import json
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from embed import PublicTransform
from tests.train_distributed.federation.folders import homes
from train_distributed.commands.federation import Join, Start, Status
from train_distributed.commands.federation.enrolling import COLUMNS, parties_of
from train_distributed.commands.options import RunConfig
from train_distributed.federation.documents import certificates, private_keys
from train_distributed.federation.documents.certificates import serving, trust, write_certificate
from train_distributed.federation.documents.federation import Deadlines
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.place import PLACES, place_path
from train_distributed.federation.documents.private_keys import PRIVATE, read_private
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.roll import Roll

FILLED_IN = {"sums", "rounds", "class_noise", "components"}  # by a public rule


def test_init_writes_what_everybody_needs(initiated, capsys) -> None:
    home = initiated(deadlines=("come=3600", "answer=0.5"))
    Status(home / "fed").run()
    words = "parties have 3600 s to come, 0.5 s to answer each question and 120 s to send an answer"
    assert capsys.readouterr().out.count(words) == 2
    fed, federation = home / "fed", homes.federation_of(home)
    invitation = Invitation.read(fed / "invitation", federation.digest.hex()[:16])
    assert invitation.federation == federation
    assert invitation.address == "127.0.0.1:9092"
    assert federation.deadlines == Deadlines(come=3600.0, answer=0.5)
    assert invitation.agreed.read_bytes() == (home / "public.safetensors").read_bytes()
    assert federation.display_name(1) == "user 1 (hospital-1)"
    assert federation.display_name(FIRST_SERVER) == "operator"
    for number, folder in enumerate(["user0", "user1", "user2"]):
        assert invitation.identify(read_private(home / folder), home / folder) == number
    for secret in ("private.json", "tls/server.key"):
        assert stat.S_IMODE((fed / secret).stat().st_mode) == 0o600
    assert stat.S_IMODE(fed.stat().st_mode) == 0o700
    files = {"ca.pem", "federation.json", "operator.json", "transform.safetensors"}
    assert {path.name for path in (fed / "invitation").iterdir()} == files
    with pytest.raises(FileExistsError):
        write_certificate(fed / "tls", ["127.0.0.1"])


def test_with_shares_everybody_gets_its_own_place(initiated) -> None:
    home = initiated(**homes.SETTINGS)
    fed = home / "fed"
    invitation = Invitation.read(fed / "invitation")
    federation = invitation.federation
    assert (federation.enrolled, federation.users) == (3, {})
    assert federation.display_name(FIRST_SERVER + 1) == "computation server 1 (adder-1)"
    text = (fed / "invitation" / "federation.json").read_text()
    assert "hospital" not in text
    for number in range(3):
        folder = home / f"user{number}"
        keys = read_private(folder)
        assert keys.public.verifying.hex() not in text
        own = invitation.placed(keys)
        assert own.identify(keys, folder) == number
        assert own.federation.digest == federation.digest
        assert own.federation.display_name(number) == f"user {number} (hospital-{number})"
    server = home / "server1"
    keys = read_private(server)
    assert invitation.placed(keys).identify(keys, server) == FIRST_SERVER + 1
    files = {"ca.pem", "federation.json", "operator.json", "places", "transform.safetensors"}
    assert {path.name for path in (fed / "invitation").iterdir()} == files
    agreed = (fed / "invitation" / "ca.pem").read_text()
    own = [(home / name / "tls" / "server.pem").read_text() for name in ("fed", "server1")]
    assert agreed == "".join(own)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_rehearsal_says_what_is_agreed_on(tmp_path, unit) -> None:
    config = tmp_path / "configuration.json"
    init = homes.init_of(tmp_path, homes.join(tmp_path, 3), config=config)
    fitted = PublicTransform.load(tmp_path / "public.safetensors")
    options = {} if unit == "record" else {"user_clip": (1.5, 2.5)}
    promise = Privacy(3.0, 1e-6, unit=unit)
    chosen = RunConfig("discriminant", options, promise, fitted.fitted_on, fitted.encoding)
    config.write_text(chosen.text())
    for typed in ({"epsilon": 2.0}, {"unit": "user" if unit == "record" else "record"}):
        with pytest.raises(ValueError, match="as config says, or be left out, got"):
            replace(init, **typed).run()
    replace(init, epsilon=3.0, honest_fraction=0.75).run()
    task = homes.federation_of(tmp_path).task
    assert (task["epsilon"], task["delta"], task["unit"]) == (3.0, 1e-6, unit)
    assert task["honest_fraction"] == 0.75
    assert task["options"]["sums"] == 2
    assert task["options"].get("user_clip") == (None if unit == "record" else [1.5, 2.5])


def test_the_file_of_the_documentation_is_taken(tmp_path) -> None:
    page = (homes.ROOT / "docs" / "methods.md").read_text("utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "c.json").write_text(block)
    own = {"class_names": ("dog", "cat"), "config": tmp_path / "c.json"}
    homes.init_of(tmp_path, homes.join(tmp_path, 3), **own).run()
    task = homes.federation_of(tmp_path).task
    assert (task["method"], task["options"]["l2_reg"]) == ("softmax", 0.1)
    assert task["options"]["prior"] == [0.3, 0.7]


def test_many_users_of_shares_are_clipped_unless_trusted(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("train_distributed.one_shot.request.MANY_USERS", 3)
    parties = homes.join(tmp_path, 3, 1)

    def options_of(folder: str, parties: list[Path], **settings: Any) -> dict[str, Any]:
        homes.init_of(tmp_path, parties, folder=tmp_path / folder, epsilon=5.0, **settings).run()
        return homes.federation_of(tmp_path, folder).task["options"]

    norm = PublicTransform.load(tmp_path / "public.safetensors").clip_norm
    clips = [round(norm * homes.ROWS, 1), round(norm * homes.ROWS**0.5, 1)]
    assert options_of("many", parties, protocol="shares")["user_clip"] == clips
    assert f"vectors are clipped to {clips[0]} and {clips[1]}," in capsys.readouterr().out
    assert options_of("trusted", parties, protocol="shares", trust_users=True).keys() == FILLED_IN
    assert options_of("one-server", parties[:3]).keys() == FILLED_IN
    assert "are clipped" not in capsys.readouterr().out


SHARES, PROMISE = {"protocol": "shares"}, Privacy(5.0, 1e-5)
USERS = ("hospital-0", "hospital-1", "hospital-2")
ALL = (*USERS, "adder-1")
BOTH = r"user 0 \(hospital-0\) and user 3 \(again\)"
REFUSED = [  # parties, changes of the settings, words
    (USERS, {"class_names": ()}, "exactly one of class_names and num_classes"),
    (USERS, {"hosts": ("Müller",)}, "hosts must be names or addresses"),
    (USERS, {"transform": Path("old")}, "transform must say which rows it has seen"),
    (USERS, {"trust_users": True}, "trust_users must be left out with protocol secagg"),
    (USERS, {"deadlines": ("comes=1",)}, "deadlines: comes must be left out, got a value"),
    (USERS, {"deadlines": ("come=nan",)}, "deadlines: come must be a number >= 0"),
    ((*USERS, "again"), {}, r"verifying key of its own, .*hospital-0.* and .*again.* share one"),
    ((*USERS, "hospital-0"), {}, "a file twice"),
    (USERS, {"privacy": PROMISE, "options": {"rounds": 2}}, "rounds must be left out in a federat"),
    (USERS, {"privacy": replace(PROMISE, noise_by="servers")}, "noise_by must be 'users' with"),
    ((*ALL, "again"), SHARES, f"a key of its own, {BOTH}"),
    ((*ALL, "hospital-0"), SHARES, "a key of its own"),
    ((*ALL, "namesake"), SHARES, "a name of its own"),
    ((*ALL, "as-user"), SHARES, "server adder-1 must have a key and a name of its own"),
    (USERS, SHARES, "of shares, must be 1, got 0"),
    ((*ALL, "adder-1"), SHARES, "of shares, must be 1, got 2"),
    (("adder-1",), SHARES, "must hold users, got none"),
    (ALL, SHARES | {"behind_proxy": True}, "server adder-1 must join --server without --hosts"),
    (ALL, SHARES | {"privacy": Privacy(5.0, 1e-5, 0.8)}, "honest_fraction must be left out where"),
    (ALL, SHARES | {"deadlines": ("come=1",)}, "deadlines must be left out with protocol shares"),
    (ALL, SHARES | {"corrupt_fraction": 0.2}, "corrupt_fraction must be left out with protocol s"),
    (ALL, SHARES | {"dropout_fraction": 0.2}, "dropout_fraction must be left out with protocol s"),
]


def test_what_init_refuses_leaves_no_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {path.name.partition(".")[0]: path for path in homes.join(tmp_path, 3, 1)}
    more = {"again": ("user0", "again"), "as-user": ("server1", "as-user")}
    for key, (folder, name) in (more | {"namesake": ("namesake", "hospital-1")}).items():
        Join(tmp_path / folder, name, rows=5).run()
        files[key] = tmp_path / folder / f"{name}.party.json"
    replace(PublicTransform.load(tmp_path / "public.safetensors"), seen=None).save(Path("old"))
    for parties, changes, words in REFUSED:
        settings = changes
        if "privacy" in changes:
            settings = homes.with_config(tmp_path / "config.json", dict(changes))
        with pytest.raises(ValueError, match=words):
            homes.init_of(tmp_path, [files[name] for name in parties], **settings).run()
        assert not (tmp_path / "fed").exists()


def table(files: list[Path]) -> str:
    lines = io.StringIO()
    writer = csv.DictWriter(lines, COLUMNS)
    writer.writeheader()
    writer.writerows(json.loads(path.read_text()) for path in files)
    return lines.getvalue()


@pytest.mark.parametrize("kind", ["files", "folder", "table", "standard input"])
def test_parties_come_from_files_a_folder_a_table_or_stdin(kind, tmp_path, monkeypatch) -> None:
    files = homes.join(tmp_path, 3, 1)
    given = {"files": files, "folder": [tmp_path / "all"], "table": [tmp_path / "p.csv"]}
    (tmp_path / "all").mkdir()
    for path in files:
        (tmp_path / "all" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "p.csv").write_text(table(files))
    monkeypatch.setattr(sys, "stdin", io.StringIO(table(files)))
    homes.init_of(tmp_path, given.get(kind, [Path("-")]), protocol="shares").run()
    roll = Roll.read(tmp_path / "fed" / "roll")
    assert [roll[number].name for number in roll] == ["hospital-0", "hospital-1", "hospital-2"]
    assert [roll[n].key.hex() for n in roll] == [Party.load(path).verifying for path in files[:3]]
    assert homes.federation_of(tmp_path).names == {2**31 + 1: "adder-1"}


def test_a_bad_line_of_a_table_is_named(tmp_path) -> None:
    path = tmp_path / "p.csv"
    head, first, second = table(homes.join(tmp_path, 2)).split("\r\n")[:3]
    renamed = second.replace("hospital-1", "hospital-9")
    for lines, words in (
        ([head, first, renamed], r"p\.csv:3: signature must be the party's own"),
        ([head, second.replace(",12,", ",13,")], r"p\.csv:2: signature must be"),
        ([head, second.replace(",12,", ",x,")], r"p\.csv:2: rows must be a whole number"),
        ([head, first, second + ",more"], r"p\.csv:3: more must be left out"),
        ([head.replace("rows", "rules")], r"p\.csv must have columns verifying, sealing, name"),
        ([head, '"' + second], "must be CSV in UTF-8"),
    ):
        path.write_text("\n".join(lines))
        with pytest.raises(ValueError, match=words) as refused:
            list(parties_of([path]))
        assert len(str(refused.value)) < 400


def test_a_place_that_is_not_proved_is_refused(initiated) -> None:
    home = initiated(**homes.SETTINGS)
    invitation = Invitation.read(home / "fed" / "invitation")
    keys = [read_private(home / f"user{number}") for number in range(2)]
    own, other = (place_path(invitation.folder / PLACES, k.public.verifying) for k in keys)
    good = json.loads(own.read_text())
    assert len(own.read_bytes()) < 10_000
    unproved = "must prove that key"
    for changed, words in (
        (good | {"rows": 13}, unproved),
        (good | {"name": "hospital-9"}, unproved),
        (good | {"number": 1}, unproved),
        (good | {"proof": good["proof"][:-1]}, unproved),
        (json.loads(other.read_text()), unproved),
        (good | {"rows": 0}, "rows must be"),
        (good | {"more": 1}, "left out"),
    ):
        own.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=words):
            invitation.placed(keys[0])
    own.write_text(json.dumps(good))
    assert invitation.federation.roll is not None
    roll = structs.replace(invitation.federation.roll, sizes={13: 3})
    lied = replace(invitation, federation=structs.replace(invitation.federation, roll=roll))
    with pytest.raises(ValueError, match=unproved):
        lied.placed(keys[0])  # its rows are not among the sizes that noise was planned for


def test_keys_are_encrypted_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, secret, other = tmp_path / "me", tmp_path / "secret", tmp_path / "other"
    secret.write_text("a long passphrase\n")
    other.write_text("another")
    (tmp_path / "empty").touch()
    Join(me, "hospital-a", rows=50, passphrase_file=secret).run()
    keys, text = read_private(me, secret), (me / PRIVATE).read_text()
    party, public = Party.load(me / "hospital-a.party.json"), keys.public
    assert (party.name, party.role, party.rows) == ("hospital-a", "user", 50)
    assert (party.verifying, party.sealing) == (public.verifying.hex(), public.sealing.hex())
    assert keys.signing.hex() not in text
    assert keys.opening.hex() not in text
    assert keys.public == private_keys.read_public(me)  # without a passphrase
    homes.embeddings(0).save(tmp_path / "rows")  # other rows, the same keys
    Join(me, "hospital-a", embeddings=tmp_path / "rows", passphrase_file=secret).run()
    again = Party.load(me / "hospital-a.party.json")
    assert (again.rows, again.verifying) == (homes.ROWS, party.verifying)
    assert read_private(me, secret) == keys
    for file, words in {
        None: "passphrase_file must be given, as .*me/private.json is encrypted, got none",
        other: "passphrase must be the one that encrypts .*me/private.json, is not",
        tmp_path / "empty": "empty must hold a passphrase of 1 to 1000 bytes, got 0",
        tmp_path / "nowhere": "nowhere must be a file, got nothing there",
    }.items():
        with pytest.raises(ValueError, match=words):
            read_private(me, file)
    with monkeypatch.context() as terminal:
        terminal.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        terminal.setattr("getpass.getpass", lambda words: "a long passphrase")
        assert read_private(me) == keys
    stated = json.loads(text)
    public = stated["public"] | {"verifying": "00" * 32}
    for changed, words in (
        ({"public": public}, "must hold the private keys of its"),
        ({"opening": stated["signing"]}, "must hold the private keys of its public ones"),
        ({"signing": keys.signing.hex()}, "passphrase must be the one that encrypts"),
    ):
        (me / PRIVATE).write_text(json.dumps(stated | changed))
        with pytest.raises(ValueError, match=words):
            read_private(me, secret)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_keys_are_their_owners_alone(mode: int, tmp_path: Path) -> None:
    private_keys.write_party(tmp_path)
    assert stat.S_IMODE((tmp_path / PRIVATE).stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        private_keys.write_party(tmp_path)
    (tmp_path / "secret").write_text("a")
    with pytest.raises(ValueError, match=r"passphrase_file must be left out, as .* not encrypted"):
        read_private(tmp_path, tmp_path / "secret")
    (tmp_path / PRIVATE).chmod(mode)
    with pytest.raises(ValueError, match=rf"has mode {mode:o}: chmod 600 .*private.json"):
        read_private(tmp_path)


@pytest.mark.parametrize(
    ("days", "words"),
    [(1830, "expired on .*: the operator makes"), (-1, "this machine's clock says .*: set the cl")],
)
def test_dates_are_named(days: int, words: str, initiated, monkeypatch) -> None:
    fed = initiated() / "fed"
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    monkeypatch.setattr(certificates, "_now", lambda: then)
    for read in (
        lambda: serving(fed / "tls", fed / "invitation" / "ca.pem"),
        lambda: trust(fed / "invitation" / "ca.pem"),
        lambda: Invitation.read(fed / "invitation"),
        Start(fed).run,
    ):
        with pytest.raises(ValueError, match=words):
            read()
