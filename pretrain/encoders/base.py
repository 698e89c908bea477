"""Interface of all encoders, whichever library their network comes from."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.preprocess import Preprocess


class Encoder(nn.Module):
    """Maps pixels (n, 3, h, w) in [0, 1] to embeddings (n, embedding_dim).

    The network's own treatment of pixels, such as mean and standard deviation, is part of it. The
    size and the crop of pictures, applied before it, are `preprocess`.
    """

    embedding_dim: int
    preprocess = Preprocess()  # as the network's authors state it; the default changes nothing
    mean: Tensor  # (1, 3, 1, 1) of `normalise_by`
    std: Tensor

    def architecture(self) -> dict[str, Any]:
        """All that is needed to build the network again without its weights, for JSON."""
        raise NotImplementedError

    def beyond_weights(self) -> str:
        """Properties in which networks with equal weights may differ, for the encoder's hash."""
        return ""

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        raise NotImplementedError

    def normalise_by(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Sets the mean and the standard deviation of the three channels."""
        for name, values in {"mean": mean, "std": std}.items():
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)

    def normalised(self, images: Tensor) -> Tensor:
        """(images - mean) / std."""
        return (images - self.mean) / self.std
