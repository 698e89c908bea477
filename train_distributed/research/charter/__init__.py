"""Private cutting planes: few bits, one record used at most once."""

from train_distributed.research.charter.algorithm import CharterResult, run
from train_distributed.research.charter.objectives import Distance, OneVsRestLogistic
from train_distributed.research.charter.plan import CharterPlan, CharterTask, make_plan
from train_distributed.research.charter.vaidya import Cutting, cutting_planes, minimise

__all__ = [
    "CharterPlan",
    "CharterResult",
    "CharterTask",
    "Cutting",
    "Distance",
    "OneVsRestLogistic",
    "cutting_planes",
    "make_plan",
    "minimise",
    "run",
]
