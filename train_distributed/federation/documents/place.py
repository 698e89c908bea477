"""A user's line on the roll, with the proof of its place: one small JSON file."""

from pathlib import Path
from typing import Annotated

import msgspec

from train_distributed.federation.documents.document import (
    SMALL,
    Document,
    Key,
    Name,
    Rows,
    UserNumber,
    read_as,
)
from train_distributed.federation.documents.federation import Federation
from train_distributed.secure_sum.roll import Roll, User

PLACES, PLACE, ROLL = "places", "place.json", "roll"


class Place(Document, frozen=True, kw_only=True):
    """The file's fields."""

    number: UserNumber
    name: Name
    rows: Rows
    proof: Annotated[tuple[Key, ...], msgspec.Meta(max_length=64)]

    @staticmethod
    def of(number: int, user: User) -> "Place":
        """The place of a user whose line has its proof."""
        proof = tuple(each.hex() for each in user.proof)
        return Place(number=number, name=user.name, rows=user.rows, proof=proof)


def place_path(folder: Path, key: bytes) -> Path:
    """File of the user with this key in a folder of places."""
    return folder / f"{key.hex()[:32]}.json"


def at_place(federation: Federation, path: Path, key: bytes) -> Federation:
    """The federation as the user with this key knows it.

    Raises:
        ValueError: naming field, rule and value, or the key is not at this place of the roll.
    """
    assert federation.roll is not None
    place = read_as(path, Place, SMALL)
    proof = tuple(map(bytes.fromhex, place.proof))
    user = User(key=key, rows=place.rows, name=place.name, proof=proof)
    root, agreed = user.root(place.number, federation.enrolled), federation.roll
    if root is None or root.hex() != agreed.root or user.rows not in agreed.sizes:
        raise ValueError(
            f"{path} must prove that key {key.hex()[:16]}… is user {place.number} of federation "
            f"{federation.digest.hex()[:16]}, does not"
        )
    return federation.knowing({place.number: user})


def with_roll(federation: Federation, folder: Path) -> Federation:
    """The federation with all users on the roll in the operator's folder; others as they are.

    Raises:
        ValueError: another roll, or a key that is on it twice.
    """
    if federation.roll is None:
        return federation
    roll = Roll.read(folder / ROLL)
    servers = [keys.public.verifying for keys in federation.servers]
    roll.check(bytes.fromhex(federation.roll.root), federation.roll.sizes, servers)
    return federation.knowing(roll)
