"""The classifier that a timm network was trained with: its weights and the names of its classes."""

from pathlib import Path

import timm
import torch
from torch import Tensor

from pretrain.encoders.hub import hub
from pretrain.encoders.mirrored import within
from pretrain.encoders.timm_models import packaged_weights
from pretrain.encoders.weights import CLASSIFIERS
from pretrain.encoders.weights_file import read_weights

IMAGENET = 1000  # classes whose names are known


def classifier_of(encoder: str, weights: str) -> tuple[tuple[str, ...], Tensor] | None:
    """WordNet ids of ImageNet's 1,000 classes, and (1,000, p) float64 weights of the last layer.

    Nothing is downloaded: weights of the hub are taken from its cache, and a file is looked for in
    the working directory.

    Args:
        encoder: as an embedding set names it; `timm:NAME` has a classifier, mirrored or not.
        weights: their origin, as there: "package", "hub" or "file NAME".

    Returns:
        None for another kind of encoder, or where the weights are not here or hold no such layer.
    """
    kind, _, name = within(encoder).partition(":")
    if kind != "timm":
        return None
    config = timm.get_pretrained_cfg(name)
    try:
        tensors = _tensors(name, weights)
    except ValueError:
        return None
    layer = config.classifier if config is not None else None
    heads = {layer, *CLASSIFIERS} - {None}
    found = [
        torch.as_tensor(tensor)
        for tensor_name, tensor in tensors.items()
        if any(f".{tensor_name}".endswith(f".{head}.weight") for head in heads)
    ]
    matching = [tensor for tensor in found if len(tensor) == IMAGENET]
    if len(matching) != 1:
        return None
    from timm.data.imagenet_info import ImageNetInfo

    return tuple(ImageNetInfo().label_names()), matching[0].flatten(1).double()


def _tensors(name: str, weights: str) -> dict[str, Tensor]:
    """Tensors of a network; ValueError where they are not on this machine."""
    if weights == "hub":
        with hub(f"weights of timm:{name}", local=True):
            return timm.create_model(name, pretrained=True).state_dict()
    if weights == "package":
        return read_weights(Path(packaged_weights(name)))
    return read_weights(Path(weights.removeprefix("file ")))
