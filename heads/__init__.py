"""One user's mathematics: heads, their sensitivities, solvers and statistics."""

from heads.exact import Solution, default_tolerance, fit_exact
from heads.head import Head
from heads.huber_svm import HuberSVMHead
from heads.logistic import LogisticHead
from heads.projection import project_ball
from heads.sgd import fit_sgd
from heads.sgd_rounding import sgd_rounding, sgd_sensitivity
from heads.softmax import SoftmaxHead
from heads.statistics import (
    LeastSquaresStatistics,
    class_sums,
    class_sums_sensitivity,
    least_squares_sensitivity,
    least_squares_statistics,
    second_moments,
    svec_scale,
    symmetric,
)

__all__ = [
    "Head",
    "HuberSVMHead",
    "LeastSquaresStatistics",
    "LogisticHead",
    "SoftmaxHead",
    "Solution",
    "class_sums",
    "class_sums_sensitivity",
    "default_tolerance",
    "fit_exact",
    "fit_sgd",
    "least_squares_sensitivity",
    "least_squares_statistics",
    "project_ball",
    "second_moments",
    "sgd_rounding",
    "sgd_sensitivity",
    "svec_scale",
    "symmetric",
]
