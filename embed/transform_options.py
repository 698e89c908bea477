"""How the public transform is fitted, as options of a command."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from embed import EmbeddingSet, PublicTransform


@dataclass(frozen=True)
class TransformOptions:
    """How the public transform is fitted; see `embed.PublicTransform.fit`."""

    # The defaults are those of a release; `embed fit-transform` has two others of its own.

    components: int | None = None
    """Directions of the public embeddings that are kept. If left out: in `run` as many as the noise
    bears, by a public rule; elsewhere all."""
    directions: Literal["principal", "mixed", "discriminant"] = "principal"
    """Those of most variance, those that separate labelled public classes, or between the two."""
    whiten: bool = True
    """Divide each principal direction by its (shrunk) public standard deviation."""
    clip_quantile: float = 0.1
    """Features are divided by this quantile of the public norms, then clipped to length 1."""
    constant: float = 0.5
    """The constant column; the clip norm is sqrt(1 + constant²)."""

    def fit(self, public: "EmbeddingSet") -> "PublicTransform":
        """The transform of a public set."""
        from embed import PublicTransform

        return PublicTransform.fit(public, **self.arguments())

    def principal(self, dim: int) -> int:
        """How many principal directions of `dim` columns a transform looks at."""
        from embed.directions import RESTRICTED

        kept = dim if self.components is None else self.components
        return kept if self.directions == "principal" else min(dim, max(kept, RESTRICTED))

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `PublicTransform.fit`."""
        return {
            "components": self.components,
            "directions": self.directions,
            "whiten": self.whiten,
            "clip_quantile": self.clip_quantile,
            "constant": self.constant,
            "clip_norm": math.sqrt(1 + self.constant**2),
        }
