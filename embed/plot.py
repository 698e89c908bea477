"""The command `python -m embed plot`: embeddings in two dimensions, coloured by class."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from embed.store import EmbeddingSet
from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.public import function

if TYPE_CHECKING:  # what draws is imported by the command that runs
    from matplotlib.figure import Figure

TSNE_INPUT = 50  # size: principal directions that t-SNE starts from, as its authors advise
COLOURS = 20  # size: classes that a legend names


def project(x: np.ndarray, method: str, seed: int) -> np.ndarray:
    """Projects (n, p) rows to (n, 2) by PCA or by t-SNE on the leading principal directions."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    check.one_of(("pca", "tsne"), method=method)
    check.at_least(4, rows=len(x))
    wide = min(TSNE_INPUT, *x.shape) if method == "tsne" else 2
    reduced = PCA(min(wide, *x.shape), random_state=seed).fit_transform(x)
    if method == "pca":
        return reduced
    perplexity = min(30.0, (len(x) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw embeddings in two dimensions, coloured by class."""

    embeddings: Path
    """Embedding set to plot."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    method: Literal["pca", "tsne"] = "tsne"
    """Projection; t-SNE takes minutes beyond 10,000 rows."""
    rows: int = 3000
    """Number of random rows to plot."""
    seed: int = 0
    """Seed of the choice of rows and of t-SNE."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Writes projection.png, its points and report.json."""
        out = output_directory(self.out, "plot", self.embeddings, overwrite=self.overwrite)
        check.at_least(4, rows=self.rows)
        check.within("[0, 2^32)", seed=self.seed)  # scikit-learn's range
        whole = EmbeddingSet.open(self.embeddings)
        whole.check_finite()
        rng = np.random.default_rng(self.seed)
        chosen = np.sort(rng.permutation(len(whole))[: self.rows])
        shown = whole.subset(chosen)
        points = project(shown.embeddings.astype(np.float32), self.method, self.seed)
        names = list(shown.meta.get("class_names") or map(str, range(shown.labels.max() + 1)))
        report = {
            "embeddings": whole.meta.get("data"),
            "content_hash": whole.content_hash(),
            "method": self.method,
            "rows": len(shown),
            "seed": self.seed,
            "versions": {name: version(name) for name in ("numpy", "scikit-learn", "matplotlib")},
        }
        with new_directory(out, overwrite=self.overwrite) as partial:
            figure = _draw(points, shown.labels, names, self.method)
            figure.savefig(partial / "projection.png", dpi=150)
            np.save(partial / "projection.npy", points)
            write_json(partial / "report.json", report)
        print(f"projection in {out}")
        return out


plot = function("plot", Plot)


def _draw(points: np.ndarray, labels: np.ndarray, names: list[str], method: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    few = len(names) <= COLOURS
    for label in np.unique(labels):
        mine = points[labels == label]
        colour = f"C{label}" if label >= 0 and len(names) <= 10 else None
        name = "without label" if label < 0 else names[label]
        axes.scatter(*mine.T, s=5, color=colour, label=name if few else None)
    if few:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=3, frameon=False)
    axes.set_title(f"{len(points)} embeddings, {'PCA' if method == 'pca' else 't-SNE'}")
    axes.set_xticks([])
    axes.set_yticks([])
    return figure
