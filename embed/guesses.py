"""Guesses of the private classes' means that a transform gets from public knowledge."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embed.class_sources import (
    FEWEST,
    ClassMeans,
    NameRule,
    from_examples,
    from_names,
    of_classifier,
    open_scatter,
    scatter_within,
)
from embed.encoding import refuse_other
from embed.identity import known_rows
from embed.known_classes import KnownClasses
from embed.options import NONE, Knowledge
from embed.store import EmbeddingSet
from embed.transform import PublicTransform
from pretrain.encoders.text import name_vectors, words_of


def added_to(
    knowledge: Knowledge,
    transform: PublicTransform,
    public: EmbeddingSet,
    class_names: Sequence[str],
    sources: "Sources | None" = None,
) -> PublicTransform:
    """The transform with guesses of these classes; it has seen the examples' rows as well.

    Args:
        knowledge: public knowledge of the classes.
        transform: fitted on `public`.
        public: labelled public set.
        class_names: K, in the order of their numbers; () where nobody knows them.
        sources: of this knowledge and `public`, for several transforms; None: found here.

    Raises:
        ValueError: a set that does not serve, or names of another number.
    """
    names = tuple(class_names) or knowledge.names or ()
    scattered = transform.between_class is not None
    shown = examples_of(public, names) if knowledge.examples is None and scattered else None
    if knowledge.examples not in (None, NONE):
        shown = EmbeddingSet.open(knowledge.examples)
        shown.need_labels("examples")
        shown.check_finite("examples")
        refuse_other(public.encoding, shown.encoding, ("public", "examples"))
        names = names or shown.declared_classes
    if knowledge.text_encoder is None and shown is None:
        return transform
    if not names:
        raise ValueError("class names must be known for guesses of class means, got none")
    if knowledge.names and len(knowledge.names) != len(names):
        raise ValueError(f"names must be {len(names)}, one of each class, got {knowledge.names}")
    public.need_labels("public")
    sources = sources or Sources.of(knowledge, public)
    means = ClassMeans.of(public, transform, sources.classes)
    found = None if shown is None else means_by_name(shown, transform, names)
    rule = sources.rule(transform, means)
    groups = sources.vectors(knowledge.names or names)
    transform = knowing(transform, names, rule, groups, found)
    if rule is not None:
        said = f"R² {rule.explained:.2f} by leaving out one of the {rule.source}"
        if transform.known is None or rule.source not in transform.known.words:
            why = "" if rule.explained <= 0 else ", almost the same of all of these classes"
            said = f"names say nothing here{why}: {said}"
        print(said, file=sys.stderr)
    if shown is not None and shown is not public and transform.seen is not None:
        rows = (block for each in (public, shown) for block in each.blocks())
        transform = replace(transform, seen=known_rows(rows))
    return transform


@dataclass(frozen=True)
class Sources:
    """Names of public classes as vectors, and those of the encoder's own classifier."""

    classes: int  # L of the public set
    encoder: str | None = None  # of text
    public: Tensor | None = None  # (L, e)
    own: Tensor | None = None  # (C, e) of the classifier's classes
    directions: Tensor | None = None  # (C, p) C_x w_c, as displacements of embeddings
    matched: tuple[tuple[int, int], ...] = ()  # classifier's class and public class

    @classmethod
    def of(cls, knowledge: Knowledge, public: EmbeddingSet) -> "Sources":
        """Sources of the options; raises ValueError for a public set without class names."""
        named = [str(name) for name in public.meta.get("class_names", ())]
        classes = len(named) or int(public.labels.max()) + 1
        if knowledge.text_encoder is None:
            return cls(classes)
        if not named:
            raise ValueError("public must name its classes for text_encoder, got none")
        vectors = name_vectors(named, knowledge.text_encoder)
        held, made = None, public.encoding
        if made is not None:
            from pretrain.encoders.timm_models import classifier_of

            held = classifier_of(made.encoder, made.weights)
        if held is None or held[1].shape[1] != public.dim:
            return cls(classes, knowledge.text_encoder, vectors)
        ids, weights = held
        place = {plain(words_of(name)): label for label, name in enumerate(named)}
        keys = [plain(words_of(name)) for name in ids]
        matched = tuple((number, place[key]) for number, key in enumerate(keys) if key in place)
        own = name_vectors(ids, knowledge.text_encoder)
        directions = covariance_with(public, weights)
        return cls(classes, knowledge.text_encoder, vectors, own, directions, matched)

    def compressed(self, basis: Tensor) -> "Sources":
        """Sources for coordinates along a (p, Q) basis."""
        moved = None if self.directions is None else self.directions @ basis.double()
        return replace(self, directions=moved)

    def vectors(self, names: Sequence[str]) -> list[Tensor]:
        """(1, e) vector of each name; nothing without a text encoder."""
        return [] if self.encoder is None else list(name_vectors(names, self.encoder).split(1))

    def rule(self, transform: PublicTransform, means: ClassMeans) -> NameRule | None:
        """The rule from names to means of public classes; None without a text encoder.

        Classes of the encoder's classifier join the public ones where they explain more of these.
        """
        if self.public is None:
            return None
        kept = means.counts.nonzero().flatten().tolist()
        if len(kept) < FEWEST:
            raise ValueError(
                f"public must hold at least {FEWEST} classes for text_encoder, got {len(kept)}"
            )
        vectors, known = self.public[kept], means.means[kept]
        rule, words = NameRule.learned(vectors, known), f"names of {len(kept)} public classes"
        matched = {c: k for c, k in self.matched if k in set(kept)}
        if self.own is None or self.directions is None or len(matched) < FEWEST:
            return replace(rule, source=f"{words}, and none of a classifier of the encoder")
        features = self.directions @ transform.basis.double() / torch.as_tensor(transform.scale)
        more = of_classifier(features, matched, means)
        rest = sorted(set(range(len(self.own))) - {c for c, _ in self.matched})
        vectors, known = torch.cat([vectors, self.own[rest]]), torch.cat([known, more[rest]])
        wider = NameRule.learned(vectors, known, measured=len(kept))
        if wider.explained <= rule.explained:
            nothing = f"{words}, as those of the encoder's classifier add nothing"
            return replace(rule, source=nothing)
        return replace(wider, source=f"{words} and {len(rest):,} of the encoder's classifier")


