"""From embeddings to rows [a, clip(x)] of norm at most c, with public statistics only."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from embed.clip import check_bounds, roughly_clipped
from embed.directions import Directions, PublicMoments, norm_quantile, row_moments
from embed.encoding import Encoding
from embed.identity import known_rows
from embed.known_classes import KnownClasses
from embed.public_rows import checked_blocks, content_hash
from embed.row_map import RowMap
from embed.store import EmbeddingSet
from embed.transform_file import fields_of, read_transform_file, write_transform_file
from pretrain import check

SCATTER = ("within_class", "between_class")
PROVENANCE = ("fitted_on", "seen", "dropped", "encoding", "known", "options")


@dataclass(frozen=True, kw_only=True)
class PublicTransform(RowMap):
    """x -> [a, clip(Pᵀ(x - m)/s, sqrt(c² - a²))], everything estimated from public embeddings.

    With `clip_norm` c = sqrt(2) and `constant` a = 1 features are clipped to norm 1. With a
    `centre` rows are taken about it and clipped again (`embed.centre`); the public statistics then
    stand for rows about their own mean, in the directions that are kept.

    A transform keeps the hashes of the rows it was fitted on (see `embed.identity`), so that a
    release can refuse a transform that was fitted on its rows.

    Raises:
        ValueError: at construction, as `RowMap`, for a number that is not finite, or for guesses of
            classes with a centre.
    """

    row_mean: Tensor  # (q + 1,) mean of transformed public rows z, constant included
    second_moment: Tensor  # (q + 1, q + 1) mean of z zᵀ over them
    within_class: Tensor | None = None  # (q, q) covariance within classes; None: no labels
    between_class: Tensor | None = None  # (q, q) covariance of public class means
    fitted_on: str = ""  # content hash of the public set; empty for the identity
    seen: np.ndarray | None = None  # (m,) uint64 ascending hashes of the public rows; None: unknown
    dropped: int = 0  # private rows that an earlier version has taken out of the public set
    encoding: Encoding | None = None  # encoder of the public rows; None: unknown
    known: KnownClasses | None = None  # public guesses of the private classes' means
    options: dict[str, Any] | None = None  # of the fit; None: unknown, or not fitted

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centre is not None:
            check.shape((self.dim,), row_mean=self.row_mean)
        for name, values in self.tensors().items():
            if not values.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")
        if self.centre is not None and self.known is not None:
            raise ValueError("known must be left out with a centre, got guesses made without it")
        if self.seen is not None and not (
            self.seen.dtype == np.uint64 and (self.seen[1:] > self.seen[:-1]).all()
        ):
            raise ValueError(f"seen must be ascending uint64, got {self.seen.dtype}")

    @property
    def covariance(self) -> Tensor:
        """Covariance of the transformed public rows, (dim, dim); zero for the constant."""
        return self.second_moment - torch.outer(self.row_mean, self.row_mean)

    @cached_property
    def is_identity(self) -> bool:
        """Whether it equals `identity` of its dimension, so that no row can have shaped it."""
        unit = torch.eye(self.dim, dtype=self.second_moment.dtype)
        centred = not (self.mean.any() or self.row_mean.any())
        white = bool((self.scale == 1).all()) and torch.equal(self.second_moment, unit)
        further = self._rotates or self.scatter or self.known or self.discriminants is not None
        plain = self.centre is None and not further
        return centred and white and plain

    @property
    def placed(self) -> bool:
        """Whether it knows where the private rows or their classes lie."""
        return self.centre is not None or self.known is not None

    def same_rows(self, other: "PublicTransform") -> bool:
        """Whether both map every row alike; the rows they were fitted on may differ."""
        without = {name: torch.empty(0) for name in SCATTER}
        ours, theirs = ({**each.tensors(), **without} for each in (self, other))
        return self is other or _equal(ours, theirs)

    def same_scatter(self, other: "PublicTransform") -> bool:
        """Whether both have the same class scatter and the same guesses of classes, or none."""
        ours, theirs = (
            each.scatter | (each.known.tensors() if each.known else {}) for each in (self, other)
        )
        return _equal(ours, theirs)

    @property
    def scatter(self) -> dict[str, Tensor]:
        """Class scatter of the public rows by name; empty if they had no labels."""
        known = {name: getattr(self, name) for name in SCATTER}
        return {name: values for name, values in known.items() if values is not None}

    @classmethod
    @check.typed
    def fit(
        cls,
        public: "Tensor | np.ndarray | EmbeddingSet",
        *,
        components: int | None = None,
        whiten: bool = True,
        shrinkage: float = 0.01,
        directions: Directions = "principal",
        leading: int | None = None,
        discriminants: int | None = None,
        clip_quantile: float = 0.1,
        clip_norm: float = 2**0.5,
        constant: float = 1.0,
        remember: bool = True,
        moments: PublicMoments | None = None,
    ) -> "PublicTransform":
        """Estimates the transform from public embeddings.

        Args:
            public: (n, p) public embeddings.
            components: q directions to keep; None: all p.
            whiten: divide each principal direction by its (shrunk) standard deviation.
            shrinkage: share of the mean variance mixed into every direction's, in [0, 1].
            directions: "principal": largest variance; "tempered": the same, not fully whitened;
                "discriminant": best separation of the public classes; "mixed": between the two;
                "hedge": near "discriminant", and "tempered" without labels.
            leading: features after the first so many are shortened to .15 of their length, which
                leaves more of a clipped row to the first ones. None: no feature is shortened.
            discriminants: k. The transform also holds a matrix that projects features onto k
                "discriminant" directions; rows about a centre may be of these (see
                `embed.recentred`). None, or no labels: no such matrix.
            clip_quantile: features are divided by this quantile of the public norms; a low quantile
                clips nearly every row, and only directions remain.
            clip_norm: c.
            constant: a.
            remember: keep the hashes of the rows, which a release requires.
            moments: of the same rows, for several transforms of them; None: found here.

        Raises:
            ValueError: an option out of range, rows that are not finite, or missing labels.

        Examples:
            >>> public = torch.tensor([[4.0, 0, 5], [-4, 0, 5], [0, 2, 5], [0, -2, 5]])
            >>> transform = PublicTransform.fit(public, components=2, shrinkage=0.0)
            >>> transform(torch.tensor([[8.0, 0, 5], [2, 0, 9], [0, 1, 5]]))
            tensor([[1.0000, 1.0000, 0.0000],
                    [1.0000, 0.5000, 0.0000],
                    [1.0000, 0.0000, 0.5000]])
        """
        blocks = checked_blocks(public)
        p = next(iter(blocks())).shape[1]
        q = p if components is None else components
        check.within(f"[1, {p}]", components=q)
        check.within("[0, 1]", shrinkage=shrinkage, clip_quantile=clip_quantile)
        check_bounds(clip_norm, constant)
        check.one_of(get_args(Directions), directions=directions)
        if directions != "principal" and not whiten:
            raise ValueError(f"whiten must be left on with directions {directions!r}, got False")
        found = moments or PublicMoments(public, blocks)
        how = check.present(whiten=whiten, shrinkage=shrinkage, leading=leading)
        mean, basis, scale = found.directions(q, kind=directions, **how)
        features = found.projected(mean, basis / scale)
        if not found.exact:
            features = list(features)
        quantile = norm_quantile(features, clip_quantile)
        if not quantile > 0:
            raise ValueError(f"public rows must differ, got norm {quantile} at the clip quantile")
        fitted = cls(
            mean=mean.float(),
            basis=basis.float().contiguous(),
            scale=(scale * quantile).float(),
            discriminants=found.among(basis / scale, discriminants),
            clip_norm=clip_norm,
            constant=constant,
            row_mean=torch.empty(0),
            second_moment=torch.empty(0),
            fitted_on=content_hash(public),
            seen=known_rows(b.numpy() for b in blocks()) if remember else None,
            dropped=public.dropped_rows if isinstance(public, EmbeddingSet) else 0,
            encoding=public.encoding if isinstance(public, EmbeddingSet) else None,
            options={
                **{"components": q, "directions": directions, "clip_quantile": clip_quantile},
                **(how | {"clip_norm": clip_norm, "constant": constant}),
                **check.present(discriminants=discriminants),
            },
        )
        if found.exact:
            rows = (fitted(block) for block in blocks())
        else:
            rows = (roughly_clipped(block, quantile, clip_norm, constant) for block in features)
        row_mean, second_moment, within, between = row_moments(
            rows, found.labels, dtype=found.dtype, scattered=slice(1, None)
        )
        of_all = {"row_mean": row_mean, "second_moment": second_moment}
        return replace(fitted, **of_all, within_class=within, between_class=between)

    @classmethod
    def identity(cls, dim: int, clip_norm: float = 2**0.5, constant: float = 1.0) -> Self:
        """Only the constant and the clip, without centring or rotation; second moment I."""
        return cls(
            mean=torch.zeros(dim),
            basis=torch.eye(dim),
            scale=torch.ones(dim),
            clip_norm=clip_norm,
            constant=constant,
            row_mean=torch.zeros(dim + 1, dtype=torch.float64),
            second_moment=torch.eye(dim + 1, dtype=torch.float64),
        )

    def save(self, path: Path) -> None:
        """Writes safetensors, whole or not at all; equal transforms give equal bytes."""
        provenance = {name: getattr(self, name) for name in PROVENANCE}
        write_transform_file(path, self.tensors(), provenance)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that determine the rows, without provenance, for files that hold more."""
        bounds = torch.tensor([self.clip_norm, self.constant], dtype=torch.float64)
        length = torch.tensor(self.length, dtype=torch.float64)
        about_centre = {} if self.centre is None else {"centre": self.centre, "length": length}
        about_centre |= check.present(discriminants=self.discriminants)
        return (
            self.scatter
            | about_centre
            | {
                "mean": self.mean,
                "basis": self.basis,
                "scale": self.scale,
                "bounds": bounds,
                "row_mean": self.row_mean,
                "second_moment": self.second_moment,
            }
        )

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], **provenance: Any) -> "PublicTransform":
        """Makes a transform of the result of `tensors`.

        Args:
            tensors: by name.
            **provenance: `fitted_on`, `seen`, `dropped`, `encoding`, `known`, `options`, if there.

        Raises:
            ValueError: a tensor is missing or the shapes do not fit together.
        """
        return cls(**fields_of(tensors), **provenance)

    @classmethod
    def load(cls, path: Path) -> "PublicTransform":
        """Reads the file that `save` wrote; entries that an older file lacks stay unknown.

        Raises:
            ValueError: missing, damaged or something else.
        """
        tensors, provenance = read_transform_file(path)
        try:
            return cls.from_tensors(tensors, **provenance)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(values, theirs[name]) for name, values in ours.items()
    )
