"""Names that options offer. What they stand for is loaded when a command runs, not for `--help`."""

from typing import Literal

Noise = Literal["discrete", "float"]
Scheme = Literal["own", "iid", "one-class", "dirichlet"]
PrivateMethodName = Literal[
    "discriminant",
    "class-sums",
    "least-squares",
    "softmax",
    "svm",
    "logistic",
    "dp-fl",
    "output-perturbation",
    "gradient-perturbation",
    "dp-svm-smo",
    "amp",
    "centralised-softmax",
    "centralised-svm",
    "admm-dual",
    "admm-primal",
    "charter",
    "charter-sum",
]
MethodName = PrivateMethodName | Literal["non-private-softmax", "non-private-svm"]
Cost = Literal["megabits", "seconds"]
