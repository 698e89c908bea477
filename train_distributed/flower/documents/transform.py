"""The public transform that a federation agrees on, by the hash of its file."""

import hashlib
from pathlib import Path

from embed import PublicTransform
from train_distributed.flower.documents.document import LARGE, load_file, read_file


def read_transform(path: Path) -> PublicTransform:
    """Reads the file of a public transform.

    Raises:
        ValueError: naming the file, whatever it holds.
    """
    return load_file(path, PublicTransform.load, "a public transform")


def transform_hash(path: Path) -> str:
    """SHA-256 of a transform's file, hexadecimal."""
    return hashlib.sha256(read_file(path, LARGE)).hexdigest()


def check_transform(path: Path, agreed: str) -> None:
    """Raises ValueError unless the file is the one that was agreed on."""
    if transform_hash(path) != agreed:
        raise ValueError(
            f"transform must have SHA-256 {agreed} as the federation says, got "
            f"{transform_hash(path)}: {path}"
        )
