"""Public guesses of the private classes' means: what is known of the classes before anybody sums.

A guess comes from the names of the classes or from public examples of them; see
`embed.guesses`. It says where the mean of a class lies in the features of a transform, and
how wrong such guesses are. No private row has a part in it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pretrain import check
from pretrain.cli.json_text import parsed

METADATA = "known_classes"  # of a transform's file


@dataclass(frozen=True)
class ClassGuess:
    """Class means that one source guesses: N(m_k, t V), t a scale near 1."""

    source: str  # in words
    means: Tensor  # (q, K) float64 m
    covariance: Tensor  # (q, q) float64 V
    trust: int = 1  # before any sum: of names 1, of examples 2, of both 3


@dataclass(frozen=True)
class KnownClasses:
    """Guesses of all sources, for classes in the order of their numbers.

    Raises:
        ValueError: at construction, for shapes that do not fit, or numbers that are not finite.
    """

    class_names: tuple[str, ...]
    guesses: tuple[ClassGuess, ...]

    def __post_init__(self) -> None:
        for guess in self.guesses:
            q = len(guess.means)
            check.shape((q, len(self.class_names)), means=guess.means)
            check.shape((q, q), covariance=guess.covariance)
            if not (guess.means.isfinite().all() and guess.covariance.isfinite().all()):
                raise ValueError(f"guess must be finite, got NaN or infinity: {guess.source}")

    @property
    def words(self) -> list[str]:
        """Sources of the guesses, for reports."""
        return [guess.source for guess in self.guesses]

    def check_classes(self, class_names: Sequence[str], num_classes: int) -> None:
        """Raises ValueError unless the guesses are of these classes; names may be unknown ()."""
        if len(self.class_names) != num_classes:
            raise ValueError(
                f"num_classes must be {len(self.class_names)}, the classes that the transform has "
                f"guesses of, got {num_classes}"
            )
        if class_names and tuple(class_names) != self.class_names:
            raise ValueError(
                f"class names must be those that the transform has guesses of, {self.class_names}, "
                f"got {tuple(class_names)}"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Tensors for a file, by name."""
        return {
            f"guess.{number}.{name}": getattr(guess, name)
            for number, guess in enumerate(self.guesses)
            for name in ("means", "covariance")
        }

    def metadata(self) -> dict[str, str]:
        """Names for the file's metadata."""
        guesses = [{"source": each.source, "trust": each.trust} for each in self.guesses]
        fields = {"class_names": list(self.class_names), "guesses": guesses}
        return {METADATA: json.dumps(fields, ensure_ascii=False)}

    @classmethod
    def taken_from(
        cls, tensors: dict[str, Tensor], metadata: Mapping[str, str], path: Path
    ) -> "KnownClasses | None":
        """Takes the guesses out of a file's tensors; None where the file has none.

        Raises:
            ValueError: damaged.
        """
        if METADATA not in metadata:
            return None
        try:
            fields: Any = parsed(metadata[METADATA])
            guesses = tuple(
                ClassGuess(
                    str(each["source"]),
                    tensors.pop(f"guess.{number}.means"),
                    tensors.pop(f"guess.{number}.covariance"),
                    int(each["trust"]),
                )
                for number, each in enumerate(fields["guesses"])
            )
            return cls(tuple(map(str, fields["class_names"])), guesses)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: {METADATA} must be what was saved, got {error}") from error
