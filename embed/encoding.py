"""Origin of embeddings: their encoder, its weights, and the preprocessing.

Rows of two encoders have nothing in common but, by chance, their length, and a model of such a
mixture is wrong in silence. So every embedding set says what made it, every transform what it was
fitted on, and where two of them meet they are compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretrain import check
from pretrain.cli.json_text import parsed
from pretrain.preprocess import Preprocess, Size

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Encoder and preprocessing that made embeddings out of pictures."""

    encoder: str  # as given to `embed run --encoder`: timm:NAME, a checkpoint's path, ...
    encoder_hash: str  # `pretrain.encoder.encoder_hash`: equal for equal networks
    weights: str  # shipped, package, hub, random, file NAME, or unknown for sets of older versions
    preprocess: Preprocess  # from stored pixels to the network's input
    bits: int | None = None  # in use of 16, as `--bits` says; None: as files say, else all

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "Encoding | None":
        """Encoding that the `meta.json` of an embedding set states.

        Returns:
            None for rows of unknown origin: arrays of somebody else, an imported reference, or rows
            that a transform has changed since.

        Raises:
            ValueError: a field that is there and unreadable.
        """
        needed = ("encoder", "encoder_hash", "preprocess")
        if "transform" in meta or any(meta.get(name) is None for name in needed):
            return None
        found = (*needed, "weights", "bits")
        made = cls.from_json({name: meta[name] for name in found if name in meta})
        return made.of_pictures(meta.get("image_shape"))

    def of_pictures(self, shape: Any) -> "Encoding":
        """Encoding that is for pictures of this shape, (3, h, w); None: of an unknown one.

        Raises:
            ValueError: something else, or it is for pictures of another size.
        """
        if shape is None:
            return self
        if not (
            isinstance(shape, list | tuple)
            and len(shape) == 3
            and all(type(side) is int and side > 0 for side in shape)
        ):
            raise ValueError(f"image_shape must be three sizes > 0, got {shape!r:.200}")
        return replace(self, preprocess=self.preprocess.of_pictures(tuple(shape[1:])))

    def size_of_pictures(self, resize: int | None, owner: str) -> Size:
        """Size to which a picture of any size is brought first.

        Args:
            resize: side of that square, as a command was given it.
            owner: what has this encoding, for errors.

        Raises:
            ValueError: `resize` is another, or nobody knows it.
        """
        known = self.preprocess.pictures
        if known is None and resize is None:
            raise ValueError(
                f"resize must be given for a {owner} of an earlier version, which does not say of "
                "what size its pictures were, got none"
            )
        if None not in (known, resize) and known != resize:
            raise ValueError(
                f"resize must be left out, or that of the {owner}'s pictures "
                f"({self.preprocess}), got {resize}"
            )
        size = resize if known is None else known
        assert size is not None
        return size

    def to_json(self) -> dict[str, Any]:
        """Plain fields for JSON, named as in `meta.json`."""
        return {
            "encoder": self.encoder,
            "encoder_hash": self.encoder_hash,
            "weights": self.weights,
            "preprocess": self.preprocess.to_json(),
            **check.drop_none(bits=self.bits),
        }

    @classmethod
    def from_json(cls, fields: Any) -> "Encoding":
        """Reads what `to_json` gave.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        needed = {"encoder", "encoder_hash", "preprocess"}
        known = needed | {"weights", "bits"}
        if not isinstance(fields, dict) or not needed <= fields.keys() <= known:
            raise ValueError(f"encoding must have fields {sorted(needed)}, got {fields!r:.200}")
        words = {name: fields.get(name, UNKNOWN) for name in ("encoder", "encoder_hash", "weights")}
        for name, value in words.items():
            if not isinstance(value, str):
                raise ValueError(f"{name} of an encoding must be text, got {value!r:.200}")
        bits = fields.get("bits")
        check.one_of((None, *range(8, 17)), bits=bits)
        return cls(**words, preprocess=Preprocess.from_json(fields["preprocess"]), bits=bits)

    @classmethod
    def joined(cls, parts: Sequence["Encoding"]) -> "Encoding":
        """Encoding of rows side by side, as if `concat:` had made them at once.

        Raises:
            ValueError: fewer than two, rows that are joined already, of pictures that were brought
                to several sizes before, or inverted in part.
        """
        from pretrain.encoders.base import JOINED, Part, hash_of_parts, joined

        invert = parts[0].preprocess.invert if parts else False
        single = [part for part in parts if not part.encoder.startswith(JOINED)]
        if len(single) < 2 or len(single) < len(parts):
            raise ValueError(f"sets must be two of one encoder each, or more, got {len(single)}")
        if any(part.preprocess.invert != invert for part in parts):
            raise ValueError("sets must all be of inverted pictures, or none, got some")
        pictures = {part.preprocess.pictures for part in parts}
        if len(pictures) > 1:
            raise ValueError(
                "sets must be of pictures of one size (with one --resize, and @PIXELS of each "
                f"encoder), got {' and '.join(map(str, parts))}"
            )
        prepared = [replace(part.preprocess, invert=False, pictures=None) for part in parts]
        named = []
        for part, p in zip(parts, prepared, strict=True):
            size, crop = p.image_size, p.crop if p.crop < 1 else None
            if isinstance(size, tuple) or p != Preprocess(image_size=size, crop=p.crop):
                size = crop = None  # as its authors state
            named.append(Part(part.encoder, size, None, crop))
        hashes = [part.encoder_hash for part in parts]
        return cls(
            encoder=joined(named),
            encoder_hash=hash_of_parts(zip(hashes, prepared, strict=True)),
            weights="+".join(part.weights for part in parts),
            preprocess=Preprocess(invert=invert, pictures=pictures.pop()),
        )

    def metadata(self) -> dict[str, str]:
        """For the metadata of a safetensors file, which holds text only."""
        return {"encoding": json.dumps(self.to_json())}

    @classmethod
    def in_metadata(cls, metadata: Mapping[str, str], path: Path) -> "Encoding | None":
        """Reads what `metadata` gave from the file `path`; None of a file without.

        Raises:
            ValueError: unreadable; names the file.
        """
        if "encoding" not in metadata:
            return None
        try:
            return cls.from_json(parsed(metadata["encoding"]))
        except ValueError as error:
            raise ValueError(f"{path}: encoding must be readable, got: {error}") from error

    def __str__(self) -> str:
        """In a few words, for an error message."""
        said = "" if self.weights == UNKNOWN else f", weights {self.weights}"
        return f"{self.encoder} ({self.encoder_hash[:12]}{said}; {self.preprocess})"


def refuse_other(
    a: Encoding | None, b: Encoding | None, names: tuple[str, str] = ("public", "embeddings")
) -> None:
    """Checks that two sets of rows come from one encoder by way of one preprocessing.

    What says nothing of its origin is not compared. Names are not either: a checkpoint may lie
    elsewhere for somebody else. Preprocessing is compared by what becomes of a picture of any size.

    Args:
        a: of the one.
        b: of the other.
        names: what to call them in the message.

    Raises:
        ValueError: both are known and differ, or one of an earlier version does not say of what
            size its pictures were; names both.
    """
    if a is None or b is None:
        return
    called = " and ".join(names)
    if a.encoder_hash != b.encoder_hash:
        raise ValueError(f"{called} must be embedded by one encoder, got {a} and {b}")
    unknown = [each.preprocess.pictures is None for each in (a, b)]
    if any(unknown) and not all(unknown):
        raise ValueError(
            f"{names[unknown.index(True)]} must say of what size its pictures were, which that of "
            "an earlier version does not (embed or fit it again; a model takes pictures, by --data "
            f"and --resize), got {a} and {b}"
        )
    if not a.preprocess.same_as(b.preprocess):
        raise ValueError(
            f"{called} must be embedded with one preprocessing (one --resize, or @PIXELS of the "
            f"encoder), got {a} and {b}"
        )
