"""Encoders, whichever library their network comes from, and those made of others.

Such as `mirrored:timm:resnet18` and `concat:timm:resnet18@64+simclr-small`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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


MIRRORED = "mirrored:"


class Mirrored(Encoder):
    """The mean of an encoder's embeddings of a picture and of its mirror image.

    The mean does not depend on left and right, so pictures of one class lie closer together, at
    twice the time. It is a function of one picture alone and changes no privacy promise.

    Args:
        encoder: the encoder within.

    Raises:
        ValueError: it is mirrored already.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if isinstance(encoder, Mirrored):
            raise ValueError("encoder must be mirrored once, got a mirrored one")
        self.encoder = encoder
        self.embedding_dim = encoder.embedding_dim
        self.preprocess = encoder.preprocess

    def architecture(self) -> dict[str, Any]:
        """Architecture of the encoder within."""
        return {"kind": "mirrored", "encoder": self.encoder.architecture()}

    def beyond_weights(self) -> str:
        """Properties of the encoder within."""
        return json.dumps({"kind": "mirrored", "encoder": self.encoder.beyond_weights()})

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        both = self.encoder(torch.cat([images, images.flip(3)]))
        return both.unflatten(0, (2, -1)).mean(0)


def within(name: str) -> str:
    """Name of the encoder that a name mirrors; the name itself if it mirrors none."""
    return name.removeprefix(MIRRORED)


JOINED = "concat:"
_WORD = re.compile(r"\d+|crop=.*|invert")


class Part(NamedTuple):
    """One encoder of a name, and what is done to pictures before it."""

    name: str
    image_size: int | None = None  # pixels of its input; None: as its authors state
    weights: str | None = None
    crop: float | None = None  # share of the shorter side that is kept; None: as they state
    invert: bool = False  # 1 - x

    def __str__(self) -> str:
        words = [] if self.image_size is None else [str(self.image_size)]
        words += [] if self.crop is None else [f"crop={self.crop:g}"]
        words += ["invert"] * self.invert
        return f"{self.name}@{','.join(words)}" if words else self.name

    @classmethod
    def named(cls, name: str) -> "Part":
        """Reads NAME@PIXELS,crop=SHARE,invert, where each of the three may be left out.

        Raises:
            ValueError: one of them twice, or a share that is no number.

        Examples:
            >>> Part.named("simclrv2:r50_1x_sk1@224,crop=0.875")
            Part(name='simclrv2:r50_1x_sk1', image_size=224, weights=None, crop=0.875, invert=False)
        """
        plain, at, rest = name.rpartition("@")
        words = rest.split(",")
        if not (at and plain and all(map(_WORD.fullmatch, words))):
            return cls(name)
        found = [(word.partition("=")[0] if not word.isdecimal() else "pixels") for word in words]
        if len(set(found)) < len(found):
            raise ValueError(f"encoder must say each once after its @, got {name}")
        given = dict(zip(found, words, strict=True))
        share = given.get("crop", "crop=").removeprefix("crop=")
        try:
            crop = float(share) if "crop" in given else None
        except ValueError as error:
            raise ValueError(f"crop must be a number in (0, 1], got {share} in {name}") from error
        size = int(given["pixels"]) if "pixels" in given else None
        return cls(plain, size, None, crop, "invert" in given)

    def prepared(self, own: Preprocess) -> Preprocess:
        """Preprocessing of pictures: `own`, the encoder authors', with size or crop where given."""
        if self.image_size is None and self.crop is None:
            return replace(own, invert=self.invert)
        crop = 1.0 if self.crop is None else self.crop
        return Preprocess(image_size=self.image_size, crop=crop, invert=self.invert)


class Concat(Encoder):
    """Encoders side by side, each with its own preprocessing of the pictures as stored.

    Args:
        parts: the encoders and their preprocessing.

    Raises:
        ValueError: fewer than two, or one that joins others itself.
    """

    def __init__(self, parts: Sequence[tuple[Encoder, Preprocess]]) -> None:
        super().__init__()
        if len(parts) < 2 or any(isinstance(encoder, Concat) for encoder, _ in parts):
            raise ValueError(f"encoder concat: must join two encoders or more, got {len(parts)}")
        self.encoders = nn.ModuleList(encoder for encoder, _ in parts)
        self.prepared = [preprocess for _, preprocess in parts]
        self.scaled = [preprocess.scaled for _, preprocess in parts]
        self.widths = [encoder.embedding_dim for encoder, _ in parts]
        self.embedding_dim = sum(self.widths)

    def architecture(self) -> dict[str, Any]:
        """Architectures of the parts, and their preprocessing."""
        parts = [
            {"encoder": encoder.architecture(), "preprocess": preprocess.to_json()}
            for encoder, preprocess in zip(self._parts, self.prepared, strict=True)
        ]
        return {"kind": "concat", "parts": parts}

    @property
    def _parts(self) -> list[Encoder]:
        return [part for part in self.encoders if isinstance(part, Encoder)]

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1], as stored, to (n, embedding_dim)."""
        pairs = zip(self.encoders, self.scaled, strict=True)
        return torch.cat([encoder(scaled(images)) for encoder, scaled in pairs], 1)


def hash_of_parts(parts: Iterable[tuple[str, Preprocess]]) -> str:
    """SHA-256 over the hashes of the parts, in order, and their preprocessing."""
    words = [[digest, preprocess.to_json()] for digest, preprocess in parts]
    return hashlib.sha256(json.dumps(["concat", *words], sort_keys=True).encode()).hexdigest()


def parts_of(name: str, weights: str | None, kinds: Iterable[str]) -> list[Part]:
    """Parts of the name of an encoder, one of a name without the prefix.

    Args:
        name: `concat:NAME@PIXELS+NAME`, the parts as `Part.named` reads them.
        weights: one word or file for each part, joined by + (empty: its own), or one for all parts
            whose names begin with one of `kinds`.
        kinds: see there.

    Raises:
        ValueError: another number of weights.

    Examples:
        >>> for part in parts_of("concat:timm:resnet18@64+simclr-small", "random", ["timm"]):
        ...     print(part, part.weights)
        timm:resnet18@64 random
        simclr-small None
    """
    if not name.startswith(JOINED):
        return [Part.named(name)._replace(weights=weights)]
    parts = [Part.named(part) for part in name.removeprefix(JOINED).split("+")]
    if len({part.invert for part in parts}) > 1:
        raise ValueError(f"encoder must invert pictures for all of its parts, or none, got {name}")
    given = [weights or ""] if weights is None or "+" not in weights else weights.split("+")
    if len(given) == 1:
        takes = tuple(kinds)
        given = [given[0] * (within(part.name).partition(":")[0] in takes) for part in parts]
    if len(given) != len(parts):
        raise ValueError(f"weights must be one, or {len(parts)} joined by +, got {weights}")
    return [part._replace(weights=own or None) for part, own in zip(parts, given, strict=True)]


def joined(parts: Sequence[Part]) -> str:
    """Name of the encoder that has these parts; of a single one its own."""
    return JOINED + "+".join(map(str, parts)) if len(parts) > 1 else parts[0].name
