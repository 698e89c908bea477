"""Federations from real data: heads on embeddings, the small network on images."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TEST, TRAIN
from pretrain.datasets import ImageSet
from train_distributed.one_shot.users import own_partition
from train_distributed.partition import split
from train_distributed.research.protection.models import HeadSurface, NetworkSurface
from train_distributed.research.protection.training import FederatedTraining

PUBLIC_ROWS = 5000  # that a blind attacker guesses from


def head_federation(
    private: EmbeddingSet,
    public: EmbeddingSet,
    transform: PublicTransform,
    *,
    clients: int,
    rows: int,
    batch: int,
    step: float,
    rounds: int,
    seed: int,
) -> FederatedTraining:
    """Clients with at most `rows` training rows each: the set's own users, else a random split.

    Raises:
        ValueError: no labels, fewer users or rows than clients, or no test rows.
    """
    private.need_labels()
    generator = torch.Generator().manual_seed(seed)
    train = np.flatnonzero(private.split == TRAIN)
    test = np.flatnonzero(private.split == TEST)
    if not len(test):
        raise ValueError("embeddings must hold test rows (split 1), got none")
    if private.users is None:
        partition = split(
            torch.from_numpy(np.array(private.labels[train])), clients, "iid", generator=generator
        )
    else:
        partition = own_partition(private)
    groups = _first(partition.order.split(partition.counts.tolist()), clients, rows)
    chosen = np.arange(len(public))[:: max(1, len(public) // PUBLIC_ROWS)]

    def features(source: EmbeddingSet, which: np.ndarray) -> Tensor:
        return transform(np.array(source.embeddings[which]))[:, 1:].double()

    def labels(which: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(private.labels[which]))

    classes = max(2, len(private.meta.get("class_names", ())), int(private.labels.max()) + 1)
    held = [train[group.numpy()] for group in groups]
    return FederatedTraining(
        HeadSurface(transform.dim - 1, classes, transform.constant),
        tuple((features(private, which), labels(which)) for which in held),
        (features(private, test), labels(test)),
        features(public, chosen),
        batch,
        step,
        rounds,
    )


def image_federation(
    images: ImageSet,
    *,
    clients: int,
    rows: int,
    test_rows: int,
    batch: int,
    step: float,
    rounds: int,
    seed: int,
) -> FederatedTraining:
    """The first writers as clients; half of the test images are the blind attacker's.

    Images of three equal channels become one.

    Raises:
        ValueError: images without labels or users, or fewer users than clients.
    """
    images.need_labels()
    if images.users is None:
        raise ValueError("images must name their writers (writer_train), got none")
    train, test = np.flatnonzero(images.split == TRAIN), np.flatnonzero(images.split == TEST)
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed)).numpy()
    test, public = test[order[:test_rows]], test[order[test_rows:][:PUBLIC_ROWS]]
    if not (len(test) and len(public)):
        raise ValueError(f"images must hold more than {test_rows} test images, got {len(order)}")
    writers = images.users[train]
    ids = np.unique(writers)
    groups = _first([torch.from_numpy(train[writers == i]) for i in ids[:clients]], clients, rows)

    def pixels(which: np.ndarray) -> Tensor:
        block = torch.from_numpy(np.array(images.images(which))).double() / 255
        grey = bool((block == block[:, :1]).all())
        return block[:, :1].contiguous() if grey else block

    def labels(which: np.ndarray) -> Tensor:
        return torch.from_numpy(images.labels[which])

    seen = pixels(test)
    return FederatedTraining(
        NetworkSurface(seen.shape[1], seen.shape[2], len(images.class_names)),
        tuple((pixels(group.numpy()), labels(group.numpy())) for group in groups),
        (seen, labels(test)),
        pixels(public),
        batch,
        step,
        rounds,
    )


def _first(groups: Sequence[Tensor], clients: int, rows: int) -> list[Tensor]:
    if rows < 1:
        raise ValueError(f"rows must be >= 1, got {rows}")
    if len(groups) < clients:
        raise ValueError(f"clients must be <= {len(groups)}, the users there are, got {clients}")
    return [group[:rows] for group in groups[:clients]]
