"""Mean of the users' heads, and blind averaging as a method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from embed import PublicTransform
from heads import HuberSVMHead, LogisticHead, SoftmaxHead
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.class_prior import reported_prior, shares_of
from train_distributed.one_shot.method import Estimator, Fitted, Method
from train_distributed.one_shot.statistic import NoisedSum

HEADS = {"softmax": SoftmaxHead, "svm": HuberSVMHead, "logistic": LogisticHead}


@dataclass(frozen=True, kw_only=True)
class AveragedHeads(Estimator):
    """Mean of all heads, weighted by their rows, for the class prior that is asked for."""

    statistic: TrainedHeads

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights from the noised sum over N rows; centred ones, see `TrainedHeads`."""
        heads = self.statistic
        size = heads.dim * heads.num_classes
        weights = noised.total[:size].unflatten(0, (-1, heads.num_classes)) / noised.rows
        if not heads.centred:
            return Fitted(weights, prior=heads.prior)
        assert heads.constant is not None
        equal = torch.full((heads.num_classes,), 1 / heads.num_classes, dtype=torch.float64)
        at_mean = noised.total[size:] / noised.rows @ weights[1:]
        intercepts = self.taught_by(shares_of(heads.prior, equal)) - at_mean / heads.constant
        return Fitted(torch.cat([intercepts[None], weights[1:]]), prior=heads.prior)

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights; a head's sum shows no shares of the users' rows."""
        if self.statistic.prior == "private":
            return reported_prior("private", None, class_names)
        unknown = torch.ones(self.statistic.num_classes, dtype=torch.float64)
        return reported_prior(self.statistic.prior, unknown / unknown.sum(), class_names)

    def taught_by(self, shares: Tensor) -> Tensor:
        """(K,) constant column that minimises J for (K,) shares of rows without features."""
        head, a = self.statistic.head, self.statistic.constant or 0.0
        targets = head.targets(torch.arange(head.num_classes), torch.float64)

        def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
            w = torch.from_numpy(weights)
            scores = (a * w).expand(head.num_classes, -1)
            value = head.l2_reg / 2 * w.square().sum() + shares @ head.data_loss(scores, targets)
            return float(value), (
                head.l2_reg * w + a * shares @ head.residual(scores.clone(), targets)
            ).numpy()

        found = minimize(loss, np.zeros(head.num_classes), jac=True, options={"gtol": 1e-10})
        return torch.from_numpy(found.x)


def build(
    name: str,
    transform: PublicTransform,
    num_classes: int,
    *,
    l2_reg: float,
    **options: Any,
) -> Method:
    """Blind averaging of heads of kind `name`; options: `radius`, fields of `TrainedHeads`."""
    of_head = {key: options.pop(key) for key in ("radius", "relaxation") if key in options}
    head = HEADS[name](
        num_classes=num_classes, clip_norm=transform.clip_norm, l2_reg=l2_reg, **of_head
    )
    heads = TrainedHeads(head=head, dim=transform.dim, constant=transform.constant, **options)
    return Method(name, heads, AveragedHeads(statistic=heads), num_classes)
