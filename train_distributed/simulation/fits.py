"""Transforms of many candidates on one public set, fitted once for many tasks."""

from collections.abc import Collection, Mapping
from functools import cached_property

from embed import EmbeddingSet, PublicTransform
from embed.compress import Compression, Coordinates
from embed.transform_options import TransformOptions


class Fits:
    """Transforms by name on compressed rows of a public set, each fitted when first asked for."""

    def __init__(self, public: EmbeddingSet, options: Mapping[str, TransformOptions]) -> None:
        self._whole, self._options = public, options
        self._found: dict[str, PublicTransform] = {}

    @cached_property
    def compression(self) -> Compression:
        """Projection to as many principal directions as the widest transform needs."""
        widest = max(each.principal(self._whole.dim) for each in self._options.values())
        return Compression.fit(self._whole, widest, exact=False)

    @cached_property
    def public(self) -> Coordinates:
        """The public rows, compressed."""
        return self.compression.apply(self._whole)

    def transforms(self, names: Collection[str]) -> dict[str, PublicTransform]:
        """Those that are named, of compressed rows."""
        for name in names:
            if name not in self._found:
                arguments = self._options[name].arguments()
                self._found[name] = self.compression.fit_transform(self.public, **arguments)
        return {name: self._found[name] for name in names}
