"""Random sparsification: the messages of eq. (20) of Zhang et al. 2024.

W^S_i = W_i / ρ with probability ρ, else 0; its mean is W_i. The receiver learns *which* parameters
were sent, and so their exact values: an attacker that reads the zeros as values fools itself, and
ours does not (`Sparse.known`).
"""

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrain import check
from train_distributed.privacy import float_noise

HEADER = struct.Struct("<IIf")  # m, number of values, ρ as sent
VALUE, INDEX = np.dtype("<f4"), np.dtype("<u4")


@dataclass(frozen=True)
class Sparse:
    """Vector as the receiver of a message reads it; entries may be missing."""

    values: Tensor  # (m,) float64, W / ρ where sent, else 0
    known: Tensor  # (m,) bool, which were sent
    keep: float  # ρ

    @property
    def original(self) -> Tensor:
        """(m,) float64: W itself where sent, 0 elsewhere."""
        return self.values * self.keep


def sparsify(values: Tensor, keep: float, generator: torch.Generator | None) -> bytes:
    """Draws what is kept and writes the message; indices or a bitmap, whichever is shorter.

    Args:
        values: (m,) float, finite.
        keep: ρ in [0, 1]; at 0 nothing is sent.
        generator: None draws from the operating system.

    Raises:
        ValueError: ρ outside [0, 1].
    """
    check.within("[0, 1]", rho=keep)
    sent = (float_noise.uniform(tuple(values.shape), generator) < keep).numpy()
    scaled = values.double().numpy()[sent] / (keep or 1.0)
    header = HEADER.pack(len(values), len(scaled), keep)
    return header + _places(sent) + scaled.astype(VALUE).tobytes()


def read_sparse(message: bytes) -> Sparse:
    """Reads a message of `sparsify`.

    Raises:
        ValueError: a message that is not one.
    """
    check.at_least(HEADER.size, bytes_of_message=len(message))
    count, kept, keep = HEADER.unpack_from(message)
    places = min(kept * INDEX.itemsize, math.ceil(count / 8))
    expected = HEADER.size + places + kept * VALUE.itemsize
    check.byte_length(expected, message=message)
    check.at_most(count, number_of_values=kept)
    octets = np.frombuffer(message, np.uint8, places, HEADER.size)
    known = np.zeros(count, bool)
    if kept * INDEX.itemsize < math.ceil(count / 8):
        indices = octets.view(INDEX)
        check.at_most(count - 1, index=int(indices.max(initial=0)))
        known[indices] = True
    else:
        known = np.unpackbits(octets, count=count).astype(bool)
    check.equal(kept, number_of_indices=int(known.sum()))
    values = np.zeros(count)
    values[known] = np.frombuffer(message, VALUE, kept, HEADER.size + places)
    return Sparse(torch.from_numpy(values), torch.from_numpy(known), keep)


def _places(sent: NDArray[np.bool_]) -> bytes:
    indices = np.flatnonzero(sent).astype(INDEX)
    bitmap = math.ceil(len(sent) / 8)
    return indices.tobytes() if indices.nbytes < bitmap else np.packbits(sent).tobytes()
