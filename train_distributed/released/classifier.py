"""A release as a scikit-learn classifier."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from embed import EmbeddingSet, PublicTransform
from embed.store import INFERRED
from pretrain import check
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.release import release
from train_distributed.one_shot.report_file import Report
from train_distributed.privacy.promise import Privacy

COUNTED = {"classes": INFERRED}
SIMULATION = (
    "classes were counted from the labels, so this model is a simulation and no release: "
    "PrivateClassifier(classes=...) declares them"
)


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """Differentially private classifier of many users' rows, as scikit-learn takes it.

    `fit` is one `train_distributed.release`. The classes are public, so a model that may leave the
    building needs them: without `classes` they are counted from the labels, and the fit is a
    simulation in floating point, as with a `random_state`; `report_["suitable_for_release"]` says
    so, and a warning. Every fit spends ε anew, and no ledger counts it. Rows pass the transform,
    which must be public: a scaler fitted on the private rows before this step is not.

    Args:
        epsilon: privacy loss ε > 0; inf: no noise, not private.
        delta: failure probability δ, below 1/rows.
        method: name of a method, or a `Method` made for the same transform and classes.
        transform: public transform; None: the constant 1, and a clip to norm 1.
        classes: all K classes, whether or not they occur; None: those that occur.
        honest_fraction: of all users; None: a half, for a single user 1.
        unit: of protection.
        options: settings of the method, such as `{"prior": "equal"}`.
        random_state: seed of a simulation; None: the operating system draws the noise.

    scikit-learn's `check_estimator` passes, but seeds what it checks: fitted twice, a release is
    two models, and labels that are none of the `classes` are refused.

    Attributes:
        release_: the `Release`.
        report_: its report, with the promise and what it rests on.
        classes_: (K,) the classes in the order of `predict_proba`.
        n_features_in_: p.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        method: str | Method = "discriminant",
        transform: PublicTransform | None = None,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        honest_fraction: float | None = None,
        unit: Literal["record", "user"] = "record",
        options: Mapping[str, Any] | None = None,
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
        self.random_state = random_state

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
        """Learns from (n, p) rows, (n,) labels and (n,) users.

        Without `groups` all rows are of one user, which adds all of the noise.

        Raises:
            ValueError: as `release`, or a label that is none of `classes`.
            TypeError: an option of another type.
        """
        privacy = Privacy(self.epsilon, self.delta, self.honest_fraction, self.unit)
        privacy.validate()
        transform = vars(self)["transform"]
        check.types(PublicTransform | None, transform=transform)
        check.types(str | Method, method=self.method)
        x, y = _read(self, X, y)
        check_classification_targets(y)
        counted = self.classes is None
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError(f"classes must be two or more, got {len(self.classes_)} class")
        users = np.zeros(len(y), np.int64)
        if groups is None:
            clip = (self.options or {}).get("user_clip")
            check.left_out("for a single user", user_clip=clip)
        else:
            users = np.unique(column_or_1d(groups), return_inverse=True)[1]
            check_consistent_length(y, users)
        meta = {"class_names": list(map(str, self.classes_)), **(COUNTED if counted else {})}
        rows = EmbeddingSet(embeddings=x, labels=self._numbers(y), users=users, meta=meta)
        seeded = self.random_state is not None
        if counted and not seeded:
            warnings.warn(SIMULATION, UserWarning, stacklevel=2)
        self.release_ = release(
            rows,
            self.method,
            privacy,
            transform=transform,
            noise="float" if counted or seeded else "discrete",
            generator=self._generator() if seeded else None,
            **(self.options or {}),
        )
        return self

    @property
    def report_(self) -> Report:
        """Report of the release."""
        check_is_fitted(self)
        return self.release_.report

    def predict(self, X: Any) -> NDArray[Any]:
        """(n,) the most probable class of each of (n, p) rows."""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(1)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, K) probabilities; how well they are calibrated depends on the method."""
        check_is_fitted(self)
        return self.release_.predict_proba(_read(self, X, reset=False)).numpy()

    def _numbers(self, y: NDArray[Any]) -> NDArray[np.int64]:
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise ValueError(f"y must hold the classes {self.classes_}, got {y[unknown][0]!r}")
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _generator(self) -> torch.Generator:
        seed = check_random_state(self.random_state).randint(2**31)
        return torch.Generator().manual_seed(int(seed))


def _read(estimator: PrivateClassifier, *rows: Any, reset: bool = True) -> Any:
    """Rows, and labels where they are given, as scikit-learn takes them."""
    return validate_data(estimator, *rows, reset=reset, dtype=(np.float64, np.float32))
