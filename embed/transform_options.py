"""Options of the public transform."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from embed import EmbeddingSet, PublicTransform


@dataclass(frozen=True)
class TransformOptions:
    """Options of the public transform; see `embed.PublicTransform.fit`."""

    # The defaults are those of a release; `embed fit-transform` has two others of its own.

    components: int | None = None
    """Number of public directions to keep (default: in `run` as many as a public rule allows for
    the noise; elsewhere all)."""
    directions: Literal["principal", "tempered", "mixed", "discriminant", "hedge"] | None = None
    """principal: largest variance; tempered: the same, but not brought to equal variance, so that
    noise hides the leading ones less; discriminant: best separation of labelled public classes;
    mixed: between principal and discriminant; hedge: near discriminant, for private pictures of any
    kind, and tempered where public pictures have no labels (default: in `run` hedge for method
    discriminant, tempered for softmax, svm and logistic, otherwise principal)."""
    leading: int | None = None
    """Shorten all directions after the first so many to .15 of their length. It pays where names or
    examples say where classes lie, and noise hides those directions (default: in `run` with names
    or examples, as many as it would keep without; otherwise no direction is shortened)."""
    discriminants: int | None = None
    """Number of discriminant directions onto which private rows are projected where a first sum
    (`--centre private`) finds that they have much in common, instead of the first directions of the
    transform; needs labelled public rows (default: in `run` by a public rule; elsewhere none)."""
    whiten: bool = True
    """Divide each principal direction by its (shrunk) public standard deviation."""
    clip_quantile: float = 0.1
    """Divide features by this quantile of the public norms, then clip them to length 1."""
    constant: float = 0.5
    """Value of the constant column; the clip norm is sqrt(1 + constant²)."""

    def fit(self, public: "EmbeddingSet") -> "PublicTransform":
        """Fits the transform to a public set."""
        from embed import PublicTransform

        return PublicTransform.fit(public, **self.arguments())

    def principal(self, dim: int) -> int:
        """Number of principal directions, of `dim` columns, that the fit depends on."""
        from embed.directions import MIXTURES, RESTRICTED

        kept = dim if self.components is None else self.components
        restricted = self.directions in MIXTURES
        return min(dim, max(kept, RESTRICTED)) if restricted else kept

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `PublicTransform.fit`."""
        return {
            "components": self.components,
            "directions": self.directions or "principal",
            "leading": self.leading,
            "discriminants": self.discriminants,
            "whiten": self.whiten,
            "clip_quantile": self.clip_quantile,
            "constant": self.constant,
            "clip_norm": math.sqrt(1 + self.constant**2),
        }
