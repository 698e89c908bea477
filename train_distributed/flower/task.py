"""What a federation computes: one private model, from what every user submits to the release."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from train_distributed import accounting
from train_distributed.flower.federation import Federation
from train_distributed.guarantee import Guarantee
from train_distributed.methods import Method, build_method
from train_distributed.partition import split
from train_distributed.privacy import Privacy
from train_distributed.release import Release, suitability, versions
from train_distributed.secure_sum import NoiseSampler, add_noise, discrete_gaussian
from train_distributed.secure_sum.opening import Opened
from train_distributed.summation import Integers
from train_distributed.users import EmbeddingUsers

PROMISE = ("epsilon", "delta", "honest_fraction", "unit", "group_size")  # fields of a Privacy


@dataclass(frozen=True)
class ModelTask:
    """The federation's `task`, made from public numbers and the public transform alone."""

    federation: Federation
    transform: PublicTransform
    method: Method
    guarantee: Guarantee
    integers: Integers

    @staticmethod
    def of(federation: Federation, transform: Path) -> "ModelTask":
        """Reads the task.

        Args:
            federation: its `task` holds method, options, num_classes, sizes (rows of each user),
                epsilon, delta, honest_fraction, unit, group_size, and transform (SHA-256 of the
                file).
            transform: the file of the public transform.

        Raises:
            ValueError: a field missing or out of range, or another transform than was agreed.
        """
        task = federation.task
        check_transform(transform, str(task.get("transform")))
        loaded = PublicTransform.load(transform)
        try:
            sizes = _sizes([task["sizes"][str(user)] for user in sorted(federation.users)])
            method = build_method(
                task["method"], loaded, task["num_classes"], dict(task["options"])
            )
            privacy = Privacy(*(task[name] for name in PROMISE))
            privacy.validate()
        except KeyError as error:
            raise ValueError(f"task must hold {error}, got {sorted(task)}") from error
        except TypeError as error:
            raise ValueError(f"task must hold what `agree` writes, got {task}: {error}") from error
        if not privacy.private:
            raise ValueError(f"epsilon must be finite in a federation, got {privacy.epsilon}")
        guarantee = Guarantee.of(sizes, method, privacy, federation.minimum)
        integers = Integers.of(method, guarantee, sizes)
        if federation.dimension != method.dimension:
            raise ValueError(
                f"dimension must be the method's {method.dimension}, got {federation.dimension}"
            )
        return ModelTask(federation, loaded, method, guarantee, integers)

    def encoded(self, identity: int, embeddings: EmbeddingSet) -> NDArray[np.uint64]:
        """Trains on a user's own rows: what it submits, (d,) uint64, before its noise.

        Raises:
            ValueError: not as many training rows as the federation says, or an entry out of range.
        """
        if identity not in self.federation.users:
            raise ValueError(
                f"identity must be one of {sorted(self.federation.users)}, got {identity}"
            )
        train = embeddings.split == TRAIN
        agreed = self.federation.task["sizes"][str(identity)]
        if int(train.sum()) != agreed:
            raise ValueError(f"training rows must be {agreed} as agreed, got {int(train.sum())}")
        partition = split(torch.from_numpy(embeddings.labels[train]), 1)
        (chunk,) = EmbeddingUsers(embeddings, self.transform, partition).chunks()
        rows = chunk.rounded(self.integers.grid)
        scaled = (self.method.submit(rows) * self.method.scale)[0].numpy()
        code, plan = self.integers.code, self.integers.plan
        if self.integers.grid is None:
            return code.encode(scaled)
        return code.encode_exact(np.rint(scaled / plan.step))

    def noised(
        self, encoded: NDArray[np.uint64], sampler: NoiseSampler = discrete_gaussian
    ) -> NDArray[np.uint64]:
        """A submission with this user's fresh share of the noise."""
        return add_noise(encoded, self.integers.plan.stds_in_steps, sampler)

    def released(self, opened: Opened) -> Release:
        """The model, from the sum of the survivors."""
        decoded = self.integers.code.decode(opened.total)
        scaled = decoded if self.integers.grid is None else decoded * self.integers.plan.step
        rows = sum(self.federation.task["sizes"][str(user)] for user in opened.users)
        std = self.integers.local_std * math.sqrt(len(opened.users))
        weights = self.method.classifier(torch.from_numpy(scaled) / self.method.scale, rows, std)
        names = self.federation.task.get("class_names") or map(str, range(self.method.num_classes))
        report = self.guarantee.report() | self.integers.report()
        report |= {"users": len(self.federation.users), "survivors": len(opened.users)}
        report |= {"rows": rows, "protocol": self.federation.protocol}
        report |= self._all_sessions() | self._collusion()
        report |= suitability(self.guarantee.privacy, "discrete", seeded=False)
        return Release(weights, self.transform, tuple(names), report | {"versions": versions()})

    def _collusion(self) -> dict[str, str]:
        """With whom the operator may collude, beside the honest fraction that the noise assumes."""
        if self.federation.protocol == "shares":
            return {"holds_against": "all computation servers but one"}
        share = self.federation.corrupt_fraction
        return {"holds_against": f"the server, colluding with at most {share:g} of the users"}

    def _all_sessions(self) -> dict[str, float]:
        """What a user gives away if every agreed session is run: ε of them together, same δ."""
        sessions, guarantee = self.federation.sessions, self.guarantee
        together = guarantee.compositions * sessions
        epsilon = accounting.epsilon(guarantee.privacy.delta, guarantee.noise_multiplier, together)
        return {"sessions": sessions, "epsilon_of_all_sessions": epsilon}


def _sizes(given: list[object]) -> torch.Tensor:
    for size in given:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"sizes must be whole numbers >= 1, got {size!r}")
    return torch.tensor(given)


def transform_hash(path: Path) -> str:
    """SHA-256 of a transform's file, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_transform(path: Path, agreed: str) -> None:
    """Raises ValueError unless the file is the one that was agreed on."""
    if transform_hash(path) != agreed:
        raise ValueError(
            f"transform must have SHA-256 {agreed}, got {transform_hash(path)}: {path}"
        )
