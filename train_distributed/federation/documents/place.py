"""A user's line on the roll, with the proof of its place: one small JSON file."""

import json
from dataclasses import replace
from pathlib import Path

from pretrain.cli.output import new_file
from train_distributed.federation.documents.document import read_document
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import KEY, KEY_RULE, MOST_ROWS, NAME, NAME_RULE
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.roll import Roll, User

PLACES, PLACE, ROLL = "places", "place.json", "roll"


def place_path(folder: Path, key: bytes) -> Path:
    """File of the user with this key in a folder of places."""
    return folder / f"{key.hex()[:32]}.json"


def place_text(number: int, user: User) -> str:
    """The file's content."""
    proof = [each.hex() for each in user.proof]
    stated = {"number": number, "name": user.name, "rows": user.rows, "proof": proof}
    return json.dumps(stated, indent=1) + "\n"


def write_place(path: Path, number: int, user: User) -> None:
    """Writes the file, whole or not at all."""
    with new_file(path) as partial:
        partial.write_text(place_text(number, user))


def at_place(federation: Federation, path: Path, key: bytes) -> Federation:
    """The federation as the user with this key knows it.

    Raises:
        ValueError: naming field, rule and value, or the key is not at this place of the roll.
    """
    assert federation.roll is not None
    document = read_document(path)
    document.only(["number", "name", "rows", "proof"])
    proof = document.list("proof", 64)
    number = document.whole("number", 0, FIRST_SERVER - 1)
    user = User(
        key=key,
        rows=document.whole("rows", 1, MOST_ROWS),
        name=document.text("name", NAME, NAME_RULE),
        proof=tuple(bytes.fromhex(proof.text(n, KEY, KEY_RULE)) for n in proof.values),
    )
    root, agreed = user.root(number, federation.enrolled), federation.roll
    if root is None or root.hex() != agreed.root or user.rows not in agreed.sizes:
        raise ValueError(
            f"{path} must prove that key {key.hex()[:16]}… is user {number} of federation "
            f"{federation.digest.hex()[:16]}, does not"
        )
    return replace(federation, known={number: user})


def with_roll(federation: Federation, folder: Path) -> Federation:
    """The federation with all users on the roll in the operator's folder; others as they are.

    Raises:
        ValueError: another roll, or a key that is on it twice.
    """
    if federation.roll is None:
        return federation
    roll = Roll.read(folder / ROLL)
    servers = [bytes.fromhex(keys["verifying"]) for keys in federation.servers]
    roll.check(bytes.fromhex(federation.roll.root), federation.roll.sizes, servers)
    return replace(federation, known=roll)
