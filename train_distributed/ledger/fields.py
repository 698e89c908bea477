"""Fields of a ledger's entry that describe the rows and the noise."""

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from train_distributed.privacy.composition import COST_ROUND_UP, Cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embed.store import EmbeddingSet
    from train_distributed.privacy.guarantee import Guarantee
    from train_distributed.privacy.integer_gaussian import DiscreteGaussianMechanism

Reserve = Callable[[Mapping[str, Any]], None]  # of fields of an entry; raises to stop a release


def hash_of(values: "NDArray[Any]") -> str:
    """SHA-256 of an array's values, hexadecimal."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def row_fields(embeddings: "EmbeddingSet", part: str) -> dict[str, str]:
    """Fields of the rows.

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
    """Fields of the noise of sums in floating point, or of sums without noise.

    Args:
        guarantee: of a sum; where several share the promise, of any of them: μ² is that of all.
    """
    return {
        "noise": "float" if guarantee.privacy.private else "none",
        "sigma": guarantee.noise_multiplier * guarantee.sensitivity,
        "sensitivity": guarantee.sensitivity,
        "compositions": guarantee.compositions,
    }


def gaussian_fields(*planned: "DiscreteGaussianMechanism") -> dict[str, Any]:
    """Fields of the noise of a sum of integers, or of several sums that are one entry.

    Several are stated as the one Gaussian that they are together: noise 1/μ at sensitivity 1.
    """
    if len(planned) == 1:
        (only,) = planned
        noise = {"sigma": only.certain_std, "sensitivity": only.charged_sensitivity}
        return {"noise": "discrete", "zeta": only.zeta} | noise
    together = Cost.of(each.cost for each in planned)
    noise = {"sigma": 1 / (math.sqrt(together.squared_mu) * COST_ROUND_UP), "sensitivity": 1.0}
    return {"noise": "discrete", "zeta": together.zeta} | noise
