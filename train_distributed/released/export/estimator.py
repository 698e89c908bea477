"""A released model as a scikit-learn pipeline of that library's own parts.

It takes embeddings and needs nothing of this project to be loaded: every step is a standard
transformer whose fitted numbers are set here. With ρ² = c² − a² and y = Pᵀ(x − m)/(s ρ), the clip
is ρ times

    y min(1, 1/‖y‖) = the first q numbers of (y, t)/‖(y, t)‖,  t = sqrt(max(0, 1 − ‖y‖²)):

for ‖y‖ ≤ 1 that vector has norm 1 already, beyond it t = 0. Mapped rows are clipped so once more,
with (Aᵀy − o/ρ)/s of `embed.transform` for y.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embed import PublicTransform
from pretrain import check
from train_distributed.one_shot.model import Release
from train_distributed.released.export import facts

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

ABOUT = "release_"  # attribute with the facts
LIMIT = 2.0**200  # of |x|: longer rows keep their direction; squares of their features are finite


def pipeline(released: Release) -> "Pipeline":
    """The fitted `sklearn.pipeline.Pipeline`: (n, p) embeddings to classes and probabilities."""
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, Normalizer, PolynomialFeatures

    transform = released.transform
    p, q = transform.basis.shape
    reach = transform.reach
    mean = transform.mean.double().numpy()
    matrix = transform.basis.double().numpy() / (transform.scale.double().numpy() * reach)
    # (1, x/LIMIT), divided by its largest entry: rows up to LIMIT stay, longer ones are shortened.
    wide = FunctionTransformer(np.positive, kw_args={"dtype": "float64"})
    shrunk = [("wide", wide), ("shrunk", _scaled(p, LIMIT))]
    one = PolynomialFeatures(1).fit(np.zeros((1, p)))  # (1, x)
    limited = [*shrunk, ("one", one), ("limited", Normalizer("max"))]
    padded = np.concatenate([np.zeros((1, q)), LIMIT * matrix])
    features = _linear(padded, np.concatenate([[0.0], mean / LIMIT]))
    steps = [*limited, ("features", features), *_clip(q)]
    if transform.directions is not None:
        steps += [("mapped", _mapped(transform)), *_clip(transform.dim - 1, again="_again")]
    made = Pipeline([*steps, ("classifier", _classifier(released, reach))])
    setattr(made, ABOUT, facts(released))
    return made


def save_sklearn(released: Release, path: Path) -> None:
    """Writes a skops file, which is no pickle; raises ValueError if skops is not installed."""
    _skops().dump(pipeline(released), path)


def load_sklearn(path: Path) -> "Pipeline":
    """Reads it, trusting nothing but what skops itself trusts."""
    return _skops().load(path)


def _skops() -> Any:
    check.installed("skops", "format sklearn", extra="export")
    from skops import io

    return io


def _clip(q: int, again: str = "") -> list[tuple[str, Any]]:
    """y to (y, t)/‖(y, t)‖, of q and q + 1 columns."""
    from sklearn.pipeline import FeatureUnion, Pipeline
    from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer

    room = Pipeline(
        [
            ("squares", FunctionTransformer(np.square)),
            ("sum", _linear(-np.ones((q, 1)), np.zeros(q))),
            ("room", MinMaxScaler(clip=True).fit([[-1.0], [0.0]])),  # min(1, max(0, 1 + x))
            ("root", FunctionTransformer(np.sqrt)),
        ]
    )
    union = FeatureUnion([("features", "passthrough"), ("room", room)])
    return [(f"with_room{again}", union), (f"clipped{again}", Normalizer("l2"))]


def _mapped(transform: PublicTransform) -> Any:
    """(Aᵀv − o/ρ)/s of the D + 1 numbers of v, the last of which counts nothing."""
    assert transform.directions is not None
    assert transform.centre is not None
    matrix = np.pad(transform.directions.numpy(), ((0, 1), (0, 0)))
    centre = transform.centre.numpy() / transform.reach
    return _linear(matrix / transform.length, np.linalg.pinv(matrix).T @ centre)


def _scaled(width: int, by: float) -> Any:
    """x / by, exactly for a power of two."""
    from sklearn.preprocessing import StandardScaler

    made: Any = StandardScaler(with_mean=False)
    made.scale_, made.var_, made.mean_ = np.full(width, by), np.full(width, by**2), None
    made.n_features_in_, made.n_samples_seen_ = width, 1
    return made


def _linear(matrix: np.ndarray, centre: np.ndarray) -> Any:
    """(x − centre) @ matrix."""
    from sklearn.decomposition import PCA

    made: Any = PCA(matrix.shape[1])
    made.components_, made.mean_ = np.ascontiguousarray(matrix.T), centre
    made.explained_variance_ = np.ones(matrix.shape[1])
    made.n_components_, made.n_features_in_ = matrix.shape[1], matrix.shape[0]
    return made


def _classifier(released: Release, reach: float) -> Any:
    """Scores ρ (v₁ … v_q) W[1:] + a W[0], divided by T; the last column v_{q+1} counts nothing."""
    from sklearn.linear_model import LogisticRegression

    weights = released.weights.numpy() / released.temperature
    slopes, offsets = reach * weights[1:], released.transform.constant * weights[0]
    if weights.shape[1] == 2:
        slopes, offsets = slopes[:, 1:] - slopes[:, :1], offsets[1:] - offsets[:1]
    made: Any = LogisticRegression()
    made.coef_ = np.ascontiguousarray(np.concatenate([slopes, np.zeros_like(slopes[:1])]).T)
    made.intercept_, made.classes_ = offsets, np.array(released.class_names)
    made.n_features_in_, made.n_iter_ = made.coef_.shape[1], np.zeros(1, np.int32)
    return made
