"""Guesses of the private classes' means from public sources: names and examples of the classes.

All in the q features of a transform, whose labelled public rows give the means of public classes,
their scatter B about each other and W within them.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embed.encoding import refuse_other
from embed.identity import known_rows
from embed.known_classes import ClassGuess, KnownClasses
from embed.options import NONE, Knowledge
from embed.public_scatter import REGULAR, PublicScatter
from embed.store import EmbeddingSet
from embed.transform import PublicTransform
from embed.water_filling import LEAST_SHARE
from pretrain.encoders.text import name_vectors, words_of

# prior: widths of the kernel on the unit sphere
WIDTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.3, 1.8)
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # prior: of a rule, over the kernel's values
ELSEWHERE = 0.05  # prior: of B; public and private pictures of one class differ
SHOWN = 2  # prior: trust in examples, where that in names is 1
LEAST_SPREAD = 0.1  # guard: of the scatter that the rule expects of classes; less says nothing
FEWEST = 10  # guard: names of public classes from which a rule is learned


@dataclass(frozen=True)
class ClassMeans:
    """Means of the classes of a labelled set, as a transform sees them."""

    means: Tensor  # (L, q) float64; NaN for a class without rows
    counts: Tensor  # (L,) float64
    scatter: Tensor | None = None  # (q, q) Σ (u − x_k)(u − x_k)ᵀ over rows; None: not asked for

    @classmethod
    def of(
        cls,
        rows: EmbeddingSet,
        transform: PublicTransform,
        classes: int,
        labels: np.ndarray | None = None,
        *,
        scattered: bool = False,
    ) -> "ClassMeans":
        """Means of classes 0 to `classes` − 1, and the scatter within them where asked for.

        `labels` (n,) replace those of the rows; −1 leaves a row out.
        """
        numbers = torch.from_numpy(np.array(rows.labels if labels is None else labels, np.int64))
        sums = torch.zeros(classes, transform.dim - 1, dtype=torch.float64)
        squares = torch.zeros(len(sums.mT), len(sums.mT), dtype=torch.float64)
        start = 0
        for block in rows.blocks():
            own = numbers[start : start + len(block)]
            features = transform(torch.from_numpy(np.array(block)))[own >= 0, 1:].double()
            sums.index_add_(0, own[own >= 0], features)
            if scattered:
                squares += features.mT @ features
            start += len(block)
        counts = torch.bincount(numbers[numbers >= 0], minlength=classes).double()
        means = sums / counts[:, None]
        return cls(means, counts, squares - means.nan_to_num().mT @ sums if scattered else None)


def open_scatter(public: PublicScatter) -> PublicScatter:
    """Scatter that guesses are made with: W regular, and B + LEAST_SHARE (W + B).

    Public class means lie in fewer directions than there are features, and private ones need not:
    their scatter has a share of that of all rows as well. Raises ValueError without labels.
    """
    within, between = public.within, public.of_means
    faint = REGULAR * within.diagonal().mean() * torch.eye(len(within)).double()
    return PublicScatter(public.mean, within + faint, between + LEAST_SHARE * (within + between))


def from_examples(
    found: ClassMeans, scatter: PublicScatter, before: ClassGuess | None = None
) -> ClassGuess:
    """Posterior of the class means given n_k examples of mean x_k.

    x_k ~ N(μ_k, W/n_k), and μ_k ~ N(m_k, V), by default N(g, B). In a basis F with W = F Fᵀ and
    V = F diag(v) Fᵀ the posterior has the mean m_k + F diag(n_k v/(1 + n_k v)) F⁻¹(x_k − m_k) and
    the covariance F diag(v/(1 + n_k v)) Fᵀ, of which V becomes the average over classes, and .05 B.
    """
    if before is None:
        means = scatter.mean[:, None].repeat(1, len(found.counts))
        before = ClassGuess("", means, scatter.of_means, trust=0)
    earlier = f"{before.source}, then " if before.source else ""
    root = torch.linalg.cholesky(scatter.within)
    values, vectors = torch.linalg.eigh(_whitened(before.covariance, root))
    basis, odds = root @ vectors, values.clamp(min=0)[:, None] * found.counts  # F and n_k v
    missed = torch.where(found.counts > 0, found.means.mT - before.means, 0)
    means = before.means + basis @ (odds / (1 + odds) * torch.linalg.solve(basis, missed))
    left = basis * (values.clamp(min=0)[:, None] / (1 + odds)).mean(1) @ basis.mT
    sizes = found.counts[found.counts > 0]
    words = f"{int(sizes.sum())} public examples of {len(sizes)} classes"
    covariance = left + ELSEWHERE * scatter.of_means
    return ClassGuess(earlier + words, means, covariance, before.trust + SHOWN)


def scatter_within(examples: ClassMeans, scatter: PublicScatter) -> Tensor:
    """(q, q) covariance within classes, of public rows and of examples: a posterior mean.

    The covariance is inverse Wishart with the mean W, which weighs as much as ν rows; examples
    about their means scatter by S, Wishart of n degrees, n their number less that of their classes.
    The posterior mean is then (ν W + S)/(ν + n), ν of largest evidence: where examples scatter as
    public rows do it is large.
    """
    rows = float((examples.counts - 1).clamp(min=0).sum())
    if examples.scatter is None or rows == 0:
        return scatter.within
    white = _whitened(examples.scatter, torch.linalg.cholesky(scatter.within))
    own, size = torch.linalg.eigvalsh(white).clamp(min=0), len(white)
    weights = torch.logspace(0, 6, 61, dtype=torch.float64)  # ν
    degrees = weights + size + 1
    evidence = torch.special.multigammaln((degrees + rows) / 2, size)
    evidence = evidence - torch.special.multigammaln(degrees / 2, size)
    evidence = evidence + degrees / 2 * size * weights.log()
    evidence = evidence - (degrees + rows) / 2 * (weights[:, None] + own).log().sum(1)
    weight = float(weights[evidence.argmax()])
    return (weight * scatter.within + examples.scatter) / (weight + rows)


def _whitened(matrix: Tensor, root: Tensor) -> Tensor:
    """L⁻¹ M L⁻ᵀ of a symmetric M and a lower triangular L, symmetric to the last bit."""
    half = torch.linalg.solve_triangular(root, matrix, upper=False)
    whole = torch.linalg.solve_triangular(root, half.mT, upper=False)
    return (whole + whole.mT) / 2


@dataclass(frozen=True)
class NameRule:
    """Kernel ridge regression from vectors of names to class means."""

    vectors: Tensor  # (L, e) of length 1
    coefficients: Tensor  # (L, q)
    centre: Tensor  # (q,)
    width: float
    explained: float  # R² by leave-one-out, at most 1, below 0 where names say nothing
    source: str = "names"  # in words

    @classmethod
    def learned(cls, vectors: Tensor, means: Tensor, measured: int | None = None) -> "NameRule":
        """The rule whose width and ridge predict the first `measured` class means best.

        The error of predicting class i by a rule of all others is in closed form e_i/(1 − H_ii),
        H the matrix that maps means to fitted ones.

        Args:
            vectors: (L, e) of length 1.
            means: (L, q) class means, the first `measured` of real ones.
            measured: L' <= L that count; None: all.
        """
        centre = means[:measured].mean(0)
        targets = means - centre
        one = torch.eye(len(vectors), dtype=torch.float64)
        best = None
        for width in WIDTHS:
            kernel = _kernel(vectors, vectors, width)
            values, basis = torch.linalg.eigh(kernel)
            turned = basis.mT @ targets
            for ridge in RIDGES:
                kept = values.clamp(min=0) / (values.clamp(min=0) + ridge)
                own = (basis.square() @ kept)[:measured]
                fitted = (basis[:measured] * kept) @ turned
                missed = (targets[:measured] - fitted) / (1 - own).clamp(min=1e-9)[:, None]
                error = float(missed.square().sum())
                if best is None or error < best[0]:
                    best = (error, width, ridge)
        assert best is not None
        error, width, ridge = best
        explained = 1 - error / float(targets[:measured].square().sum())
        coefficients = torch.linalg.solve(_kernel(vectors, vectors, width) + ridge * one, targets)
        return cls(vectors, coefficients, centre, width, explained)

    def __call__(self, vectors: Tensor) -> Tensor:
        """(q, G) class means of (G, e) names."""
        return (self.centre + _kernel(vectors, self.vectors, self.width) @ self.coefficients).mT


def from_names(
    rule: NameRule, groups: Sequence[Tensor], scatter: PublicScatter
) -> ClassGuess | None:
    """Class means by names, with what the rule does not explain left open; None: they say nothing.

    Names say nothing where they do not explain the means of public classes, or where these names,
    such as "class_3", lead to almost the same mean for all classes. `groups` holds the (m_k, e)
    vectors of the names of each class, one or more.
    """
    if rule.explained <= 0:
        return None
    means = torch.stack([rule(each).mean(1) for each in groups], 1)
    expected = rule.explained * float(scatter.of_means.trace())
    if len(groups) > 1 and float(means.var(1).sum()) < LEAST_SPREAD * expected:
        return None
    return ClassGuess(rule.source, means, (1 - rule.explained) * scatter.of_means)


def of_classifier(directions: Tensor, matched: Mapping[int, int], public: ClassMeans) -> Tensor:
    """(C, q) class means that a classifier's weights imply.

    Under linear discriminant analysis with all classes alike w_c = W⁻¹(μ_c − μ), so μ_c lies along
    C_x w_c. The factor is fitted on classes that are public ones too, and then, by ridge regression
    of what it leaves, a matrix that is added to it, as classes are not alike. The ridge is by
    leaving one class out.

    Args:
        directions: (C, q) C_x w_c in features.
        matched: classifier's class -> public class.
        public: means of the public classes.
    """
    ours = directions[list(matched)]
    theirs = public.means[list(matched.values())]
    shift, centre = ours.mean(0), theirs.mean(0)
    apart, wanted = ours - shift, theirs - centre
    size = apart.square().sum().clamp(min=torch.finfo(apart.dtype).tiny)
    factor = (apart * wanted).sum() / size
    one = torch.eye(apart.shape[1], dtype=torch.float64)
    found = []
    for ridge in RIDGES:
        solved = torch.linalg.solve(apart.mT @ apart + ridge * size / len(one) * one, apart.mT)
        matrix = solved @ (wanted - factor * apart)
        missed = wanted - apart @ (factor * one + matrix)
        missed = missed / (1 - 1 / len(apart) - (apart * solved.mT).sum(1))[:, None]
        found.append((float(missed.square().sum()), ridge, factor * one + matrix))
    _, _, matrix = min(found, key=lambda each: each[:2])
    return centre + (directions - shift) @ matrix


def _kernel(left: Tensor, right: Tensor, width: float) -> Tensor:
    return torch.exp(-torch.cdist(left, right).square() / (2 * width**2))


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
