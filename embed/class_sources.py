"""Guesses of class means from public sources: names and examples of the classes.

All in the q features of a transform, whose labelled public rows give the means of public classes,
their scatter B_pub about each other and W_pub within them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embed.known_classes import ClassGuess
from embed.store import EmbeddingSet
from embed.transform import PublicTransform

WIDTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.3, 1.8)  # of the kernel, on the unit sphere
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TINY = 1e-300
ELSEWHERE = 0.05  # of B_pub: public and private pictures of one class differ
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)  # h
SHOWN = 2  # trust in examples, beside that in names
ALIKE_NAMES = 0.1  # of the scatter that the rule expects of classes: less says nothing
FEWEST = 10  # names of public classes from which a rule is learned


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
        scattered: Sequence[int] = (),
    ) -> "ClassMeans":
        """Means of classes 0 to `classes` − 1, and the scatter within those that are named."""
        sums = torch.zeros(classes, transform.dim - 1, dtype=torch.float64)
        squares = torch.zeros(len(sums.mT), len(sums.mT), dtype=torch.float64)
        counted = torch.zeros(classes, dtype=torch.bool)
        counted[list(scattered)] = True
        labels = torch.from_numpy(np.array(rows.labels, np.int64))
        start = 0
        for block in rows.blocks():
            features = transform(torch.from_numpy(np.array(block)))[:, 1:].double()
            own = labels[start : start + len(block)]
            sums.index_add_(0, own, features)
            if scattered:
                features = features[counted[own]]
                squares += features.mT @ features
            start += len(block)
        counts = torch.bincount(labels, minlength=classes).double()
        means = sums / counts[:, None]
        if not scattered:
            return cls(means, counts)
        kept = counted & (counts > 0)
        return cls(means, counts, squares - means[kept].mT @ sums[kept])


@dataclass(frozen=True)
class PublicScatter:
    """Centre of the public class means, and their scatter."""

    centre: Tensor  # (q,)
    between: Tensor  # (q, q) B_pub
    within: Tensor  # (q, q) W_pub

    @classmethod
    def of(cls, transform: PublicTransform) -> "PublicScatter":
        """Scatter that a transform keeps; raises ValueError if its public rows had no labels."""
        between, within = transform.between_class, transform.within_class
        if between is None or within is None:
            raise ValueError("public must have labels of two classes for guesses of class means")
        return cls(transform.row_mean[1:].double(), between.double(), within.double())


def from_examples(
    found: ClassMeans,
    scatter: PublicScatter,
    before: ClassGuess | None = None,
    public: ClassMeans | None = None,
) -> ClassGuess:
    """Posterior of the class means given n_k examples of mean x_k.

    x_k ~ N(μ_k, W_pub/n_k), and μ_k ~ N(m_k, V), or by default as public class means are spread,
    see `spread_of`. V becomes the average over classes of what is left open, and .05 B_pub. Classes
    without examples keep m_k.
    """
    if before is None:
        places, prior = spread_of(public, scatter)
        means, unseen = scatter.centre[:, None].repeat(1, len(found.counts)), scatter.between
    else:
        places, prior = torch.empty(0), before.covariance
        means, unseen = before.means.clone(), prior
    left = torch.zeros_like(prior)
    for k, (count, mean) in enumerate(zip(found.counts.tolist(), found.means, strict=True)):
        if not count:
            left += unseen
            continue
        near = places if before is None else means[:, k][None]  # (L, q)
        total = prior + scatter.within / count
        gain = torch.linalg.solve(total, prior).mT  # V(V + W/n)⁻¹
        missed = mean - near
        odds = torch.softmax(-0.5 * (missed * torch.linalg.solve(total, missed.mT).mT).sum(1), 0)
        each = near + missed @ gain.mT
        means[:, k] = odds @ each
        apart = each - means[:, k]
        left += prior - gain @ prior + apart.mT * odds @ apart
    left = left / len(found.counts) + ELSEWHERE * scatter.between
    sizes = found.counts[found.counts > 0]
    words = f"{int(sizes.sum())} public examples of {len(sizes)} classes"
    earlier, trust = ("", 0) if before is None else (f"{before.source}, then ", before.trust)
    return ClassGuess(earlier + words, means, (left + left.mT) / 2, trust + SHOWN)


def scatter_within(examples: ClassMeans, scatter: PublicScatter) -> Tensor:
    """(q, q) covariance within classes, of public rows and of examples: a posterior mean.

    W ~ inverse Wishart with the mean W_pub, which weighs as much as ν rows; examples about their
    means scatter by S ~ Wishart(W, n), n their number less that of their classes. The mean of W is
    then (ν W_pub + S)/(ν + n), ν of largest evidence: where examples scatter as public rows do it
    is large.
    """
    rows = float((examples.counts - 1).clamp(min=0).sum())
    if examples.scatter is None or rows == 0:
        return scatter.within
    values, vectors = torch.linalg.eigh(scatter.within)
    root = values.clamp(min=1e-6 * float(values.mean())).sqrt()
    white = vectors.mT @ examples.scatter @ vectors / torch.outer(root, root)
    own, size = torch.linalg.eigvalsh(white).clamp(min=0), len(root)
    weights = torch.logspace(0, 6, 61, dtype=torch.float64)  # ν
    degrees = weights + size + 1
    evidence = torch.special.multigammaln((degrees + rows) / 2, size)
    evidence = evidence - torch.special.multigammaln(degrees / 2, size)
    evidence = evidence + degrees / 2 * size * weights.log()
    evidence = evidence - (degrees + rows) / 2 * (weights[:, None] + own).log().sum(1)
    weight = float(weights[evidence.argmax()])
    return (weight * scatter.within + examples.scatter) / (weight + rows)


def spread_of(public: ClassMeans | None, scatter: PublicScatter) -> tuple[Tensor, Tensor]:
    """Density of class means, an equal mixture of Gaussians: (L, q) centres, and their covariance.

    A private class is likelier to lie near some public class than a Gaussian N(g, B_pub) says. The
    centres are the L public class means, drawn towards g by √(1 − h), the covariance h B_pub, so
    that the whole keeps B_pub. h is by the density of a class mean under all others; 1, which is
    the Gaussian, where L <= q.
    """
    kept = None if public is None else public.means[public.counts > 0]
    if kept is None or len(kept) <= kept.shape[1]:
        return scatter.centre[None], scatter.between
    apart = kept - scatter.centre
    values, vectors = torch.linalg.eigh(scatter.between)
    white = apart @ (vectors / values.clamp(min=1e-6 * float(values.mean())).sqrt())

    def density(share: float) -> float:
        logs = -torch.cdist(white, math.sqrt(1 - share) * white).square() / (2 * share)
        logs = logs.fill_diagonal_(-math.inf) - white.shape[1] / 2 * math.log(share)
        return float(torch.logsumexp(logs, 1).mean())

    share = max(SHARES, key=density)
    return scatter.centre + math.sqrt(1 - share) * apart, share * scatter.between


@dataclass(frozen=True)
class NameRule:
    """Kernel ridge regression from vectors of names to class means."""

    vectors: Tensor  # (L, e) of length 1
    coefficients: Tensor  # (L, q)
    centre: Tensor  # (q,)
    width: float
    explained: float  # R² by leave-one-out, at most 1, below 0 where names say nothing

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
    rule: NameRule,
    groups: Sequence[Tensor],
    scatter: PublicScatter,
    words: str,
) -> ClassGuess | None:
    """Class means by names, with what the rule does not explain left open; None: nothing is said.

    Nothing is said where names do not explain the means of public classes, or where these names,
    such as "class_3", lead to almost the same mean for all classes. `groups` holds the (m_k, e)
    vectors of the names of each class, one or more.
    """
    if rule.explained <= 0:
        return None
    means = torch.stack([rule(each).mean(1) for each in groups], 1)
    expected = rule.explained * float(scatter.between.trace())
    if len(groups) > 1 and float(means.var(1).sum()) < ALIKE_NAMES * expected:
        return None
    return ClassGuess(words, means, (1 - rule.explained) * scatter.between)


def of_classifier(directions: Tensor, matched: Mapping[int, int], public: ClassMeans) -> Tensor:
    """(C, q) class means that a classifier's weights imply.

    Under linear discriminant analysis with all classes alike w_c = W⁻¹(μ_c − μ), so μ_c lies along
    C_x w_c. The factor is fitted on classes that are public ones too, and then, by ridge regression
    of what it leaves, a matrix beside it, as classes are not alike. The ridge is by leaving
    one class out.

    Args:
        directions: (C, q) C_x w_c in features.
        matched: classifier's class -> public class.
        public: means of the public classes.
    """
    ours = directions[list(matched)]
    theirs = public.means[list(matched.values())]
    shift, centre = ours.mean(0), theirs.mean(0)
    apart, wanted = ours - shift, theirs - centre
    size = apart.square().sum().clamp(min=TINY)
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
