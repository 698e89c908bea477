"""Pictures that are files of their own, found by a name below a folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pretrain.intake.decode import UnreadableImage
from pretrain.names import decode_name


def file_reader(folder: Path, names: np.ndarray) -> Callable[[np.ndarray], Iterator[bytes]]:
    """Reads the files of some rows, one after the other.

    Args:
        folder: below which they are; a name may be absolute as well.
        names: (N,) bytes.
    """

    def fetch(rows: np.ndarray) -> Iterator[bytes]:
        for row in rows.tolist():
            path = folder / decode_name(names[row])
            try:
                yield path.read_bytes()
            except (OSError, ValueError) as error:  # a name may hold a null character
                reason = getattr(error, "strerror", None) or error
                raise UnreadableImage(f"{path} must be a readable image, got: {reason}") from error

    return fetch
