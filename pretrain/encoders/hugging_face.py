"""Vision models of Hugging Face's transformers as encoders: `hf:facebook/dinov2-small`, `hf:DIR`.

An embedding is the model's pooled output. Where it has none, or the checkpoint lacks the weights of
the pooling, it is the class token of the last layer; without a class token the mean over the last
layer's positions. A model of pictures and texts gives the embedding of its vision tower.

There are hundreds of image processors, and each may do something special. So each is translated to
a `Preprocess` and compared with it on a picture; one that does more than scale, cut and normalise
is refused.
"""

import inspect
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pretrain import check
from pretrain.encoders.base import Encoder
from pretrain.encoders.weights import below, hub, prefix_of, quiet, read_weights
from pretrain.preprocess import Preprocess, Size, pair

POOLED, CLASS_TOKEN, MEAN = "pooled output", "class token", "mean"
COSMETIC = ("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path")


INTERPOLATIONS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # PIL's numbers
SQUASHED_FROM = 384  # pixels from which ConvNeXt's processor cuts nothing off
TOLERANCE = 0.02  # mean difference of pixels in [0, 1]: PIL rounds after every step


class Stated(NamedTuple):
    """Size, crop and normalisation that a processor states."""

    preprocess: Preprocess
    mean: tuple[float, ...]
    std: tuple[float, ...]


def stated(processor: Any, what: str) -> Stated:
    """Translates an image processor.

    Args:
        processor: image processor of transformers.
        what: name of the model, for errors.

    Raises:
        ValueError: it does something that no `Preprocess` does.
    """
    fields = processor.to_dict()
    try:
        mean, std = ((0.0,) * 3, (1.0,) * 3)
        if fields.get("do_normalize"):
            mean, std = (tuple(map(float, fields[f"image_{name}"])) for name in ("mean", "std"))
        if len(mean) != 3 or len(std) != 3:
            raise ValueError(f"mean {mean} and deviation {std}")
        if fields.get("include_top"):  # EfficientNet's divides once more
            std = tuple(value**2 for value in std)
        found = Stated(_sizes(fields), mean, std)
        difference = _difference(found, processor)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"preprocessing of {what} must be scaling, cutting and normalising, got {error}"
        ) from error
    if difference > TOLERANCE:
        raise ValueError(
            f"preprocessing of {what} must be scaling, cutting and normalising, got a "
            f"{fields.get('image_processor_type')} whose pixels differ by {difference:.3f}"
        )
    return found


def _sizes(fields: dict[str, Any]) -> Preprocess:
    cut = _sides(fields["crop_size"]) if fields.get("do_center_crop") else None
    if not fields.get("do_resize"):
        if cut is None:
            return Preprocess()
        raise ValueError("a crop of pictures that are not scaled")
    number = int(fields["resample"])
    if number not in INTERPOLATIONS:
        raise ValueError(f"resample {number}")
    given = fields["size"]
    if "shortest_edge" not in given:
        scaled, fit = _sides(given), "squash"
    else:
        side = given["shortest_edge"]
        scaled, fit = (side, side), "shortest"
        if str(fields.get("image_processor_type")).startswith("ConvNext"):
            cut = (side, side)
            if side >= SQUASHED_FROM:
                fit = "squash"
            else:
                side = int(side / fields["crop_pct"])
                scaled = (side, side)
        elif cut is None:
            raise ValueError("pictures of different shapes")
    size = scaled if cut is None else cut
    return Preprocess(
        image_size=size,
        fit=fit,
        resize=None if scaled == size else scaled,
        interpolation=INTERPOLATIONS[number],
    )


def _sides(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else (given["height"], given["width"])


def _difference(found: Stated, processor: Any) -> float:
    """Mean absolute difference on a smooth oblong picture, in units of pixels in [0, 1]."""
    height, width = _trial(found.preprocess)
    y, x = np.mgrid[0:height, 0:width] * (300 / height)
    waves = [np.sin(x / a + y / b) for a, b in ((31, 47), (53, -29), (-37, 41))]
    picture = np.round(127.5 + 127.5 * np.stack(waves, 2)).astype(np.uint8)
    theirs = processor(images=picture, return_tensors="pt")["pixel_values"][0]
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None]
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in (found.mean, found.std))
    ours = ((found.preprocess(pixels) - mean) / std)[0]
    if theirs.shape != ours.shape:
        raise ValueError(f"inputs {tuple(theirs.shape)} instead of {tuple(ours.shape)}")
    return float(((ours - theirs) * std[0]).abs().mean())


