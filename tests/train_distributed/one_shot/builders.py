"""Methods, rows and findings that several tests are about."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.statistic import Chunk
from train_distributed.privacy import mechanism

METHODS_OF_CLASSES = [name for name, entry in METHODS.items() if entry.classes]
SUMS = [name for name in METHODS_OF_CLASSES if METHODS[name].sums_rows]


def made(name: str, transform: PublicTransform, num_classes: int, **options: Any) -> Any:
    """A method whose statistic has the fields of its own kind; heads are regularised by 1."""
    own = {} if METHODS[name].sums_rows else {"l2_reg": 1.0}
    return build_method(name, transform, num_classes, own | options)


def one_user(x: Tensor, y: Tensor) -> Chunk:
    """All of these rows as one user's."""
    return Chunk(torch.zeros(1, dtype=torch.int64), x[None], y[None], torch.tensor([len(y)]))


def embedded(
    x: np.ndarray, labels: np.ndarray, classes: int, *, users: Any = None, test: Any = 0, **own: Any
) -> EmbeddingSet:
    """Rows of so many public classes: of one user where none are named, and training rows."""
    given = {
        "embeddings": x.astype(np.float32),
        "labels": labels,
        "users": np.zeros(len(x), np.int64) if users is None else users,
        "split": np.broadcast_to(np.asarray(test, np.uint8), len(x)).copy(),
        "meta": {"class_names": [chr(97 + k) for k in range(classes)]},
    }
    return EmbeddingSet(**given | own)


def simulated(data: Any, method: Any, epsilon: float, seed: int = 0, **own: Any) -> Release:
    """A release with noise of this seed, in floating point."""
    draw = torch.Generator().manual_seed(seed)
    return release(data, method, Privacy(epsilon, 1e-5), noise="float", generator=draw, **own)


def several(k: int) -> Tensor:
    """Findings 0 to K from the first on, the same from the last on, and all known or unknown."""
    first = (torch.arange(k) < torch.arange(k + 1)[:, None]).to(torch.int8)
    known = torch.cat([first, first.flip(1)])
    return torch.cat([known, known.where(known == 1, -1)]).unique(dim=0)


@contextmanager
def events() -> Iterator[list[str]]:
    """Reservations and draws in their order; `append` is what `reserve` is given."""
    seen, right, right_float = [], mechanism.add_noise, mechanism.gaussian
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "add_noise", lambda *of: (seen.append("draw"), right(*of))[1])
        patch.setattr(mechanism, "gaussian", lambda *of: (seen.append("draw"), right_float(*of))[1])
        yield seen


def refused_early(refusal: Any, data: Any, method: str, **given: Any) -> None:
    """Neither reserved nor drawn."""
    given |= {"privacy": Privacy(1.0, 1e-5, 1.0)}
    with events() as seen, refusal:
        release(data, method, reserve=lambda _: seen.append("reserve"), **given)
    assert not seen
