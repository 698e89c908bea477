"""Private cutting planes: few bits, one record used at most once."""

from train_distributed.research.rivals.charter.algorithm import Distance, OneVsRestLogistic, run
from train_distributed.research.rivals.charter.plan import CharterPlan, CharterTask, make_plan

__all__ = [
    "CharterPlan",
    "CharterTask",
    "Distance",
    "OneVsRestLogistic",
    "make_plan",
    "run",
]
