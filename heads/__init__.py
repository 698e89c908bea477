"""One user's mathematics: heads, their sensitivities, solvers and statistics."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heads.exact import Solution, default_tolerance, fit_exact
    from heads.head import Head, HuberSVMHead, LogisticHead, SoftmaxHead
    from heads.projection import project_ball
    from heads.rounding import sgd_rounding, sgd_sensitivity
    from heads.sgd import fit_sgd
    from heads.statistics import (
        LeastSquaresStatistics,
        class_sums,
        class_sums_sensitivity,
        finding_sums_sensitivity,
        least_squares_norm,
        least_squares_sensitivity,
        least_squares_statistics,
        second_moments,
        svec_scale,
        symmetric,
    )

    __version__: str

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
    "finding_sums_sensitivity",
    "fit_exact",
    "fit_sgd",
    "least_squares_norm",
    "least_squares_sensitivity",
    "least_squares_statistics",
    "project_ball",
    "second_moments",
    "sgd_rounding",
    "sgd_sensitivity",
    "svec_scale",
    "symmetric",
]

_HOMES = {
    "Head": "head",
    "HuberSVMHead": "head",
    "LogisticHead": "head",
    "SoftmaxHead": "head",
    "Solution": "exact",
    "default_tolerance": "exact",
    "fit_exact": "exact",
    "fit_sgd": "sgd",
    "project_ball": "projection",
    "sgd_rounding": "rounding",
    "sgd_sensitivity": "rounding",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Loads a name with its module when it is asked for: options are read without torch."""
        if name == "__version__":
            return version("blind-averaging")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"heads.{_HOMES.get(name, 'statistics')}"), name)

    def __dir__() -> list[str]:
        """Public names, loaded or not."""
        return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__version__"])
