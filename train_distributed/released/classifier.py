"""A release as a scikit-learn classifier."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from embed import EmbeddingSet, PublicTransform
from embed.store import INFERRED
from pretrain import check
from pretrain.datasets import UNLABELLED
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import DEFAULT
from train_distributed.one_shot.release import release
from train_distributed.one_shot.report_file import Report
from train_distributed.privacy.promise import Privacy

Owners = Literal["one", "many"]

COUNTED = {"classes": INFERRED}
SIMULATION = (
    "classes were counted from the labels, so this model is a simulation and no release: "
    "PrivateClassifier(classes=...) declares them"
)
UNNAMED = (
    "no groups: all rows are taken as one owner's. fit(X, y, groups=...) names the owners; "
    "cross-validation hands them on after sklearn.set_config(enable_metadata_routing=True) and "
    "set_fit_request(groups=True); PrivateClassifier(owners='one') says that one owner is meant"
)
LOST = ("", "nan", "NaN", "NaT", "None", "<NA>")  # what conversions make of a missing name


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Differentially private classifier of many users' rows, with scikit-learn's interface.

    `fit` is one `train_distributed.release`. The classes are public, so a model for release needs
    `classes`. Without them they are counted from the labels, and the fit is a simulation with
    floating-point noise, as it is with a `random_state`; `report_["suitable_for_release"]` and a
    warning say so. Every fit spends ε anew, and no ledger counts it. No ε covers a choice of
    settings by scores on private rows.

    **Owners.** `fit` takes the rows of one group as those of one user, who adds a share of the
    noise. Without groups all rows are one owner's, and another model results: the noise is added
    once, so it is more accurate. scikit-learn passes the `groups` of `cross_val_score` and
    `GridSearchCV` to the splitter alone, unless metadata routing is enabled, as in the example.

    **Steps before this one.** Rows pass the transform, which must be public. What a pipeline fits
    on the private rows first (StandardScaler, PCA, SimpleImputer, feature selection) learns from
    them outside the promise and cannot be seen here: the report is then wrong. Steps that learn
    nothing are safe: Normalizer, Binarizer, FunctionTransformer, or a scaler that was fitted on
    public rows (sklearn.frozen.FrozenEstimator).

    **Several findings a picture.** With (n, K) targets of 0 and 1, as scikit-learn has them for
    several labels, `predict` gives (n, K) of 0 and 1 and `predict_proba` a probability of each. K
    is public, so nothing is counted without `classes`, which then name the findings.

    Args:
        epsilon: privacy loss ε > 0; inf: no noise, not private.
        delta: failure probability δ, below 1/rows.
        method: name of a method, or a `Method` made for the same transform and classes.
        transform: public transform; None: the constant 1, and a clip to norm 1.
        classes: all K classes, whether or not they occur; None: those that occur.
        honest_fraction: of all users; None: a half, for a single user 1.
        unit: of protection.
        options: settings of the method, such as `{"prior": "private"}`; predictions are for the
            prior of the classes that it says, equal shares if left out, and
            `release_.with_prior` has others of the same model.
        owners: "one": all rows are one owner's, and groups are refused; "many": groups must be
            given; None: either, with a warning where there are none.
        random_state: seed of a simulation; None: the operating system draws the noise.

    scikit-learn's `check_estimator` passes, but it checks simulations, as it sets `random_state`.
    Two fits of a release give two models, and labels outside `classes` are refused.

    Attributes:
        release_: the `Release`.
        report_: its report, with the promise and what it rests on.
        classes_: (K,) the classes, or findings, in the order of `predict_proba`.
        n_features_in_: p.

    Examples:
        Three folds of whole users, whose groups reach every fit as well:

        >>> import numpy as np
        >>> import sklearn
        >>> from sklearn.model_selection import GroupKFold, cross_val_score
        >>> from train_distributed import PrivateClassifier
        >>> labels, users = np.arange(600) % 2, np.arange(600) // 20
        >>> rows = np.eye(2, 4)[labels]
        >>> model = PrivateClassifier(4.0, 1e-5, classes=[0, 1], owners="many")
        >>> with sklearn.config_context(enable_metadata_routing=True):
        ...     model = model.set_fit_request(groups=True)  # as it is by default
        ...     found = cross_val_score(
        ...         model, rows, labels, cv=GroupKFold(3), params={"groups": users}
        ...     )
        >>> found.tolist()
        [1.0, 1.0, 1.0]
    """

    __metadata_request__fit: ClassVar = {"groups": True}  # where metadata are routed

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        method: str | Method = DEFAULT,
        transform: PublicTransform | None = None,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        honest_fraction: float | None = None,
        unit: Literal["record", "user"] = "record",
        options: Mapping[str, Any] | None = None,
        owners: Owners | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.transform = transform
        self.classes = classes
        self.honest_fraction = honest_fraction
        self.unit: Literal["record", "user"] = unit
        self.options = options
        self.owners: Owners | None = owners
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Tags that tell scikit-learn what this estimator accepts: several labels a row, too."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @property
    def transform(self) -> PublicTransform | None:
        """The parameter, in `get_params()` alone: an estimator that has it would be a transformer.

        Raises:
            AttributeError: always.
        """
        raise AttributeError("transform is a parameter and no method: get_params()['transform']")

    @transform.setter
    def transform(self, value: PublicTransform | None) -> None:
        vars(self)["transform"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; there is nothing deeper."""
        return {name: vars(self)[name] for name in self._get_param_names()}

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learns from (n, p) rows, (n,) labels and (n,) owners of rows, of one type of names.

        Labels may be (n, K) findings of 0 and 1. Without `groups` all rows are of one user, which
        adds all of the noise; `owners` says if that is meant.

        Raises:
            ValueError: as `release`, a label that is none of `classes`, a row without an owner, or
                groups that are not what `owners` says.
        """
        privacy = Privacy(self.epsilon, self.delta, self.honest_fraction, self.unit)
        privacy.validate()
        x, y = _read(self, X, y, multi_output=_columns(y) > 1)
        check_classification_targets(y)
        several = y.ndim == 2
        counted = self.classes is None and not several
        if several:
            _check_findings(y, self.classes)
            names = range(y.shape[1]) if self.classes is None else self.classes
            self.classes_, self._kind = np.asarray(names), y.dtype
        else:
            self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError(f"classes must be two or more, got {len(self.classes_)} class")
        users, known = self._users(groups, len(y))
        meta = {"class_names": list(map(str, self.classes_)), **(COUNTED if counted else {})}
        labels = np.full(len(y), UNLABELLED) if several else self._numbers(y)
        findings = y.astype(np.int8) if several else None
        rows = EmbeddingSet(embeddings=x, labels=labels, findings=findings, users=users, meta=meta)
        seeded = self.random_state is not None
        if counted and not seeded:
            warnings.warn(SIMULATION, UserWarning, stacklevel=2)
        released = release(
            rows,
            self.method,
            privacy,
            transform=vars(self)["transform"],
            noise="float" if counted or seeded else "discrete",
            generator=self._generator() if seeded else None,
            **(self.options or {}),
        )
        self.release_ = released.with_report(owners=known)
        if groups is None and self.owners is None:
            warnings.warn(UNNAMED, UserWarning, stacklevel=2)
        return self

    @property
    def report_(self) -> Report:
        """Report of the release."""
        check_is_fitted(self)
        return self.release_.report

    def predict(self, X: Any) -> NDArray[Any]:
        """(n,) the most probable class of each of (n, p) rows, or (n, K) findings of 0 and 1."""
        shares = self.predict_proba(X)
        if self.release_.findings:
            return (shares > 0.5).astype(self._kind)
        return self.classes_[shares.argmax(1)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, K) probabilities; how well they are calibrated depends on the method."""
        check_is_fitted(self)
        return self.release_.predict_proba(_read(self, X, reset=False)).numpy()

    def _users(self, groups: Any, rows: int) -> tuple[NDArray[np.int64], str]:
        """(n,) numbers of the rows' owners, and how they are known."""
        check.one_of(get_args(Owners), **check.drop_none(owners=self.owners))
        if self.owners == "one":
            check.not_set("with owners='one'", groups=None if groups is None else "some")
        if groups is not None:
            return _numbered(groups, rows), "named by groups"
        if self.owners == "many":
            raise ValueError("groups must be given with owners='many', got None")
        check.not_set("for a single user", user_clip=(self.options or {}).get("user_clip"))
        said = "declared" if self.owners == "one" else "taken as one, as no groups were given"
        return np.zeros(rows, np.int64), f"one, {said}"

    def _numbers(self, y: NDArray[Any]) -> NDArray[np.int64]:
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise ValueError(f"y must hold the classes {self.classes_}, got {y[unknown][0]!r}")
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _generator(self) -> torch.Generator:
        seed = check_random_state(self.random_state).randint(2**31)
        return torch.Generator().manual_seed(int(seed))


def _numbered(groups: Any, rows: int) -> NDArray[np.int64]:
    """(n,) numbers of names, as they sort.

    Names in a list are not converted, as an array would: 1 and "1" would become one owner, and a
    missing one the word "nan".

    Raises ValueError for another shape, a name that is missing, or names of several types.
    """
    as_given = isinstance(groups, list | tuple)
    values = np.array([*groups, None], object)[:-1] if as_given else np.asarray(groups)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (rows,):
        raise ValueError(
            f"groups must name the owners of all {rows} samples, got shape {values.shape}"
        )
    names = groups.tolist() if isinstance(groups, np.ma.MaskedArray) else [*values]
    for row, name in enumerate(names):
        if _missing(name):
            raise ValueError(f"groups must name the owner of every row, got {name!r} in row {row}")
    kinds = sorted(set(map(_kind, names)))
    if len(kinds) > 1:
        raise ValueError(f"groups must be names of one type, got {' and '.join(kinds)}")
    return np.unique(values, return_inverse=True)[1]


def _missing(name: Any) -> bool:
    if isinstance(name, str):
        return name in LOST
    try:
        return name is None or bool(name != name)
    except TypeError:  # pandas' NA is neither equal nor unequal to anything
        return True


def _kind(name: Any) -> str:
    number = isinstance(name, int | float | np.number) and not isinstance(name, bool)
    return "number" if number else "str" if isinstance(name, str) else type(name).__name__


def _columns(y: Any) -> int:
    """Number of columns of labels; 0 where they are no table."""
    shape = np.asarray(y).shape
    return shape[1] if len(shape) == 2 else 0


def _check_findings(y: NDArray[Any], names: Sequence[Any] | NDArray[Any] | None) -> None:
    if not np.isin(y, (0, 1)).all():
        odd = y[~np.isin(y, (0, 1))][0]
        raise ValueError(f"y must hold 0 and 1 in every column of findings, got {odd!r}")
    if names is not None and len(names) != y.shape[1]:
        raise ValueError(f"classes must name all {y.shape[1]} columns of y, got {len(names)}")


def _read(
    estimator: PrivateClassifier, *rows: Any, reset: bool = True, multi_output: bool = False
) -> Any:
    """Rows, and labels where they are given, as scikit-learn takes them."""
    options: dict[str, Any] = {"multi_output": True} if multi_output else {}
    return validate_data(estimator, *rows, reset=reset, dtype=(np.float64, np.float32), **options)
