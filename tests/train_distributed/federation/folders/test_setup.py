"""From keys to invitation: what the commands write, what they refuse, and what they load."""

import datetime
import json
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from embed import PublicTransform
from tests.train_distributed.federation.folders.conftest import ROWS
from train_distributed.commands.federation import Init, Join, Start, Status
from train_distributed.commands.options import RunConfig
from train_distributed.federation.documents import certificates
from train_distributed.federation.documents.certificates import (
    serving,
    trust,
    write_certificate,
)
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.private_keys import (
    PRIVATE,
    read_private,
    read_public,
    write_party,
)
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.keys import FIRST_SERVER

ROOT = Path(__file__).parents[4]
FILLED_IN = {"sums", "rounds", "class_noise", "components"}  # by a public rule
FEW_SECONDS = 3.0  # of the processor; torch and timm alone take more


def test_join_makes_one_file_to_give_out(tmp_path: Path) -> None:
    Join(tmp_path / "me", "hospital-a", rows=50).run()
    party = Party.load(tmp_path / "me" / "hospital-a.party.json")
    keys = read_private(tmp_path / "me")
    assert (party.name, party.role, party.rows) == ("hospital-a", "user", 50)
    assert party.verifying == keys.public.verifying.hex()
    assert party.sealing == keys.public.sealing.hex()
    assert stat.S_IMODE((tmp_path / "me" / "private.json").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_party(tmp_path / "me")
    Join(tmp_path / "me", "hospital-a", rows=60).run()  # other rows, the same keys
    again = Party.load(tmp_path / "me" / "hospital-a.party.json")
    assert (again.rows, again.verifying) == (60, party.verifying)


def test_join_counts_the_training_rows(joined: Callable[..., list[Path]], tmp_path: Path) -> None:
    joined(1)
    Join(tmp_path / "user0", "other", embeddings=tmp_path / "user0" / "embeddings").run()
    assert Party.load(tmp_path / "user0" / "other.party.json").rows == 12


@pytest.mark.parametrize("field", ["name", "rows", "verifying", "sealing"])
def test_nobody_changes_or_borrows_a_party_file(field: str, tmp_path: Path) -> None:
    Join(tmp_path / "me", "me", rows=5).run()
    Join(tmp_path / "you", "you", rows=6).run()
    mine, path = tmp_path / "me" / "me.party.json", tmp_path / "you" / "you.party.json"
    changed = json.loads(path.read_text()) | {field: json.loads(mine.read_text())[field]}
    path.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="signature must be the party's own"):
        Party.load(path)


def test_init_writes_what_everybody_needs(initiated: Callable[..., Path]) -> None:
    home = initiated()
    fed = home / "fed"
    federation = Federation.load(fed / "federation.json")
    invitation = Invitation.read(fed / "invitation", federation.digest.hex()[:16])
    assert invitation.federation == federation
    assert invitation.address == "127.0.0.1:9092"
    assert invitation.agreed.read_bytes() == (home / "public.safetensors").read_bytes()
    assert federation.display_name(1) == "user 1 (hospital-1)"
    assert federation.display_name(FIRST_SERVER) == "operator"
    for number, folder in enumerate(["user0", "user1", "user2"]):
        assert invitation.identify(read_private(home / folder), home / folder) == number
    for secret in ("private.json", "tls/server.key"):
        assert stat.S_IMODE((fed / secret).stat().st_mode) == 0o600
    assert stat.S_IMODE(fed.stat().st_mode) == 0o700
    told = sorted(path.name for path in (fed / "invitation").iterdir())
    assert told == ["ca.pem", "federation.json", "operator.json", "transform.safetensors"]


