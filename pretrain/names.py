"""Names of images and users as one array of bytes: as many as there are rows, and no objects."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def encode_names(names: Sequence[str]) -> np.ndarray:
    r"""(N,) bytes of one width, UTF-8; what a file system gave that is no UTF-8 stays as it is.

    Raises:
        ValueError: a name ends with a null character, which such an array would drop.

    Examples:
        >>> encode_names(["cat/1.png", "ü"])
        array([b'cat/1.png', b'\xc3\xbc'], dtype='|S9')
    """
    if any(name.endswith("\0") for name in names):
        raise ValueError("names must not end with a null character, got one that does")
    return np.array([name.encode("utf-8", "surrogateescape") for name in names], "S")


def decode_name(name: Any) -> str:
    """One entry of `encode_names` as it was.

    Examples:
        >>> decode_name(encode_names(["ü"])[0])
        'ü'
    """
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
