"""Encoders by name: of timm, Hugging Face, SimCLRv2, and our own checkpoints."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretrain import check
from pretrain.cli.json_text import parsed
from pretrain.cli.output import new_file
from pretrain.encoders.base import (
    JOINED,
    MIRRORED,
    Concat,
    Encoder,
    Mirrored,
    Part,
    hash_of_parts,
    joined,
    parts_of,
    within,
)
from pretrain.encoders.weights import load_weights, read_tensors, write_tensors
from pretrain.preprocess import Preprocess, Size

SHIPPED = {"simclr-small": Path(__file__).with_name("simclr_small.safetensors")}
KINDS = (
    *("timm:NAME", "hf:NAME", "hf:DIR", "simclrv2:NAME"),
    *("resnet50-v1", "a checkpoint's path", *SHIPPED, f"{MIRRORED}any of these"),
    f"{JOINED}several of them joined by +",
    "each with @PIXELS,crop=SHARE,invert after it",
)


def build_encoder(
    name: str, *, weights: str | None = None, seed: int = 0, image_size: Size | None = None
) -> Encoder:
    """Builds an encoder: (n, 3, h, w) in [0, 1] -> (n, embedding_dim).

    Args:
        name: an architecture, `timm:MODEL`, `simclrv2:r50_1x_sk1` or `resnet50-v1`; a model with
            weights, `hf:NAME` or `hf:DIR` of Hugging Face's transformers; the path of one of our
            checkpoints, or an encoder shipped here ("simclr-small"). `mirrored:` before any of
            these averages over a picture and its mirror image; `concat:A@128+B` puts embeddings of
            several side by side. What follows @ is done to pictures before the network, see
            `Part.named`: `NAME@224,crop=0.875,invert`.
        weights: required for an architecture, optional for a model, not taken by a checkpoint: a
            file ("simclrv2": written by `python -m pretrain convert`; "resnet50-v1": a state dict
            with torchvision's names), FILE#KEY for the network below a key or prefix, "random" for
            an untrained network, "hub" to download the weights of the name, for timm "package" for
            those on the package index. Of several encoders: see `parts_of`.
        seed: seed of random weights.
        image_size: pixels of the input, for networks that are built for one size; None: the size
            that the name implies.

    Returns:
        The network in evaluation mode. Its `preprocess` is what its authors do to pictures, or
        what the name says.

    Raises:
        ValueError: unknown name, no weights, or weights that do not belong to it.
    """
    if name.startswith(JOINED):
        check.not_set("for concat:, whose parts are NAME@PIXELS", image_size=image_size)
        pairs = []
        parts = parts_of(name, weights, BUILDERS)
        for part in parts:
            found = build_encoder(
                part.name, weights=part.weights, seed=seed, image_size=part.image_size
            )
            pairs.append((found, part._replace(invert=False).prepared(found.preprocess)))
        whole = Concat(pairs).eval()
        whole.preprocess = Preprocess(invert=parts[0].invert)  # once, before all parts
        return whole
    if name.startswith(MIRRORED + JOINED):
        raise ValueError(
            f"encoder must be concat:mirrored:A+B, not mirrored as a whole, got {name}"
        )
    part = Part.named(name)
    if part.name != name:
        check.not_set(f"for {name}", image_size=image_size)
        found = build_encoder(part.name, weights=weights, seed=seed, image_size=part.image_size)
        found.preprocess = part.prepared(found.preprocess)
        return found
    if name.startswith(MIRRORED):
        inner = build_encoder(within(name), weights=weights, seed=seed, image_size=image_size)
        return Mirrored(inner).eval()
    kind, _, rest = name.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if (kind in BUILDERS and rest) or name == "resnet50-v1":
            if weights is None and kind != "hf":
                more = ", hub or package" if kind == "timm" else ""
                raise ValueError(
                    f"weights must be given for {name}: a file, random for an untrained network"
                    f"{more}, got none"
                )
            return BUILDERS[kind](rest, weights, image_size).eval()
        if weights is not None:
            raise ValueError(
                f"weights must be left out for {name}, which has its own, got {weights}"
            )
        return load_encoder(SHIPPED.get(name, Path(name))).eval()


def refuse_large_inputs(name: str, batch_size: int) -> None:
    """Checks that a batch of an encoder's inputs takes at most a quarter of the machine's memory.

    Args:
        name: of the encoder; inputs of a size that it does not say are not looked at.
        batch_size: number of inputs that are held at once, in float32.

    Raises:
        ValueError: it takes more.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bound = math.isqrt(memory // 4 // (12 * batch_size))
    for part in parts_of(name, None, ()):
        if part.image_size is not None and part.image_size > bound:
            raise ValueError(
                f"image_size must be <= {bound}, so that {batch_size} inputs (batch_size) take at "
                f"most a quarter of {memory / 2**30:.1f} GiB, got {part.image_size}"
            )


def origin(name: str, weights: str | None) -> str:
    """Origin of the weights of `build_encoder(name, weights=weights)`, in words.

    Returns:
        "shipped", "package", "hub", "random" or "file NAME", its directory left out; of several
        encoders joined by +.
    """
    if name.startswith(JOINED):
        return "+".join(
            origin(part.name, part.weights) for part in parts_of(name, weights, BUILDERS)
        )
    name = within(Part.named(name).name)
    if name in SHIPPED:
        return "shipped"
    if weights in ("package", "hub", "random"):
        return weights
    if weights is None and name.startswith("hf:") and not Path(name[3:]).is_dir():
        return "hub"
    return f"file {Path(weights or name.partition(':')[2] or name).name}"


def without_directory(name: str) -> str:
    """Name of an encoder for files that others read: a path is reduced to its last part.

    What is done to pictures is left out, since they have it in its own place, except for parts of
    `concat:`.
    """
    if name.startswith(JOINED):
        parts = [part._replace(invert=False) for part in parts_of(name, None, ())]
        return joined([part._replace(name=without_directory(part.name)) for part in parts])
    name = Part.named(name).name
    if name.startswith(MIRRORED):
        return MIRRORED + without_directory(within(name))
    kind, colon, rest = name.partition(":")
    if colon and kind in BUILDERS:
        return f"{kind}:{Path(rest).name}" if Path(rest).exists() else name
    return name if name in (*SHIPPED, *BUILDERS) else Path(name).name


def save_encoder(encoder: Encoder, path: Path, *, note: str = "") -> None:
    """Writes weights and architecture as safetensors, whole or not at all.

    Args:
        encoder: the network, of any kind.
        path: the file to write.
        note: free text kept in the file's metadata.
    """
    tensors = {name: t.contiguous().clone() for name, t in encoder.state_dict().items()}
    metadata = {"architecture": json.dumps(encoder.architecture()), "note": note}
    with new_file(path) as partial:
        write_tensors(partial, tensors, metadata)


def load_encoder(path: Path) -> Encoder:
    """Reads what `save_encoder` wrote, in float32 and evaluation mode.

    Raises:
        ValueError: unreadable, not one of our encoders, or weights of another architecture.
    """
    if path in SHIPPED.values() and not path.is_file():
        raise ValueError(f"encoder {path.stem} must come with the package, got no such file")
    if not path.is_file():
        raise ValueError(f"encoder must be one of {', '.join(KINDS)}, got {path}")
    tensors, metadata = read_tensors(path)
    if "architecture" not in metadata:
        raise ValueError(f"{path} must be an encoder written by this project, got no architecture")
    encoder = _untrained(metadata["architecture"], path)
    load_weights(encoder, tensors, str(path))
    return encoder.eval()


def encoder_hash(encoder: nn.Module) -> str:
    """SHA-256 over all names, shapes and values: equal exactly when the networks are.

    It covers `Encoder.beyond_weights` as well: padding, activation, or the mean that is subtracted
    from pixels, in which networks with equal weights may differ.
    """
    if isinstance(encoder, Concat):
        digests = map(encoder_hash, encoder.encoders)
        return hash_of_parts(zip(digests, encoder.prepared, strict=True))
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    if isinstance(encoder, Encoder):
        digest.update(encoder.beyond_weights().encode())
    return digest.hexdigest()


def _untrained(architecture: str, path: Path) -> Encoder:
    """Network that a file's metadata describes, without its weights."""
    try:
        fields = parsed(architecture)
        build = ARCHITECTURES[fields["kind"]]
    except (ValueError, TypeError, KeyError) as error:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(
            f"{path}: architecture must be of kind {known}, got {architecture:.200}"
        ) from error
    try:
        with torch.random.fork_rng(devices=[]):
            return build(fields)
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{path}: architecture must be complete, got {architecture:.200}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _inner(fields: dict[str, Any], *refused: str) -> Encoder:
    """Untrained encoder of `fields["encoder"]`; KeyError for one of a refused kind."""
    kinds = {kind: build for kind, build in ARCHITECTURES.items() if kind not in refused}
    return kinds[fields["encoder"]["kind"]](fields["encoder"])


def _rebuild_concat(fields: dict[str, Any]) -> Encoder:
    parts = fields["parts"]
    return Concat([(_inner(p, "concat"), Preprocess.from_json(p["preprocess"])) for p in parts])


def _of(module: str, name: str) -> Callable[..., Any]:
    """Function of a module in `pretrain` that is imported when the function is called."""
    return lambda *given: attrgetter(name)(import_module(f"pretrain.{module}"))(*given)


BUILDERS: dict[str, Callable[[str, str | None, Size | None], Encoder]] = {
    "timm": _of("encoders.timm_models", "build_timm"),
    "hf": _of("encoders.hugging_face", "build_hugging_face"),
    "simclrv2": _of("simclr_v2", "build_simclr_v2"),
    "resnet50-v1": _of("encoders.timm_models", "build_resnet50_v1"),
}
ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Encoder]] = {
    "small-resnet": _of("resnet", "SmallResNet.rebuild"),
    "timm": _of("encoders.timm_models", "TimmEncoder.rebuild"),
    "hf": _of("encoders.hugging_face", "HuggingFaceEncoder.rebuild"),
    "mirrored": lambda fields: Mirrored(_inner(fields, "concat", "mirrored")),
    "concat": _rebuild_concat,
    "simclrv2": lambda fields: BUILDERS["simclrv2"](fields["name"], None, None),
    "resnet50-v1": lambda _: BUILDERS["resnet50-v1"]("", None, None),
}