def test_with_shares_everybody_gets_its_own_place(initiated: Callable[..., Path]) -> None:
    """No user is named in what all get."""
    home = initiated(users=3, servers=1)
    fed = home / "fed"
    federation = Federation.load(fed / "federation.json")
    assert (federation.enrolled, federation.users) == (3, {})
    assert federation.display_name(FIRST_SERVER + 1) == "computation server 1 (adder-1)"
    text = (fed / "invitation" / "federation.json").read_text()
    assert "hospital" not in text
    invitation = Invitation.read(fed / "invitation")
    for number in range(3):
        folder = home / f"user{number}"
        keys = read_private(folder)
        assert keys.public.verifying.hex() not in text
        own = invitation.placed(keys)
        assert own.identify(keys, folder) == number
        assert own.federation.digest == federation.digest
        assert own.federation.display_name(number) == f"user {number} (hospital-{number})"
    server = home / "server1"
    assert invitation.placed(read_private(server)).identify(read_private(server), server) == (
        FIRST_SERVER + 1
    )
    told = sorted(path.name for path in (fed / "invitation").iterdir())
    assert told == [
        *("ca.pem", "federation.json", "operator.json", "places", "transform.safetensors")
    ]


def test_shares_of_the_classes_are_agreed(initiated: Callable[..., Path]) -> None:
    options = {"prior": {"b": 0.2, "a": 0.7, "c": 0.1}}
    fed = initiated(options=options, method="softmax")
    terms = Federation.load(fed / "fed" / "federation.json").task
    assert terms["options"]["prior"] == [0.7, 0.2, 0.1]
    assert terms["options"]["l2_reg"] > 0  # of the public rule, so that all users train alike


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_rehearsal_says_what_is_agreed_on(
    joined: Callable[..., list[Path]], tmp_path: Path, unit: Literal["record", "user"]
) -> None:
    """Its promise needs no typing; two clips are of the two sums that it has played."""
    parties, transform = tuple(joined(3)), tmp_path / "public.safetensors"
    fitted = PublicTransform.load(transform)
    options = {} if unit == "record" else {"user_clip": (1.5, 2.5)}
    promise = Privacy(3.0, 1e-6, unit=unit)
    chosen = RunConfig("discriminant", options, promise, fitted.fitted_on, fitted.encoding)
    (tmp_path / "configuration.json").write_text(chosen.text())
    init = Init(
        tmp_path / "fed",
        parties,
        transform,
        ("localhost",),
        num_classes=3,
        config=tmp_path / "configuration.json",
    )
    for typed in ({"epsilon": 2.0}, {"unit": "user" if unit == "record" else "record"}):
        with pytest.raises(ValueError, match="as config says, or be left out, got"):
            replace(init, **typed).run()
    replace(init, epsilon=3.0, honest_fraction=0.75).run()
    task = Federation.load(tmp_path / "fed" / "federation.json").task
    assert (task["epsilon"], task["delta"], task["unit"]) == (3.0, 1e-6, unit)
    assert task["honest_fraction"] == 0.75
    assert task["options"]["sums"] == 2
    assert task["options"].get("user_clip") == (None if unit == "record" else [1.5, 2.5])


