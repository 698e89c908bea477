"""Federations from real data: heads on embeddings, the small network on images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TEST, TRAIN
from pretrain import check
from pretrain.datasets import ImageSet
from train_distributed.one_shot.users import own_partition
from train_distributed.partition import split
from train_distributed.research.protection.models import TargetHead, TargetNetwork
from train_distributed.research.protection.training import FederatedTraining

PUBLIC_ROWS = 5000  # that a blind attacker guesses from


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """Clients and their training."""

    clients: int
    rows: int  # most records of one client
    batch: int = 1  # S
    step: float
    rounds: int
    seed: int = 0


def head_federation(
    private: EmbeddingSet,
    public: EmbeddingSet,
    transform: PublicTransform,
    options: FederationOptions,
) -> FederatedTraining:
    """Clients with at most `rows` training rows each: the set's own users, else a random split.

    Raises:
        ValueError: no labels, fewer users or rows than clients, or no test rows.
    """
    private.need_labels()

    def features(source: EmbeddingSet, which: np.ndarray) -> Tensor:
        return transform(np.array(source.embeddings[which]))[:, 1:].double()

    def labels(which: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(private.labels[which]))

    generator = torch.Generator().manual_seed(options.seed)
    train = np.flatnonzero(private.split == TRAIN)
    test = np.flatnonzero(private.split == TEST)
    check.at_least(1, test_rows=len(test))
    if private.users is None:
        partition = split(labels(train), options.clients, "iid", generator=generator)
    else:
        partition = own_partition(private)
    groups = _first(partition.order.split(partition.counts.tolist()), options)
    chosen = np.arange(len(public))[:: max(1, len(public) // PUBLIC_ROWS)]

    classes = max(2, len(private.meta.get("class_names", ())), int(private.labels.max()) + 1)
    held = [train[group.numpy()] for group in groups]
    return FederatedTraining(
        TargetHead(transform.dim - 1, classes, transform.constant),
        tuple((features(private, which), labels(which)) for which in held),
        (features(private, test), labels(test)),
        features(public, chosen),
        options.batch,
        options.step,
        options.rounds,
    )


def image_federation(
    images: ImageSet, options: FederationOptions, *, test_rows: int
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
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(options.seed)).numpy()
    test, public = test[order[:test_rows]], test[order[test_rows:][:PUBLIC_ROWS]]
    if not (len(test) and len(public)):
        raise ValueError(f"images must hold more than {test_rows} test images, got {len(order)}")
    writers = images.users[train]
    ids = np.unique(writers)
    own = [torch.from_numpy(train[writers == i]) for i in ids[: options.clients]]
    groups = _first(own, options)

    def pixels(which: np.ndarray) -> Tensor:
        block = torch.from_numpy(np.array(images.images(which))).double() / 255
        grey = bool((block == block[:, :1]).all())
        return block[:, :1].contiguous() if grey else block

    def labels(which: np.ndarray) -> Tensor:
        return torch.from_numpy(images.labels[which])

    seen = pixels(test)
    return FederatedTraining(
        TargetNetwork(seen.shape[1], seen.shape[2], len(images.class_names)),
        tuple((pixels(group.numpy()), labels(group.numpy())) for group in groups),
        (seen, labels(test)),
        pixels(public),
        options.batch,
        options.step,
        options.rounds,
    )


def _first(groups: Sequence[Tensor], options: FederationOptions) -> list[Tensor]:
    check.at_least(1, rows=options.rows)
    check.at_most(len(groups), clients=options.clients)
    return [group[: options.rows] for group in groups[: options.clients]]
