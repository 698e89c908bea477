"""From embeddings to rows [a, clip(y)] of norm at most c, with public statistics only; its file."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from embed.clip import (
    add_constant_and_clip,
    as_tensor,
    check_bounds,
    check_finite,
    in_blocks,
    product,
    project,
)
from embed.encoding import Encoding
from embed.identity import known_rows
from embed.known_classes import ClassGuess, KnownClasses
from embed.public_scatter import PublicScatter, principal_directions
from embed.store import EmbeddingSet
from embed.water_filling import FAINT, Centre, Channel
from pretrain import check
from pretrain.cli.json_text import read_field
from pretrain.cli.output import new_file
from pretrain.datasets import UNLABELLED
from pretrain.encoders.weights import read_tensors, write_tensors

COMPONENTS = 512  # size: D at most; water-filling chooses among them
CLIP_QUANTILE = 0.1  # prior: of public norms; .02 to .3 are within half a point of each other
CONSTANT = 0.5  # prior: a, where features are at most 1 long
TIGHT = 0.5  # prior: of the typical distance from the centre: nearly every row is clipped again
# Bounds of what divides features, as anybody may have made a transform: normal float32 numbers; and
# about a centre lengths of which float32's rounding of a row, 2⁻²⁴, is a sixteenth at most.
SCALES = "[2^-126, 2^127]"
LENGTHS = "[2^-20, 2^20]"


@dataclass(frozen=True, kw_only=True)
class PublicTransform:
    """x -> [a, y], y = clip(Pᵀ(x − m₀)/r): raw coordinates, all estimated from public embeddings.

    Once `mapped`, x -> [a, clip((Aᵀy − o)/s)]: relative to the centre of the private rows, along
    the directions in which a noised sum separates classes best. In both cases the features have a
    norm of at most √(c² − a²).

    A transform keeps the hashes of the rows it was fitted on (see `embed.identity`), so that a
    release can refuse a transform that was fitted on its rows.

    Raises:
        ValueError: at construction, for a number that is not finite, a scale or length out of
            range, or a tensor of another precision than is stated below.
    """

    mean: Tensor  # (p,) float32 m₀
    basis: Tensor  # (p, D) float32 P
    scale: Tensor  # () float32 r, or (D,)
    clip_norm: float  # c
    constant: float  # a
    row_mean: Tensor  # (D,) float64 mean of public y
    within_class: Tensor  # (D, D) float64 W of public y; without labels their covariance
    between_class: Tensor | None = None  # (D, D) float64 B of public y; None: no labels
    directions: Tensor | None = None  # (D, q) float64 A; None: raw coordinates
    centre: Tensor | None = None  # (q,) float64 o = Aᵀm
    length: float = 1.0  # s
    fitted_on: str = ""  # content hash of the public set; empty for the identity
    seen: np.ndarray | None = None  # (m,) uint64 ascending hashes of the public rows; None: unknown
    dropped: int = 0  # private rows that an earlier version has taken out of the public set
    encoding: Encoding | None = None  # encoder of the public rows; None: unknown
    known: KnownClasses | None = None  # public guesses of the private classes' means, of y
    options: dict[str, Any] | None = None  # of the fit; None: unknown, or not fitted

    def __post_init__(self) -> None:
        check_bounds(self.clip_norm, self.constant)
        if (self.directions is None) != (self.centre is None):
            raise ValueError("directions and centre must be given together, got one of them")
        for name, values in self.tensors().items():
            dtype = torch.float32 if name in ("mean", "basis", "scale") else torch.float64
            if values.dtype != dtype:
                raise ValueError(f"{name} must be {str(dtype)[6:]}, got {values.dtype}")
            if not values.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")
        for least_or_largest in (self.scale.min(), self.scale.max()):
            check.within(SCALES, scale=float(least_or_largest))
        check.within(LENGTHS, length=self.length)
        if self.seen is not None and not (
            self.seen.dtype == np.uint64 and (self.seen[1:] > self.seen[:-1]).all()
        ):
            raise ValueError(f"seen must be ascending uint64, got {self.seen.dtype}")

    @property
    def dim(self) -> int:
        """Columns of a row, the constant included."""
        return (self.basis if self.directions is None else self.directions).shape[1] + 1

    @property
    def reach(self) -> float:
        """√(c² − a²), the largest length of a row's features."""
        return math.sqrt(self.clip_norm**2 - self.constant**2)

    def __call__(self, x: Tensor | np.ndarray, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Transforms (n, p) embeddings to (n, dim) rows of norm at most `clip_norm`.

        Raises:
            ValueError: another number of columns, or a row that is not finite.
        """
        check.shape(("n", len(self.mean)), x=x)

        def rows(block: Tensor, start: int) -> Tensor:
            return self.clipped(self.features(block, first_row=start), dtype)

        return in_blocks(x, rows, torch.empty(len(x), self.dim, dtype=dtype))

    def features(self, x: Tensor, *, first_row: int = 0) -> Tensor:
        """Pᵀ(x − m₀)/r before clipping, (n, D) float64, finite.

        `first_row` is the number of the first row of x, for errors. `embed.clip.project` says
        what becomes of features that no float can hold.
        """
        check_finite(x, "x", first_row)
        return project(x, self.mean, self.basis if self._rotates else None, self.scale)

    def clipped(self, features: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """(n, dim) rows of (n, D) features."""
        rows = add_constant_and_clip(features, self.clip_norm, self.constant, dtype=dtype)
        return self.map_rows(rows)

    def map_rows(self, rows: Tensor) -> Tensor:
        """(n, dim) rows of this transform, from the (n, D + 1) raw ones [a, y]."""
        if self.directions is None or self.centre is None:
            return rows
        directions, centre = self.directions, self.centre

        def mapped(block: Tensor, _: int) -> Tensor:
            features = (product(block[:, 1:].double(), directions) - centre) / self.length
            return add_constant_and_clip(features, self.clip_norm, self.constant, dtype=rows.dtype)

        return in_blocks(rows, mapped, rows.new_empty(len(rows), self.dim))

    @property
    def raw(self) -> "PublicTransform":
        """The transform to raw coordinates, before it is mapped."""
        return replace(self, directions=None, centre=None, length=1.0)

    def mapped(
        self, noise: float, components: int, centre: Centre | None = None
    ) -> "PublicTransform":
        """The transform to the directions that show most of class means seen with this noise.

        Where something is known of the classes no length is less than `FAINT` of the largest.

        Rows are divided by s, `TIGHT` times the typical distance of private rows from the centre,
        √tr(AᵀTA) times their spread over that of public ones.

        Args:
            noise: t >= 0, standard deviation of the noise in a class mean of rows of norm 1.
            components: q; fewer, where more would be of length 0.
            centre: of the private rows; None: the public mean, and public spread.
        """
        check.within(f"[1, {self.basis.shape[1]}]", components=components)
        if self.directions is not None:
            raise ValueError("transform must be to raw coordinates, got a mapped one")
        if abs(self.reach - 1) > 2.0**-40:
            raise ValueError(f"transform must clip features to length 1, got {self.reach}")
        public = self.public
        about = Centre.public(public) if centre is None else centre
        channel = Channel.of(public, about.share)
        lengths = channel.lengths(noise, components)
        if self.known is not None:  # which say where classes lie also where noise hides it
            lengths = lengths.clamp(min=FAINT * float(lengths.max()))
        kept = lengths > 0
        directions = channel.directions[:, : len(lengths)][:, kept] * lengths[kept]
        return replace(
            self,
            directions=directions,
            centre=about.place @ directions,
            length=TIGHT * about.spread * math.sqrt(_trace(public, directions)),
        )

    @cached_property
    def public(self) -> PublicScatter:
        """Mean and scatter of public rows as this transform gives them, features alone.

        Mapped rows are nearly all clipped to length 1 about their own mean, so theirs is that of
        Aᵀ(y − m) with a mean squared length of 1.
        """
        found = PublicScatter(self.row_mean, self.within_class, self.between_class)
        if self.directions is None:
            return found
        return found.along(self.directions, math.sqrt(_trace(found, self.directions)))

    @property
    def guesses(self) -> tuple[ClassGuess, ...]:
        """Public guesses of the class means, in the coordinates of the rows; () without any."""
        found = () if self.known is None else self.known.guesses
        if self.directions is None or self.centre is None:
            return found
        typical = self.length / TIGHT
        return tuple(
            replace(
                each,
                means=(self.directions.T @ each.means.double() - self.centre[:, None]) / typical,
                covariance=self.directions.T
                @ each.covariance.double()
                @ self.directions
                / typical**2,
            )
            for each in found
        )

    @cached_property
    def is_identity(self) -> bool:
        """Whether it equals `identity` of its dimension, so that no row can have shaped it."""
        unit = torch.eye(len(self.within_class), dtype=torch.float64)
        centred = not (self.mean.any() or self.row_mean.any())
        plain = self.directions is None and self.between_class is None and self.known is None
        white = bool((self.scale == 1).all()) and torch.equal(self.within_class, unit)
        return centred and plain and white and not self._rotates

    @cached_property
    def _rotates(self) -> bool:
        p, q = self.basis.shape
        return p != q or not torch.equal(self.basis, torch.eye(p, dtype=self.basis.dtype))

    def same_rows(self, other: "PublicTransform") -> bool:
        """Whether both map every row alike; the rows they were fitted on may differ."""
        without = dict.fromkeys(("row_mean", "within_class", "between_class"), torch.empty(0))
        ours, theirs = ({**each.tensors(), **without} for each in (self, other))
        return self is other or _equal(ours, theirs)

    def same_knowledge(self, other: "PublicTransform") -> bool:
        """Whether both know the same of public rows, and of the classes."""
        return _equal(self._all_tensors, other._all_tensors)

    @property
    def identifier(self) -> str:
        """SHA-256 of what it makes of rows, and of what it knows of public rows and of classes."""
        found = hashlib.sha256()
        for name, values in sorted(self._all_tensors.items()):
            found.update(f"{name} {tuple(values.shape)} {values.dtype}".encode())
            found.update(values.contiguous().numpy().tobytes())
        return found.hexdigest()

    @property
    def _all_tensors(self) -> dict[str, Tensor]:
        return self.tensors() | ({} if self.known is None else self.known.tensors())

    @classmethod
    def fit(
        cls,
        public: "Tensor | np.ndarray | EmbeddingSet",
        *,
        components: int | None = None,
        clip_quantile: float = CLIP_QUANTILE,
        constant: float = CONSTANT,
    ) -> "PublicTransform":
        """Estimates the transform to raw coordinates from public embeddings.

        Args:
            public: (n, p) public embeddings.
            components: D leading principal directions to keep; None: `COMPONENTS`, or as many as
                the rows have.
            clip_quantile: features are divided by this quantile of the public norms; a low quantile
                clips nearly every row, and only directions remain.
            constant: a; c = √(1 + a²), with which features are clipped to length 1.

        Raises:
            ValueError: an option out of range, rows that are not finite, or all alike.

        Examples:
            >>> public = torch.tensor([[4.0, 0, 5], [-4, 0, 5], [0, 2, 5], [0, -2, 5]])
            >>> transform = PublicTransform.fit(public, components=2)
            >>> transform(torch.tensor([[8.0, 0, 5], [1, 0, 9], [0, 1, 5]]))
            tensor([[0.5000, 1.0000, 0.0000],
                    [0.5000, 0.5000, 0.0000],
                    [0.5000, 0.0000, 0.5000]])
        """
        if len(public) < 2:
            raise ValueError(f"public must hold at least 2 rows, got {len(public)}")
        known = public if isinstance(public, EmbeddingSet) else _as_set(public)
        known.check_finite("public")

        def blocks() -> Iterator[Tensor]:
            return map(as_tensor, known.blocks())

        p = known.dim
        q = min(COMPONENTS, p, len(known) - 1) if components is None else components
        check.within(f"[1, {p}]", components=q)
        check.within("[0, 1]", clip_quantile=clip_quantile)
        check.within("[0, 16]", constant=constant)  # √(c² − a²) is exact to a few 2⁻⁴⁶ up to there
        clip_norm = math.sqrt(1 + constant**2)
        mean, basis = principal_directions(blocks(), q, known.parts)
        norms = [((b.double() - mean) @ basis).norm(dim=1).numpy() for b in blocks()]
        scale = float(np.quantile(np.concatenate(norms), clip_quantile))
        if not scale > 0:
            raise ValueError(f"public rows must differ, got norm {scale} at the clip quantile")
        fitted = cls(
            mean=mean.float(),
            basis=basis.float().contiguous(),
            scale=torch.tensor(scale, dtype=torch.float32),
            clip_norm=clip_norm,
            constant=constant,
            row_mean=torch.zeros(q, dtype=torch.float64),
            within_class=torch.eye(q, dtype=torch.float64),
            fitted_on=known.content_hash(),
            seen=known_rows(known.blocks()),
            dropped=known.dropped_rows,
            encoding=known.encoding,
            options={
                "components": q,
                "clip_quantile": clip_quantile,
                "clip_norm": clip_norm,
                "constant": constant,
            },
        )
        labels = torch.from_numpy(np.array(known.labels)) if known.labelled else None
        found = PublicScatter.of((fitted(block)[:, 1:] for block in blocks()), labels)
        return replace(
            fitted,
            row_mean=found.mean,
            within_class=found.within,
            between_class=found.between,
        )

    @classmethod
    def identity(cls, dim: int, clip_norm: float = 2**0.5, constant: float = 1.0) -> Self:
        """Only the constant and the clip, without centring or rotation; covariance I."""
        return cls(
            mean=torch.zeros(dim),
            basis=torch.eye(dim),
            scale=torch.ones(()),
            clip_norm=clip_norm,
            constant=constant,
            row_mean=torch.zeros(dim, dtype=torch.float64),
            within_class=torch.eye(dim, dtype=torch.float64),
        )

    def save(self, path: Path) -> None:
        """Writes safetensors, whole or not at all; equal transforms give equal bytes."""
        tensors = self._all_tensors
        metadata = {"fitted_on": self.fitted_on, "dropped": str(self.dropped)}
        if self.seen is not None:
            tensors["seen"] = torch.from_numpy(self.seen.view(np.int64))
        if self.options is not None:
            metadata["options"] = json.dumps(self.options)
        for held in (self.encoding, self.known):
            metadata |= {} if held is None else held.metadata()
        with new_file(path) as partial:
            write_tensors(partial, {k: v.contiguous() for k, v in tensors.items()}, metadata)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that determine the rows, without provenance, for files that hold more."""
        bounds = torch.tensor([self.clip_norm, self.constant], dtype=torch.float64)
        names = ("mean", "basis", "scale", "row_mean", "within_class", "between_class")
        found = {name: getattr(self, name) for name in (*names, "directions", "centre")}
        if self.directions is not None:
            found["length"] = torch.tensor(self.length, dtype=torch.float64)
        return check.drop_none(**found) | {"bounds": bounds}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], **provenance: Any) -> "PublicTransform":
        """Makes a transform of the result of `tensors`.

        Args:
            tensors: by name.
            **provenance: fields that are no tensors of `tensors`, such as `seen`.

        Raises:
            ValueError: a tensor is missing, as in files of earlier versions, or the shapes do not
                fit together.
        """
        names = {"mean", "basis", "scale", "bounds", "row_mean", "within_class"}
        if names - tensors.keys() or "second_moment" in tensors:
            raise ValueError(
                f"transform must hold {sorted(names)}, got {sorted(tensors)}; one of an earlier "
                "version is to be fitted again"
            )
        if tensors["bounds"].shape != (2,) or tensors["basis"].ndim != 2:
            raise ValueError("bounds must have shape (2,) and basis (p, D), got others")
        p, d = tensors["basis"].shape
        shapes: dict[str, tuple[Any, ...]] = {"mean": (p,), "basis": (p, d), "row_mean": (d,)}
        shapes |= {"scale": (d,) if tensors["scale"].ndim else (), "within_class": (d, d)}
        shapes |= {"between_class": (d, d), "directions": (d, "q"), "centre": ("q",)}
        fields: dict[str, Any] = {name: tensors[name] for name in shapes if name in tensors}
        for name, values in fields.items():
            check.shape(shapes[name], **{name: values})
        if "directions" in tensors and "centre" in tensors:
            check.shape((tensors["directions"].shape[1],), centre=tensors["centre"])
            check.shape((), length=tensors.get("length", torch.empty(0)))
            fields["length"] = float(tensors["length"])
        clip_norm, constant = tensors["bounds"].tolist()
        return cls(**fields, clip_norm=clip_norm, constant=constant, **provenance)

    @classmethod
    def load(cls, path: Path) -> "PublicTransform":
        """Reads the file that `save` wrote; entries that an older file lacks stay unknown.

        Raises:
            ValueError: missing, damaged or something else.
        """
        tensors, metadata = read_tensors(path, "a saved transform")
        seen, dropped = tensors.pop("seen", None), metadata.get("dropped", "0")
        options = read_field(metadata, "options", path)
        known = KnownClasses.taken_from(tensors, metadata, path)
        encoding = Encoding.in_metadata(metadata, path)
        try:
            if seen is not None and (seen.dtype != torch.int64 or seen.ndim != 1):
                raise ValueError(f"seen must be int64 (m,), got {seen.dtype} {seen.shape}")
            if not dropped.isdecimal():
                raise ValueError(f"dropped must be a whole number, got {dropped!r}")
            if not isinstance(options, dict | None):
                raise ValueError(f"options must be a JSON object, got {metadata['options']}")
            return cls.from_tensors(
                tensors,
                fitted_on=metadata.get("fitted_on", ""),
                seen=None if seen is None else seen.numpy().view(np.uint64),
                dropped=int(dropped),
                encoding=encoding,
                known=known,
                options=options,
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _as_set(rows: "Tensor | np.ndarray") -> EmbeddingSet:
    values = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
    return EmbeddingSet(embeddings=values, labels=np.full(len(values), UNLABELLED))


def _trace(public: PublicScatter, directions: Tensor) -> float:
    """tr(AᵀTA), the mean squared length of public Aᵀ(y − ȳ)."""
    return float((directions * (public.covariance @ directions)).sum())


def _equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(values, theirs[name]) for name, values in ours.items()
    )