def test_the_file_of_the_documentation_is_taken(
    joined: Callable[..., list[Path]], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "methods.md").read_text("utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "c.json").write_text(block)
    Init(
        tmp_path / "fed",
        tuple(joined(3)),
        tmp_path / "public.safetensors",
        ("localhost",),
        class_names=("dog", "cat"),
        config=tmp_path / "c.json",
    ).run()
    task = Federation.load(tmp_path / "fed" / "federation.json").task
    assert (task["method"], task["options"]["l2_reg"]) == ("softmax", 0.1)
    assert task["options"]["prior"] == [0.3, 0.7]


def test_init_writes_all_or_nothing(joined: Callable[..., list[Path]], tmp_path: Path) -> None:
    files = tuple(joined(2))
    init = Init(tmp_path / "fed", files, tmp_path / "public.safetensors", ("sum.example.org",))
    with pytest.raises(ValueError, match="exactly one of class_names and num_classes"):
        init.run()
    with pytest.raises(ValueError, match="hosts must be names or addresses"):
        Init(init.folder, files, init.transform, ("Müller",), num_classes=3).run()
    with pytest.raises(ValueError, match=r"missing.safetensors must be a file"):
        Init(init.folder, files, tmp_path / "missing.safetensors", ("a",), num_classes=3).run()
    assert not init.folder.exists()


def test_a_transform_that_every_user_would_refuse_is_refused_at_once(
    joined: Callable[..., list[Path]], tmp_path: Path
) -> None:
    parties = joined(3)
    fitted = PublicTransform.load(tmp_path / "public.safetensors")
    replace(fitted, seen=None).save(tmp_path / "old.safetensors")
    init = Init(
        tmp_path / "fed",
        tuple(parties),
        tmp_path / "old.safetensors",
        hosts=("127.0.0.1",),
        num_classes=3,
    )
    with pytest.raises(ValueError, match="transform must say which rows it has seen"):
        init.run()
    assert not (tmp_path / "fed").exists()


def test_many_users_of_shares_are_clipped_unless_they_are_trusted(
    joined: Callable[..., list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("train_distributed.one_shot.request.MANY_USERS", 3)
    parties, transform = tuple(joined(3, 1)), tmp_path / "public.safetensors"

    def options_of(folder: str, parties: tuple[Path, ...], **settings: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"num_classes": 3, "epsilon": 5.0} | settings
        Init(tmp_path / folder, parties, transform, ("localhost",), **given).run()
        return Federation.load(tmp_path / folder / "federation.json").task["options"]

    norm = PublicTransform.load(transform).clip_norm
    clips = [round(norm * ROWS, 1), round(norm * ROWS**0.5, 1)]
    assert options_of("many", parties, protocol="shares")["user_clip"] == clips
    assert f"vectors are clipped to {clips[0]} and {clips[1]}," in capsys.readouterr().out
    assert options_of("trusted", parties, protocol="shares", trust_users=True).keys() == FILLED_IN
    assert options_of("one-server", parties[:3]).keys() == FILLED_IN
    assert "are clipped" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="trust_users must be left out with protocol secagg"):
        options_of("flag", parties[:3], trust_users=True)


def test_duplicates_are_named_by_their_files(
    joined: Callable[..., list[Path]], tmp_path: Path
) -> None:
    first, second = joined(2)
    Join(tmp_path / "user0", "again", rows=5).run()
    again = tmp_path / "user0" / "again.party.json"
    transform = tmp_path / "public.safetensors"
    for files, words in {
        (first, second, again): f"verifying key of its own, {first} and {again} share one",
        (first, first): "a file twice",
    }.items():
        with pytest.raises(ValueError, match=words):
            Init(tmp_path / "fed", files, transform, ("localhost",), num_classes=3).run()


def test_servers_must_fit_the_protocol(joined: Callable[..., list[Path]], tmp_path: Path) -> None:
    *users, server = joined(2, 1)
    transform = tmp_path / "public.safetensors"
    init = Init(tmp_path / "fed", (*users, server), transform, ("localhost",), num_classes=3)
    with pytest.raises(ValueError, match="of secagg, must be 0, got 1"):
        init.run()
    with pytest.raises(ValueError, match="of shares, must be 1, got 0"):
        Init(init.folder, tuple(users), transform, ("a",), num_classes=3, protocol="shares").run()


def test_a_party_finds_out_what_does_not_fit(initiated: Callable[..., Path]) -> None:
    home = initiated()
    folder = home / "fed" / "invitation"
    invitation = Invitation.read(folder)
    Join(home / "stranger", "stranger", rows=12).run()
    stranger = home / "stranger"
    with pytest.raises(ValueError, match=r"keys in .*stranger must be registered in"):
        invitation.identify(read_private(stranger), stranger)
    with pytest.raises(ValueError, match="is the operator's: leave out invitation"):
        invitation.identify(read_private(home / "fed"), home / "fed")
    with pytest.raises(ValueError, match="must have the digest that you were told, 00ff"):
        Invitation.read(folder, 4 * "00ff")
    changed = json.loads((folder / "federation.json").read_text()) | {"minimum": 2}
    (folder / "federation.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"digest that operator.json says"):
        Invitation.read(folder)


def test_keys_are_encrypted_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, secret, other = tmp_path / "me", tmp_path / "secret", tmp_path / "other"
    secret.write_text("a long passphrase\n")
    other.write_text("another")
    (tmp_path / "empty").touch()
    Join(me, "hospital-a", rows=50, passphrase_file=secret).run()
    keys, text = read_private(me, secret), (me / PRIVATE).read_text()
    assert keys.signing.hex() not in text
    assert keys.opening.hex() not in text
    assert keys.public == read_public(me)  # without a passphrase
    Join(me, "hospital-a", rows=60, passphrase_file=secret).run()
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
    for changed, words in (
        (
            {"public": stated["public"] | {"verifying": "00" * 32}},
            "must hold the private keys of its",
        ),
        ({"opening": stated["signing"]}, "must hold the private keys of its public ones"),
        ({"signing": keys.signing.hex()}, "passphrase must be the one that encrypts"),
    ):
        (me / PRIVATE).write_text(json.dumps(stated | changed))
        with pytest.raises(ValueError, match=words):
            read_private(me, secret)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_keys_are_their_owners_alone(mode: int, tmp_path: Path) -> None:
    write_party(tmp_path)
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
def test_dates_are_named(
    days: int, words: str, initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_files_of_another_certificate_are_named(initiated: Callable[..., Path]) -> None:
    home = initiated()
    tls, agreed, other = (
        home / "fed" / "tls",
        home / "fed" / "invitation" / "ca.pem",
        home / "other",
    )
    other.mkdir()
    write_certificate(other, ["127.0.0.1"])
    with pytest.raises(FileExistsError):
        write_certificate(other, ["127.0.0.1"])
    shutil.copyfile(other / "server.key", tls / "server.key")
    with pytest.raises(ValueError, match=r"server.key must be the key of server.pem"):
        serving(tls, agreed)
    shutil.copyfile(other / "server.pem", tls / "server.pem")
    with pytest.raises(ValueError, match=r"server.pem must be agreed on in .*ca.pem, is not"):
        serving(tls, agreed)


def test_no_public_authority_is_trusted_beside_what_was_agreed_on(tmp_path: Path) -> None:
    write_certificate(tmp_path, ["127.0.0.1"])
    assert len(trust(tmp_path / "server.pem").get_ca_certs()) <= 1


def test_deadlines_are_agreed_on(
    joined: Callable[..., list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init = Init(
        tmp_path / "fed",
        tuple(joined(3)),
        tmp_path / "public.safetensors",
        ("localhost",),
        num_classes=3,
        deadlines=("come=3600", "answer=0.5"),
    )
    init.run()
    federation = Federation.load(tmp_path / "fed" / "federation.json")
    assert federation.deadlines == Deadlines(come=3600.0, answer=0.5)
    words = "parties have 3600 s to come, 0.5 s to answer each question and 120 s to send an answer"
    assert words in capsys.readouterr().out
    Status(tmp_path / "fed").run()
    assert words in capsys.readouterr().out
    for given, refused in {
        "come=soon": "deadlines: come must be a number, got soon",
        "comes=1": "deadlines: comes must be left out, got a value",
        "come=nan": "deadlines: come must be a number >= 0",
        "come": "deadlines: come must be a number, got ",
        "answer=-1": "deadlines: answer must be a number >= 0",
    }.items():
        with pytest.raises(ValueError, match=refused):
            replace(init, folder=tmp_path / "no", deadlines=(given,)).run()
    with pytest.raises(ValueError, match="deadlines must be left out with protocol shares"):
        replace(init, protocol="shares").run()


def test_a_server_has_tls_if_the_federation_does(initiated: Callable[..., Path]) -> None:
    home = initiated(users=3, servers=1)
    agreed = (home / "fed" / "invitation" / "ca.pem").read_text()
    own = [(home / name / "tls" / "server.pem").read_text() for name in ("fed", "server1")]
    assert agreed == "".join(own)
    with pytest.raises(ValueError, match="server adder-1 must join --server without --hosts"):
        Init(
            home / "proxied",
            (*home.glob("*/*.party.json"),),
            home / "public.safetensors",
            ("localhost",),
            num_classes=3,
            protocol="shares",
            behind_proxy=True,
        ).run()