def knowing(
    transform: PublicTransform,
    names: Sequence[str],
    rule: NameRule | None,
    groups: Sequence[Tensor],
    examples: ClassMeans | None,
) -> PublicTransform:
    """The transform with guesses of names, of examples, and of examples after names.

    Its covariance within classes is that of public rows and examples.
    """
    scatter = open_scatter(transform.raw.public)
    said = None if rule is None else from_names(rule, groups, scatter)
    guesses = [] if said is None else [said]
    if examples is not None:
        transform = replace(transform, within_class=scatter_within(examples, scatter))
        guesses += [from_examples(examples, scatter, each) for each in (None, *guesses)]
    return replace(transform, known=KnownClasses(tuple(names), tuple(guesses)) if guesses else None)


def covariance_with(public: EmbeddingSet, weights: Tensor) -> Tensor:
    """(C, p) covariance of (C, p) scores' weights with embeddings: C_x w_c, over public rows."""
    narrow = (weights - weights.mean(0)).float()
    rows, both = torch.zeros(narrow.shape[1]).double(), torch.zeros(narrow.shape).double()
    for block in public.blocks():
        x = torch.from_numpy(np.array(block)).float()
        rows += x.double().sum(0)
        both += ((x @ narrow.mT).mT @ x).double()
    mean = rows / len(public)
    return both / len(public) - torch.outer(narrow.double() @ mean, mean)


def examples_of(public: EmbeddingSet, names: Sequence[str]) -> EmbeddingSet | None:
    """The public set itself where its class names contain these; None: they do not.

    Numbers are no names: they count where both have the same ones.
    """
    theirs = [plain(str(name)) for name in public.meta.get("class_names", ())]
    ours = [plain(name) for name in names]
    numbers = all(name.isdecimal() for name in ours)
    same = bool(ours) and (set(ours) == set(theirs) if numbers else set(ours) <= set(theirs))
    return public if same and public.labelled else None


def means_by_name(
    shown: EmbeddingSet, transform: PublicTransform, names: Sequence[str]
) -> ClassMeans:
    """Means of the classes of these names among labelled examples.

    Raises:
        ValueError: no class of the examples has one of the names.
    """
    shown_names = [plain(str(name)) for name in shown.meta.get("class_names", ())]
    place = {plain(name): k for k, name in enumerate(names)}
    numbers = np.array([place.get(name, -1) for name in shown_names], np.int64)
    if not (numbers >= 0).any():
        raise ValueError(f"examples must have classes named as the private ones, got {shown_names}")
    labels = numbers[shown.labels]
    return ClassMeans.of(shown, transform, len(names), labels, scattered=True)


def plain(name: str) -> str:
    """Name as it is compared: without case, spaces for underscores."""
    return name.replace("_", " ").casefold().strip()
