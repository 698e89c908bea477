"""Vision models of Hugging Face's transformers as encoders: `hf:facebook/dinov2-small`, `hf:DIR`.

An embedding is the model's pooled output. Where it has none, or the checkpoint lacks the weights of
the pooling, it is the class token of the last layer; without a class token the mean over the last
layer's positions. A model of pictures and texts gives the embedding of its vision tower.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrain import check
from pretrain.encoders.base import Encoder
from pretrain.encoders.hub import hub, quiet
from pretrain.encoders.image_processor import Stated, stated
from pretrain.encoders.weights import below, prefix_of
from pretrain.encoders.weights_file import read_weights
from pretrain.preprocess import Size

POOLED, CLASS_TOKEN, MEAN = "pooled output", "class token", "mean"
COSMETIC = ("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path")


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
        picture = _picture(self.preprocess.image_size or getattr(model.config, "image_size", 224))
        with torch.inference_mode():
            self.pooling = pooling or _pooling(model, self._run(picture))
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
        return cls(model, Stated.from_json(architecture["stated"]), architecture["pooling"])

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
            "stated": self.stated.to_json(),
        }

    def beyond_weights(self) -> str:
        """Activation, norms, pooling, mean and standard deviation, without the names of classes."""
        described = self.architecture()
        names = ("id2label", "label2id", "num_labels", "problem_type")
        config = {k: v for k, v in described["config"].items() if k not in names}
        pixels = {"mean": self.stated.mean, "std": self.stated.std}
        return json.dumps(described | {"config": config, "stated": pixels}, sort_keys=True)

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
        described = described.of_size(image_size)
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


def _pooling(model: nn.Module, out: Any) -> str:
    """The output of a model that is the embedding."""
    return POOLED if getattr(out, "pooler_output", None) is not None else _unpooled(model)


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


def _picture(size: Any) -> Tensor:
    shape = (size, size) if isinstance(size, int) else tuple(size)
    return torch.linspace(0, 1, 3 * shape[0] * shape[1]).view(1, 3, *shape)


def _library() -> Any:
    return check.installed("transformers", "hf:NAME", extra="encoders")
