"""A picture and its mirror image, embedded together: `mirrored:timm:tf_efficientnet_lite0`."""

import json
from typing import Any

import torch
from torch import Tensor

from pretrain.encoders.base import Encoder

PREFIX = "mirrored:"


class Mirrored(Encoder):
    """The mean of an encoder's embeddings of a picture and of its mirror image.

    The mean does not depend on left and right, so pictures of one class lie closer together, at
    twice the time. It is a function of one picture alone and changes no privacy promise.

    Args:
        encoder: the encoder within.

    Raises:
        ValueError: it is mirrored already.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if isinstance(encoder, Mirrored):
            raise ValueError("encoder must be mirrored once, got a mirrored one")
        self.encoder = encoder
        self.embedding_dim = encoder.embedding_dim
        self.preprocess = encoder.preprocess

    def architecture(self) -> dict[str, Any]:
        """Architecture of the encoder within."""
        return {"kind": "mirrored", "encoder": self.encoder.architecture()}

    def beyond_weights(self) -> str:
        """Properties of the encoder within."""
        return json.dumps({"kind": "mirrored", "encoder": self.encoder.beyond_weights()})

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        both = self.encoder(torch.cat([images, images.flip(3)]))
        return both.unflatten(0, (2, -1)).mean(0)


def within(name: str) -> str:
    """Name of the encoder that a name mirrors; the name itself if it mirrors none."""
    return name.removeprefix(PREFIX)
