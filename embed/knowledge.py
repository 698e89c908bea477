"""What is public about the private classes, as options, and the guesses that a transform gets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what works is imported by the command that runs
    from torch import Tensor

    from embed import EmbeddingSet, PublicTransform
    from embed.class_sources import ClassMeans, NameRule
    from embed.known_classes import ClassGuess

NONE = Path("none")


@dataclass(frozen=True)
class Knowledge:
    """Public knowledge of the private classes; a model of few users starts from it."""

    names: tuple[str, ...] | None = None
    """Words for the classes, in the order of their numbers, for --text-encoder (default: as the
    private set declares)."""
    text_encoder: str | None = None
    """Guess class means from names, by those of public classes: `package` (extra `names`), a
    directory that transformers can load, or open_clip:NAME (default: names are not used)."""
    classifier: str | None = None
    """With --text-encoder: weights file that holds the classifier of a timm encoder, package or
    hub; its ImageNet classes join the public ones."""
    examples: Path | None = None
    """Public embedding set with labels named as the private classes (default: the public set where
    its class names contain the private ones; none: no examples)."""
    alike: Path | None = None
    """JSON file of private class and list of public classes that look alike."""

    def given(self) -> dict[str, Any]:
        """Options that were set, by name; the others are None."""
        return dict(vars(self))

    @property
    def guesses(self) -> bool:
        """Whether something is known of the classes beside public ones of the same names."""
        return bool(self.text_encoder or self.alike or self.examples not in (None, NONE))

    def validate(self) -> None:
        """Raises ValueError for an option that needs another one."""
        if self.classifier and self.text_encoder is None:
            raise ValueError("text_encoder must be given with classifier, got none")

    def added_to(
        self, transform: "PublicTransform", public: "EmbeddingSet", class_names: Sequence[str]
    ) -> "PublicTransform":
        """The transform with guesses of these classes; it has seen the examples' rows as well.

        Args:
            transform: fitted on `public`.
            public: labelled public set.
            class_names: K, in the order of their numbers; () where nobody knows them.

        Raises:
            ValueError: a file or set that does not serve, or names of another number.
        """
        from embed.class_sources import ClassMeans
        from embed.encoding import refuse_other
        from embed.identity import known_rows
        from embed.known_classes import KnownClasses
        from embed.named_classes import examples_of, means_by_name
        from embed.store import EmbeddingSet

        self.validate()
        names = tuple(class_names) or self.names or ()
        scattered = transform.between_class is not None
        shown = examples_of(public, names) if self.examples is None and scattered else None
        if self.examples not in (None, NONE):
            shown = EmbeddingSet.open(self.examples)
            shown.need_labels("examples")
            shown.check_finite("examples")
            refuse_other(public.encoding, shown.encoding, ("public", "examples"))
            names = names or shown.declared_classes
        if self.text_encoder is None and self.alike is None and shown is None:
            return transform
        if not names:
            raise ValueError("class names must be known for guesses of class means, got none")
        if self.names and len(self.names) != len(names):
            raise ValueError(f"names must be {len(names)}, one of each class, got {self.names}")
        public.need_labels("public")
        sources = Sources.of(self, public)
        means = ClassMeans.of(public, transform, sources.classes)
        found = None if shown is None else means_by_name(shown, transform, names)
        rule, words = sources.rule(transform, means)
        if rule is not None:
            said = f"R² {rule.explained:.2f} by leaving out one of the {words}"
            nothing = "" if rule.explained > 0 else "names say nothing here: "
            print(f"{nothing}{said}", file=sys.stderr)
        groups = sources.vectors(self.names or names)
        guesses = assembled(
            transform,
            rule,
            words,
            groups,
            found,
            self._alike(names, public, means, transform),
            means,
        )
        if shown is not None and shown is not public and transform.seen is not None:
            rows = (block for each in (public, shown) for block in each.blocks())
            transform = replace(transform, seen=known_rows(rows))
        known = KnownClasses(names, guesses) if guesses else None
        return replace(transform, known=known)

    def _alike(
        self,
        names: Sequence[str],
        public: "EmbeddingSet",
        means: "ClassMeans",
        transform: "PublicTransform",
    ) -> "ClassGuess | None":
        from embed.class_sources import PublicScatter, from_alike
        from embed.named_classes import read_alike

        if self.alike is None:
            return None
        labels = read_alike(self.alike, names, public.meta.get("class_names", ()))
        return from_alike(labels, means, PublicScatter.of(transform))


@dataclass(frozen=True)
class Sources:
    """Names of public classes as vectors, and those of the encoder's own classifier."""

    classes: int  # L of the public set
    encoder: str | None = None  # of text
    public: "Tensor | None" = None  # (L, e)
    own: "Tensor | None" = None  # (C, e) of the classifier's classes
    directions: "Tensor | None" = None  # (C, p) C_x w_c, as displacements of embeddings
    matched: tuple[tuple[int, int], ...] = ()  # classifier's class and public class

    @classmethod
    def of(cls, knowledge: Knowledge, public: "EmbeddingSet") -> "Sources":
        """Sources of the options; raises ValueError for a public set without class names."""
        named = [str(name) for name in public.meta.get("class_names", ())]
        classes = len(named) or int(public.labels.max()) + 1
        if knowledge.text_encoder is None:
            return cls(classes)
        if not named:
            raise ValueError("public must name its classes for text_encoder, got none")
        from pretrain.encoders.text import name_vectors, words_of

        vectors = name_vectors(named, knowledge.text_encoder)
        if knowledge.classifier is None:
            return cls(classes, knowledge.text_encoder, vectors)
        if public.encoding is None:
            raise ValueError("public must say its encoder for classifier, got rows of unknown one")
        from embed.named_classes import plain
        from pretrain.encoders.classifier import classifier_of

        ids, weights = classifier_of(public.encoding.encoder, knowledge.classifier)
        place = {plain(name): label for label, name in enumerate(named)}
        place |= {plain(words_of(name)): label for label, name in enumerate(named)}
        matched = tuple(
            (number, place[key])
            for number, name in enumerate(ids)
            for key in [plain(words_of(name))]
            if key in place
        )
        own = name_vectors(ids, knowledge.text_encoder)
        directions = covariance_with(public, weights)
        return cls(classes, knowledge.text_encoder, vectors, own, directions, matched)

    def compressed(self, basis: "Tensor") -> "Sources":
        """Sources for coordinates along a (p, Q) basis; see `embed.compress`."""
        moved = None if self.directions is None else self.directions @ basis
        return replace(self, directions=moved)

    def vectors(self, names: Sequence[str]) -> "list[Tensor]":
        """(1, e) vector of each name; nothing without a text encoder."""
        from pretrain.encoders.text import name_vectors

        if self.encoder is None:
            return []
        return list(name_vectors(names, self.encoder).split(1))

    def rule(
        self, transform: "PublicTransform", means: "ClassMeans", without: Sequence[int] = ()
    ) -> "tuple[NameRule | None, str]":
        """The rule from names to class means, and its words; None without a text encoder.

        Args:
            transform: whose features the means are in.
            means: of the public classes.
            without: public classes that it must not know, nor the classifier's of the same name.
        """
        import torch

        from embed.class_sources import FEWEST, NameRule, of_classifier

        if self.public is None:
            return None, ""
        kept = [k for k in means.counts.nonzero().flatten().tolist() if k not in set(without)]
        if len(kept) < FEWEST:
            raise ValueError(
                f"public must hold at least {FEWEST} classes for text_encoder, got {len(kept)}"
            )
        vectors, known = self.public[kept], means.means[kept]
        words = f"names of {len(kept)} public classes"
        matched = {c: k for c, k in self.matched if k in set(kept)}
        if self.own is not None and self.directions is not None and len(matched) >= FEWEST:
            scale = transform.scale.double()
            features = self.directions @ transform.basis.double() / scale
            more, explained = of_classifier(features, matched, means)
            paired = {c for c, _ in self.matched}
            rest = [c for c in range(len(self.own)) if c not in paired]
            vectors = torch.cat([vectors, self.own[rest]])
            known = torch.cat([known, more[rest]])
            words += f" and of {len(rest)} of the encoder's classifier (R² {explained:.2f})"
        return NameRule.learned(vectors, known, len(kept)), words


