"""A window as a file: what aggregators need to serve, and users and the operator to reach them.

An aggregator gets `window.json` and `roll` (all users' keys, rows and names); a user the first.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pretrain.cli.output import new_file
from train_distributed.federation.documents.document import (
    LARGE,
    SIGNATURE,
    Document,
    check_signature,
    read_document,
    with_signature,
)
from train_distributed.federation.documents.invitation import ADDRESS
from train_distributed.federation.documents.party import KEY, KEY_RULE, MOST_ROWS
from train_distributed.federation.documents.place import ROLL
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys, PublicKeys, check_order
from train_distributed.secure_sum.roll import Roll
from train_distributed.secure_sum.window import AGGREGATORS, LATEST, Window, WindowWithKeys

WINDOW = "window.json"
WINDOWS = "windows"  # where the operator's folder keeps what it has handed out
OPENED = ".opened"  # replaces the suffix of one whose sum was opened
_NUMBERS = {
    "dimension": 2**28,
    "minimum": FIRST_SERVER,
    "opens": LATEST,
    "closes": LATEST,
}
_CONTEXT = re.compile("([0-9a-f]{2}){0,1024}")
Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class WindowFile:
    """Agreed window, and addresses of the aggregators."""

    window: Window
    addresses: Mapping[int, Address]

    @staticmethod
    def load(path: Path, *, signed: bool = False) -> "WindowFile":
        """Reads the JSON file.

        Args:
            path: of the file.
            signed: whether the operator's aggregator must have signed it, as where it was fetched.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document = read_document(path, LARGE)
        fields = [*_NUMBERS, "noise_std", "nonce", "roll", "sizes", "context", "aggregators"]
        document.only([*fields, *([SIGNATURE] if signed else ())], [SIGNATURE])
        aggregators = document.list("aggregators", AGGREGATORS)
        parts = [aggregators.part(place) for place in aggregators.values]
        try:
            window = Window(
                **{n: document.whole(n, 0, most) for n, most in _NUMBERS.items()},
                noise_std=document.number("noise_std", 0, math.inf),
                nonce=bytes.fromhex(document.text("nonce", KEY, KEY_RULE)),
                roll=bytes.fromhex(document.text("roll", KEY, KEY_RULE)),
                sizes=_sizes(document.part("sizes")),
                servers=dict(enumerate(map(_keys, parts), FIRST_SERVER)),
                context=bytes.fromhex(document.text("context", _CONTEXT, "hexadecimal")),
            )
        except ValueError as error:
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{path}: {error}") from error
        if SIGNATURE in document.values:
            leader = window.servers[FIRST_SERVER].verifying.hex()
            check_signature(document, WINDOW, leader, "the operator's")
        return WindowFile(
            window=window, addresses=dict(enumerate(map(_address, parts), FIRST_SERVER))
        )

    def save(self, path: Path, keys: PrivateKeys | None = None) -> None:
        """Writes the JSON file, whole or not at all, signed with the operator's keys if given."""
        window = self.window
        aggregators = [
            {
                "verifying": keys.verifying.hex(),
                "sealing": keys.sealing.hex(),
                "address": "{}:{}".format(*self.addresses[aggregator]),
            }
            for aggregator, keys in sorted(window.servers.items())
        ]
        stated = {name: getattr(window, name) for name in (*_NUMBERS, "noise_std")}
        stated |= {name: getattr(window, name).hex() for name in ("nonce", "roll", "context")}
        stated |= {"sizes": {str(rows): list(of) for rows, of in window.sizes.items()}}
        stated |= {"aggregators": aggregators}
        if keys is not None:
            stated = with_signature(stated, WINDOW, keys.signing)
        with new_file(path) as partial:
            partial.write_text(json.dumps(stated, indent=1) + "\n")

    def enrolled(self, folder: Path) -> WindowWithKeys:
        """The window with the roll that lies beside the file.

        Raises:
            ValueError: another roll, or none.
        """
        return WindowWithKeys(self.window, Roll.read(folder / ROLL))


def keep_window(folder: Path, file: WindowFile) -> None:
    """Notes in an operator's folder that it has handed out this window."""
    (folder / WINDOWS).mkdir(exist_ok=True)
    file.save(_kept(folder, file.window))


def keep_opened(folder: Path, window: Window) -> None:
    """Notes in an operator's folder that the sum of this window was opened."""
    (folder / WINDOWS).mkdir(exist_ok=True)
    _kept(folder, window).with_suffix(OPENED).touch()


def kept_windows(folder: Path) -> Iterator[tuple[Window, bool]]:
    """The windows that an operator's folder has handed out, and whether their sums were opened."""
    for path in sorted((folder / WINDOWS).glob("*.json")):
        yield WindowFile.load(path).window, path.with_suffix(OPENED).exists()


def split_address(text: str) -> Address:
    """Host and port of HOST:PORT.

    Raises:
        ValueError: something else.
    """
    host, _, port = text.rpartition(":")
    if not ADDRESS.fullmatch(text) or not 0 < int(port) < 2**16:
        raise ValueError(f"address must be HOST:PORT, got {text[:300]!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _kept(folder: Path, window: Window) -> Path:
    return folder / WINDOWS / f"{window.digest.hex()[:16]}.json"


def _sizes(part: Document) -> dict[int, tuple[int, int]]:
    found = dict[int, tuple[int, int]]()
    for rows, name in part.numbers(MOST_ROWS):
        pair = part.list(name, 2)
        pair.only(["0", "1"])
        found[rows] = pair.whole("0", 1, FIRST_SERVER), pair.whole("1", 1, FIRST_SERVER)
    return found


def _address(part: Document) -> Address:
    return split_address(part.text("address", ADDRESS, "HOST:PORT"))


def _keys(part: Document) -> PublicKeys:
    part.only(["verifying", "sealing", "address"])
    found = (bytes.fromhex(part.text(n, KEY, KEY_RULE)) for n in ("verifying", "sealing"))
    keys = PublicKeys(*found)
    check_order(keys.sealing)
    return keys
