"""Names of images as one array of bytes, without an object per name."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def encode_names(names: Sequence[str]) -> np.ndarray:
    r"""(N,) bytes of one width, UTF-8; file names that are not UTF-8 keep their bytes.

    Raises:
        ValueError: a name ends with a null character, which the array would drop.

    Examples:
        >>> encode_names(["cat/1.png", "ü"])
        array([b'cat/1.png', b'\xc3\xbc'], dtype='|S9')
    """
    if any(name.endswith("\0") for name in names):
        raise ValueError("names must not end with a null character, got one that does")
    return np.array([name.encode("utf-8", "surrogateescape") for name in names], "S")


def decode_name(name: Any) -> str:
    """Decodes one entry of `encode_names`.

    Examples:
        >>> decode_name(encode_names(["ü"])[0])
        'ü'
    """
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
