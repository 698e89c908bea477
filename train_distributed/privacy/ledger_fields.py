"""What an entry of a ledger says of the rows and of the noise, by whoever knows them."""

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embed.store import EmbeddingSet
    from train_distributed.privacy.guarantee import Guarantee
    from train_distributed.privacy.integer_gaussian import IntegerRelease

Reserve = Callable[[Mapping[str, Any]], None]  # of fields of an entry; raises to stop a release


def hash_of(values: "NDArray[Any]") -> str:
    """SHA-256 of an array's values, hexadecimal."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def row_fields(embeddings: "EmbeddingSet", part: str) -> dict[str, str]:
    """What an entry says of the rows it is about.

    Args:
        embeddings: the set.
        part: which of its rows: "train", "evaluation", or "" for all. Parts are disjoint.
    """
    users = embeddings.users
    images = embeddings.meta.get("data_hash")
    return {
        "data": embeddings.content_hash(),
        "part": part,
        "split": hash_of(embeddings.split),
        "users": "" if users is None else hash_of(users),
        "images": images if isinstance(images, str) else "",
    }


def simulated_fields(guarantee: "Guarantee") -> dict[str, Any]:
    """What an entry says of the noise of a sum in floating point, or of a sum without noise."""
    return {
        "noise": "float" if guarantee.privacy.private else "none",
        "sigma": guarantee.noise_multiplier * guarantee.sensitivity,
        "sensitivity": guarantee.sensitivity,
        "compositions": guarantee.compositions,
    }


def gaussian_fields(planned: "IntegerRelease") -> dict[str, Any]:
    """What an entry says of the noise of a sum of integers."""
    return {
        "noise": "discrete",
        "sigma": planned.certain_std,
        "sensitivity": planned.charged_sensitivity,
        "zeta": planned.zeta,
    }
