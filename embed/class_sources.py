"""Guesses of class means from public sources: names and examples of the classes.

All in the q features of a transform, whose labelled public rows give the means of public classes,
their scatter B about each other and W within them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embed.known_classes import ClassGuess
from embed.public_scatter import REGULAR, PublicScatter
from embed.store import EmbeddingSet
from embed.transform import PublicTransform
from embed.water_filling import LEAST_SHARE

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
        earlier, trust, prior = "", 0, scatter.of_means
        means = scatter.mean[:, None].repeat(1, len(found.counts))
    else:
        earlier, trust, prior = f"{before.source}, then ", before.trust, before.covariance
        means = before.means
    root = torch.linalg.cholesky(scatter.within)
    values, vectors = torch.linalg.eigh(_whitened(prior, root))
    basis, odds = root @ vectors, values.clamp(min=0)[:, None] * found.counts  # F and n_k v
    missed = torch.where(found.counts > 0, found.means.mT - means, 0)
    means = means + basis @ (odds / (1 + odds) * torch.linalg.solve(basis, missed))
    left = basis * (values.clamp(min=0)[:, None] / (1 + odds)).mean(1) @ basis.mT
    sizes = found.counts[found.counts > 0]
    words = f"{int(sizes.sum())} public examples of {len(sizes)} classes"
    return ClassGuess(earlier + words, means, left + ELSEWHERE * scatter.of_means, trust + SHOWN)


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
    """Class means by names, with what the rule does not explain left open; None: nothing is said.

    Nothing is said where names do not explain the means of public classes, or where these names,
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
    of what it leaves, a matrix beside it, as classes are not alike. The ridge is by leaving one
    class out.

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
