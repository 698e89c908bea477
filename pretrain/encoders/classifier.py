"""The classifier that a timm network was trained with: its weights and the names of its classes."""

from pathlib import Path

import timm
import torch
from torch import Tensor

from pretrain.encoders.hub import hub
from pretrain.encoders.timm_models import packaged_weights
from pretrain.encoders.weights import CLASSIFIERS
from pretrain.encoders.weights_file import read_weights

IMAGENET = 1000  # classes whose names are known


def classifier_of(encoder: str, weights: str) -> tuple[tuple[str, ...], Tensor]:
    """WordNet ids of ImageNet's 1,000 classes, and (1,000, p) float64 weights of the last layer.

    Args:
        encoder: `timm:NAME` of the embeddings.
        weights: file that holds the classifier too, "package" or "hub".

    Raises:
        ValueError: another kind of encoder, or no such layer.
    """
    kind, _, name = encoder.removeprefix("mirrored:").partition(":")
    if kind != "timm":
        raise ValueError(f"classifier must be that of timm:NAME embeddings, got {encoder}")
    if weights == "hub":
        with hub(f"weights of {encoder}"):
            tensors = timm.create_model(name, pretrained=True).state_dict()
    else:
        tensors = read_weights(Path(packaged_weights(name) if weights == "package" else weights))
    config = timm.get_pretrained_cfg(name)
    layer = config.classifier if config is not None else None
    heads = {layer, *CLASSIFIERS} - {None}
    found = [
        tensor
        for tensor_name, tensor in tensors.items()
        if any(f".{tensor_name}".endswith(f".{head}.weight") for head in heads)
    ]
    matching = [tensor for tensor in found if len(tensor) == IMAGENET]
    if len(matching) != 1:
        shapes = [tuple(tensor.shape) for tensor in found]
        raise ValueError(
            f"classifier must be one layer of {IMAGENET} ImageNet classes, got {shapes}: {weights}"
        )
    from timm.data.imagenet_info import ImageNetInfo

    return tuple(ImageNetInfo().label_names()), torch.as_tensor(matching[0]).flatten(1).double()
