"""How a model was made and how to check it: command, configuration, hashes, versions."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pretrain.cli.provenance import public_argument
from train_distributed.released.card.content import (
    Block,
    Code,
    Pairs,
    Section,
    Table,
    Words,
)

CHUNK = 1 << 20  # bytes hashed at a time


def reproduce_section(
    report: Mapping[str, Any], command: str | None, hashes: Mapping[str, str]
) -> Section:
    """Command, configuration, files and versions.

    Args:
        report: of the release.
        command: that made it, if it is known.
        hashes: file name -> SHA-256.
    """
    blocks: list[Block] = []
    if command is not None:
        blocks += [Words("The command:"), Code(command)]
    if report.get("noise") == "discrete":
        blocks.append(
            Words(
                "Its noise came from the operating system and left no seed: the same command makes "
                "another model of the same promise."
            )
        )
    configuration = dict(report.get("configuration") or {})
    if configuration.get("transform") is not None:
        configuration.pop("transform_options", None)  # the file has its own
    if settings := tuple(_settings(configuration)):
        blocks.append(Table("Every setting", ("setting", "value"), settings, numeric=False))
    files = tuple((name, digest) for name, digest in hashes.items())
    blocks.append(Table("Files, by SHA-256", ("file", "hash"), files, numeric=False))
    if isinstance(versions := report.get("versions"), dict):
        blocks.append(Pairs(tuple((str(name), str(value)) for name, value in versions.items())))
    return Section("How to reproduce it", tuple(blocks))


def sha256(path: Path) -> str:
    """Of a file of any length, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
    return digest.hexdigest()


def _settings(configuration: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, str]]:
    for name, value in configuration.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{of}{name}.")
        elif value is not None:
            yield f"{of}{name}", _public(value)


def _public(value: Any) -> str:
    """As text; of a path outside the working directory only its name, as in a provenance."""
    return public_argument(value) if isinstance(value, str) else str(value)
