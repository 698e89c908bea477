"""Vision towers of open_clip as encoders: `open_clip:ViT-B-32.laion2b_s34b_b79k`, `open_clip:DIR`.

An embedding is the tower's output, projected to the space that pictures and texts share and not
normalised. The tag after the point names weights on the hub and, as in timm, the preprocessing that
belongs to them; a directory holds open_clip_config.json and weights.
"""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from pretrain import check
from pretrain.encoders.base import Encoder, read_size
from pretrain.encoders.hub import hub
from pretrain.encoders.weights import fit_weights
from pretrain.encoders.weights_file import read_weights
from pretrain.preprocess import BLACK, Preprocess, Size

CONFIG = "open_clip_config.json"
FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
TOWER = ("embed_dim", "vision_cfg", "quick_gelu")


class OpenClipEncoder(Encoder):
    """The vision tower of a model's configuration, untrained.

    Args:
        tower: `embed_dim`, `vision_cfg` and `quick_gelu` of the model.
        pixels: what open_clip calls `preprocess_cfg`.
        image_size: of the input; None: as the tower's configuration says.

    Raises:
        ValueError: a configuration of which no tower can be built.
    """

    def __init__(
        self, tower: dict[str, Any], pixels: dict[str, Any], image_size: Size | None = None
    ) -> None:
        super().__init__()
        _library()
        from open_clip.model import _build_vision_tower
        from open_clip.transform import PreprocessCfg, merge_preprocess_dict

        vision = tower["vision_cfg"] | {"timm_model_pretrained": False}
        if image_size is not None:
            vision["image_size"] = image_size
        self.tower, self.embedding_dim = tower, int(tower["embed_dim"])
        self.image_size = image_size
        try:
            gelu = bool(tower.get("quick_gelu"))
            self.visual: Any = _build_vision_tower(self.embedding_dim, vision, gelu)
        except (TypeError, AssertionError, RuntimeError) as error:
            raise ValueError(
                f"vision_cfg must be one that open_clip can build, got {error}"
            ) from error
        size = getattr(self.visual, "image_size", vision.get("image_size", 224))
        self.pixels = merge_preprocess_dict(PreprocessCfg(), pixels) | {"size": size}
        if image_size is None:
            self.preprocess = _preprocess(self.pixels)
        self.preprocess = self.prepared_for(image_size)
        self.normalise_by(self.pixels["mean"], self.pixels["std"])

    @classmethod
    def rebuild(cls, architecture: dict[str, Any]) -> "OpenClipEncoder":
        """The tower that `architecture` described, untrained."""
        return cls(architecture["tower"], architecture["pixels"], read_size(architecture))

    def architecture(self) -> dict[str, Any]:
        """Configuration of the tower, and its preprocessing."""
        fields = {"tower": self.tower, "pixels": self.pixels, "image_size": self.image_size}
        return {"kind": "open_clip", **fields}

    def beyond_weights(self) -> str:
        """Configuration of the tower with its activation, mean and standard deviation."""
        pixels = {part: list(self.pixels[part]) for part in ("mean", "std")}
        return json.dumps({"kind": "open_clip", "tower": self.tower} | pixels, sort_keys=True)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        out = self.visual(self.normalised(images))
        return out[0] if isinstance(out, tuple) else out  # CoCa's gives its tokens as well


def build_open_clip(
    name: str, weights: str | None = None, image_size: Size | None = None
) -> OpenClipEncoder:
    """The vision tower `name`.

    Args:
        name: an architecture, with the tag of its weights or without, or a directory.
        weights: a file with the state dict of the model or of the tower, "random", or "hub" for
            the weights of the tag; None: the directory's own.
        image_size: pixels of the input; the position embedding is resampled.

    Raises:
        ValueError: an extra is missing, no such model, or weights that are not its own.
    """
    tower, pixels = _described(name)
    encoder = OpenClipEncoder(tower, pixels, image_size)
    if weights == "random":
        return encoder
    file = str(_held(Path(name))) if weights is None else weights
    tensors = _downloaded(name) if weights == "hub" else read_weights(Path(file))
    fit_weights(encoder.visual, tensors, file, convert=lambda kept: _resized(encoder, kept))
    return encoder


def _described(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    open_clip = _library()
    if Path(name).is_dir():
        with hub(f"open_clip:{name}", local=True):
            config = json.loads((Path(name) / CONFIG).read_text("utf-8"))
            model, pixels = config["model_cfg"], config.get("preprocess_cfg", {})
            if not {"embed_dim", "vision_cfg"} <= model.keys():
                raise ValueError(f"model_cfg must hold embed_dim and vision_cfg, got {set(model)}")
            return {part: model[part] for part in TOWER if part in model}, pixels
    architecture, _, tag = name.partition(".")
    model = open_clip.get_model_config(architecture)
    if model is None:
        raise ValueError(
            f"encoder open_clip:NAME must name a model of open_clip or a directory, got {name}"
        )
    pixels = {}
    if tag:
        pixels = open_clip.get_pretrained_cfg(architecture, tag)
        if not pixels:
            tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
            raise ValueError(f"tag of open_clip:{architecture} must be one of {tags}, got {tag}")
        model = model | {"quick_gelu": pixels.get("quick_gelu", model.get("quick_gelu", False))}
    return {part: model[part] for part in TOWER if part in model}, pixels


def _preprocess(pixels: dict[str, Any]) -> Preprocess:
    """The preprocessing of `open_clip.image_transform` for evaluation."""
    size, mode = pixels["size"], pixels["resize_mode"]
    shade = pixels["fill_color"] / 255
    return Preprocess(
        image_size=(size[0], size[1]) if isinstance(size, list | tuple) else size,
        fit=mode,
        interpolation=pixels["interpolation"],
        border=(shade, shade, shade) if mode == "longest" else BLACK,
    )


def _held(directory: Path) -> Path:
    for name in FILES:
        if (directory / name).is_file():
            return directory / name
    raise ValueError(f"weights must be given, or {directory} hold one of {FILES}, got neither")


def _downloaded(name: str) -> dict[str, Tensor]:
    """The tower's weights, as open_clip converts them."""
    open_clip = _library()
    architecture, _, tag = name.partition(".")
    if not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise ValueError(
            f"weights=hub must be for open_clip:{architecture}.TAG with one of the tags {tags}, "
            "got no tag"
        )
    with hub(f"weights of open_clip:{name}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the activation is the tag's is seen to elsewhere
        model: Any = open_clip.create_model(architecture, pretrained=tag, pretrained_text=False)
    return model.visual.state_dict()


def _resized(encoder: OpenClipEncoder, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tower's tensors, their position embedding resampled to its size."""
    from open_clip.model import resize_pos_embed

    named = {f"visual.{name}": tensor for name, tensor in tensors.items()}
    holder: Any = SimpleNamespace(visual=encoder.visual)
    resize_pos_embed(named, holder)
    return {name.removeprefix("visual."): tensor for name, tensor in named.items()}


def _library() -> Any:
    install = {"package": "open_clip_torch", "extra": "encoders"}
    return check.installed("open_clip", "open_clip:NAME", **install)
