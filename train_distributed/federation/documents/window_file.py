"""A window as a file: what aggregators need to serve, and users and the operator to reach them.

An aggregator gets `window.json` and `roll` (all users' keys, rows and names); a user the first.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Self

import msgspec
from msgspec import Meta

from train_distributed.federation.documents.document import (
    ADDRESS,
    LARGE,
    Bytes,
    Count,
    Document,
    HostPort,
    Key,
    Rows,
    Signature,
    Signed,
    read_as,
)
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.place import ROLL
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.roll import Roll
from train_distributed.secure_sum.window import LATEST, SecondSum, Window, WindowWithKeys

WINDOW = "window.json"
WINDOWS = "windows"  # where the operator's folder keeps what it has handed out
OPENED = ".opened"  # replaces the suffix of one whose sum was opened
_NUMBERS = ("dimension", "minimum", "opens", "closes", "noise_std")
Address = tuple[str, int]
Seconds = Annotated[int, Meta(ge=0, le=LATEST)]


class Aggregator(Keys, frozen=True, kw_only=True):
    """Keys and address of an aggregator."""

    address: HostPort

    def __post_init__(self) -> None:
        super().__post_init__()
        split_address(self.address)


class Second(Document, frozen=True, kw_only=True):
    """Length, noise and bounds of the second sum, as `SecondSum`."""

    dimension: int
    noise_std: float
    steps: dict[Rows, Count]


class WindowFile(Signed, frozen=True, kw_only=True, dict=True):
    """Agreed window, and addresses of the aggregators.

    Raises:
        ValueError: fields that no window can have.
    """

    kind: ClassVar[str] = WINDOW
    dimension: int
    minimum: int
    opens: Seconds
    closes: Seconds
    noise_std: float
    nonce: Key
    roll: Key
    sizes: dict[Rows, tuple[Count, Count]]
    context: Bytes
    aggregators: tuple[Aggregator, Aggregator]
    second: Second | None = None
    signature: Signature = ""

    def __post_init__(self) -> None:
        _ = self.window

    @staticmethod
    def of(window: Window, addresses: Mapping[int, Address]) -> "WindowFile":
        """The file of a window whose aggregators have these hosts and ports."""
        return WindowFile(
            **{name: getattr(window, name) for name in _NUMBERS},
            nonce=window.nonce.hex(),
            roll=window.roll.hex(),
            context=window.context.hex(),
            sizes=dict(window.sizes),
            second=None
            if (second := window.second) is None
            else Second(
                dimension=second.dimension, noise_std=second.noise_std, steps=dict(second.steps)
            ),
            aggregators=tuple(
                Aggregator(
                    verifying=keys.verifying.hex(),
                    sealing=keys.sealing.hex(),
                    address="{}:{}".format(*addresses[aggregator]),
                )
                for aggregator, keys in sorted(window.servers.items())
            ),  # pyright: ignore[reportArgumentType]
        )

    @cached_property
    def window(self) -> Window:
        """The window that the file states."""
        return Window(
            **{name: getattr(self, name) for name in _NUMBERS},
            nonce=bytes.fromhex(self.nonce),
            roll=bytes.fromhex(self.roll),
            context=bytes.fromhex(self.context),
            sizes=self.sizes,
            servers={n: each.public for n, each in enumerate(self.aggregators, FIRST_SERVER)},
            second=self.second and SecondSum(**msgspec.structs.asdict(self.second)),
        )

    @property
    def addresses(self) -> dict[int, Address]:
        """Aggregator -> host and port."""
        pairs = enumerate(self.aggregators, FIRST_SERVER)
        return {number: split_address(each.address) for number, each in pairs}

    @classmethod
    def load(cls, path: Path, *, signed: bool = False) -> Self:
        """Reads the JSON file.

        Args:
            path: of the file.
            signed: whether the operator's aggregator must have signed it, as where it was fetched.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        found = read_as(path, cls, LARGE)
        if signed or found.signature:
            found.check_signature(path, found.aggregators[0].verifying, "the operator's")
        return found

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