def assembled(
    transform: "PublicTransform",
    rule: "NameRule | None",
    words: str,
    groups: "Sequence[Tensor]",
    examples: "ClassMeans | None",
    alike: "ClassGuess | None",
    public: "ClassMeans | None" = None,
) -> "tuple[ClassGuess, ...]":
    """Guesses of every source, and of examples after each of the others.

    `public` are the public class means, near which examples may lie.
    """
    from embed.class_sources import PublicScatter, from_examples, from_names

    scatter = PublicScatter.of(transform)
    said = None if rule is None else from_names(rule, groups, scatter, words)
    first = [each for each in (said, alike) if each is not None]
    if examples is None:
        return tuple(first)
    after = [from_examples(examples, scatter, each, public) for each in (None, *first)]
    return (*first, *after)


def covariance_with(public: "EmbeddingSet", weights: "Tensor") -> "Tensor":
    """(C, p) covariance of (C, p) scores' weights with embeddings: C_x w_c, over public rows."""
    import numpy as np
    import torch

    narrow = (weights - weights.mean(0)).float()
    count, rows, scores = 0, torch.zeros(narrow.shape[1]), torch.zeros(len(narrow))
    both = torch.zeros(narrow.shape, dtype=torch.float64)
    for block in public.blocks():
        x = torch.from_numpy(np.array(block)).float()
        said = x @ narrow.mT
        both += (said.mT @ x).double()
        rows, scores, count = (
            rows + x.double().sum(0),
            scores + said.double().sum(0),
            count + len(x),
        )
    return both / count - torch.outer(scores / count, rows / count)
