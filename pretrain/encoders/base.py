"""What every encoder is, whichever library its network comes from."""

from typing import Any

from torch import Tensor, nn

from pretrain.preprocess import Preprocess


class Encoder(nn.Module):
    """Maps pixels (n, 3, h, w) in [0, 1] to embeddings (n, embedding_dim).

    Whatever a network wants done to its pixels beyond [0, 1], mean and standard deviation, is done
    in here. What is done to pictures before, size and crop, is `preprocess`.
    """

    embedding_dim: int
    preprocess = Preprocess()  # what its makers do to pictures; nothing where they state nothing

    def architecture(self) -> dict[str, Any]:
        """All that is needed to build the network again without its weights, for JSON."""
        raise NotImplementedError

    def beyond_weights(self) -> str:
        """What tells it from another network with equal weights; empty where names of them do."""
        return ""

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        raise NotImplementedError
