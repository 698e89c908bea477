"""Every method in one sentence, for a card."""

METHODS = {
    "discriminant": "discriminant: every user submits class sums, and second moments of its rows; "
    "the classifier is Gaussian discriminant analysis, its means and covariance posterior "
    "estimates under a public prior",
    "class-sums": "class sums: every user submits the sum of its rows by class; the classifier is "
    "linear discriminant analysis with the public covariance",
    "least-squares": "least squares: every user submits class sums and second moments of its rows; "
    "the classifier is ridge regression",
    "softmax": "blind averaging: the average of softmax layers that the users trained",
    "svm": "blind averaging: the average of one-vs-rest Huber SVMs that the users trained",
    "logistic": "blind averaging: the average of one-vs-rest logistic regressions of the users",
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