def _trial(preprocess: Preprocess) -> tuple[int, int]:
    """Sides of an oblong picture whose scaled size has an exact centre, however it is rounded."""
    size, scaled = preprocess.image_size, preprocess.resize or preprocess.image_size
    if preprocess.fit != "shortest" or not isinstance(size, int) or not isinstance(scaled, int):
        return 300, 420
    longer = size + 2 * (scaled // 5 + (scaled - size) // 2 + 1)
    return 4 * scaled, 4 * longer


class HuggingFaceEncoder(Encoder):
    """A vision model with its preprocessing and the choice of its output.

    Raises:
        ValueError: a model that takes no pictures, or whose embedding of a picture is not one.
    """

    def __init__(self, model: Any, stated: Stated, pooling: str | None = None) -> None:
        super().__init__()
        self.model, self.stated = model, stated
        self.preprocess = stated.preprocess
        self.normalise_by(stated.mean, stated.std)
        takes = inspect.signature(model.forward).parameters
        if "pixel_values" not in takes:
            raise ValueError(f"encoder hf:NAME must be a vision model, got {type(model).__name__}")
        self.options = {}
        if "interpolate_pos_encoding" in takes:  # other sizes than it was trained with
            self.options = {"interpolate_pos_encoding": True}
        self.eval()
        height, width = pair(self.preprocess.image_size or getattr(model.config, "image_size", 224))
        picture = torch.linspace(0, 1, 3 * height * width).view(1, 3, height, width)
        with torch.inference_mode():
            pooled = getattr(self._run(picture), "pooler_output", None) is not None
            self.pooling = pooling or (POOLED if pooled else _unpooled(model))
            one, other = self(picture), self(picture)
        if one.ndim != 2 or not torch.equal(one, other):
            what = "random ones" if one.ndim == 2 else f"shape {tuple(one.shape)}"
            raise ValueError(
                f"encoder hf:NAME must map a picture to one vector, always the same, got {what} of "
                f"{type(model).__name__}"
            )
        self.embedding_dim = one.shape[1]

    @classmethod
    def rebuild(cls, architecture: dict[str, Any]) -> "HuggingFaceEncoder":
        """The model that `architecture` described, untrained."""
        transformers = _library()
        fields = dict(architecture["config"])
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        model = transformers.AutoModel.from_config(config, dtype=torch.float32)
        given = architecture["stated"]
        preprocess = Preprocess.from_json(given["preprocess"])
        described = Stated(preprocess, tuple(given["mean"]), tuple(given["std"]))
        return cls(model, described, architecture["pooling"])

    def _run(self, images: Tensor) -> Any:
        return self.model(pixel_values=self.normalised(images), **self.options)

    def architecture(self) -> dict[str, Any]:
        """The model's own configuration, its pooling and its preprocessing."""
        config = self.model.config.to_diff_dict()
        kept = {k: v for k, v in config.items() if k not in COSMETIC}
        kept["model_type"] = self.model.config.model_type
        return {
            "kind": "hf",
            "config": json.loads(json.dumps(kept, default=str)),
            "pooling": self.pooling,
            "stated": {"preprocess": self.preprocess.to_json(), **self._pixels},
        }

    def beyond_weights(self) -> str:
        """Activation, norms, pooling, mean and standard deviation, without the names of classes."""
        described = self.architecture()
        names = ("id2label", "label2id", "num_labels", "problem_type")
        config = {k: v for k, v in described["config"].items() if k not in names}
        return json.dumps(described | {"config": config, "stated": self._pixels}, sort_keys=True)

    @property
    def _pixels(self) -> dict[str, list[float]]:
        return {"mean": list(self.stated.mean), "std": list(self.stated.std)}

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        out = self._run(images)
        if self.pooling == POOLED:
            return out.pooler_output.flatten(1)
        last = out.last_hidden_state
        if last.ndim == 4:
            return last.mean((2, 3))
        return last[:, 0] if self.pooling == CLASS_TOKEN else last.mean(1)


def build_hugging_face(
    name: str, weights: str | None = None, image_size: Size | None = None
) -> HuggingFaceEncoder:
    """The model in the directory `name`, or of that name on the hub or in its cache.

    Args:
        name: a directory with config.json, preprocessor_config.json and weights, or a hub's name.
        weights: None or "hub": its own; "random"; or a file with a state dict of the vision model.
        image_size: of the input, for models that take any; the position embedding is resampled.

    Raises:
        ValueError: an extra is missing, no such model, or weights that are not its own.
    """
    transformers = _library()
    local = Path(name).is_dir()
    with hub(f"hf:{name}", local=local), quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=local)
        config = getattr(config, "vision_config", config)
        processor = transformers.AutoImageProcessor.from_pretrained(name, local_files_only=local)
        model, report = _loaded(transformers, name, config, weights)
    where = f"hf:{name}" if weights in (None, "hub") else str(weights)
    unpooled = _check(model, report, where)
    described = stated(processor, f"hf:{name}")
    if image_size is not None:
        described = described._replace(preprocess=Preprocess(image_size=image_size))
    return HuggingFaceEncoder(model, described, _unpooled(model) if unpooled else None)


def _loaded(
    transformers: Any, name: str, config: Any, weights: str | None
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and what transformers reports of loading it."""
    if weights in (None, "hub"):
        return transformers.AutoModel.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            local_files_only=Path(name).is_dir(),
            output_loading_info=True,
        )
    model = transformers.AutoModel.from_config(config, dtype=torch.float32)
    if weights == "random":
        return model, {}
    tensors = read_weights(Path(str(weights)))
    return type(model).from_pretrained(
        None,
        config=config,
        state_dict=below(tensors, prefix_of(model.state_dict(), tensors, str(weights))),
        dtype=torch.float32,
        output_loading_info=True,
    )


def _unpooled(model: nn.Module) -> str:
    tokens = ("cls_token", "class_embedding")
    named = any(name.rpartition(".")[2] in tokens for name, _ in model.named_parameters())
    return CLASS_TOKEN if named else MEAN


def _check(model: nn.Module, report: dict[str, Any], where: str) -> bool:
    """Checks what transformers reports: heads are left out, and a pooling may be missing.

    Returns:
        Whether the weights of the pooling are missing.

    Raises:
        ValueError: others are, or are not finite, or the file has more of the same network.
    """
    missing = sorted(report.get("missing_keys", ()))
    if not all("pooler" in key.split(".") for key in missing):
        raise ValueError(f"{where} must hold all weights, got none for {', '.join(missing[:3])}")
    parts = {name for name, _ in model.named_children()}
    for key in sorted(report.get("unexpected_keys", ())):
        if key.removeprefix(f"{getattr(model, 'base_model_prefix', '')}.").split(".")[0] in parts:
            raise ValueError(f"{where} must fit {type(model).__name__}, got unknown {key}")
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{where}: {name} must be finite, got NaN or infinite weights")
    return bool(missing)


def _library() -> Any:
    return check.installed("transformers", "hf:NAME", extra="encoders")
