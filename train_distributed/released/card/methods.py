"""Every method in one sentence, for a card."""

from train_distributed.one_shot.registry import METHODS

RIVALS = {
    "dp-fl": "DP-SGD on one softmax layer, by Opacus, without a secure sum",
    "output-perturbation": "the average of logistic minimisers (Jayaraman et al. 2018, Alg. 1)",
    "gradient-perturbation": "gradient descent, one noisy secure sum of gradients a round "
    "(Jayaraman et al. 2018, Alg. 2)",
    "dp-svm-smo": "the average of liblinear's SVMs (Kirschte et al. 2024, App. C)",
    "amp": "approximate minima perturbation of Huber SVMs (Iyengar et al. 2019), all rows in one "
    "place",
    "centralised-softmax": "a softmax layer, all rows at one user",
    "centralised-svm": "one-vs-rest Huber SVMs, all rows at one user",
    "admm-dual": "ADMM among neighbours, dual variables perturbed",
    "admm-primal": "ADMM among neighbours, primal variables perturbed",
    "charter": "Charter: cutting planes from noisy gradients of the clients",
    "charter-sum": "Charter: cutting planes from secure sums of noisy gradients",
    "non-private-softmax": "softmax regression, not private",
    "non-private-svm": "a linear SVM, not private",
}


def words_of(method: str) -> str:
    """Sentence about a method: the registry's, a rival's, or else its name."""
    return METHODS[method].words if method in METHODS else RIVALS.get(method, method)
