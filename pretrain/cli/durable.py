"""Waiting until directories have reached the disk."""

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Returns once the directory's entries have reached the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Returns once all files below a directory, and their names, have reached the disk."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))
