"""What a model was made of: whose rows, which method, which encoder; and who could see what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embed.encoding import Encoding
from train_distributed.released.card.content import (
    Block,
    Items,
    Pairs,
    Section,
    Words,
    counted,
    percent,
    rounded_up,
    shortened,
)

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
SHOWN = 12  # class names in the text; the table of classes has all


@dataclass(frozen=True)
class Maker:
    """What the model's own file says of pictures and rows."""

    class_names: tuple[str, ...]
    dim: int  # columns of an embedding
    features: int  # columns that the public transform keeps
    clip_norm: float
    constant: float


def origin_section(report: dict[str, Any], maker: Maker) -> Section:
    """What was learned from whom."""
    names = list(maker.class_names)
    more = "" if len(names) <= SHOWN else f" … and {len(names) - SHOWN} more"
    method = report.get("method")
    pairs = [
        ("classes", f"{len(names)}: {', '.join(map(shortened, names[:SHOWN]))}{more}"),
        ("users", _users(report)),
        ("records learned from", f"{int(report['rows']):,}" if "rows" in report else "unknown"),
        ("method", METHODS.get(str(method), str(method)) if method else "not recorded"),
        *_further_rounds(report),
        *_encoder(report.get("encoding")),
        ("public transform", _transform(report, maker)),
        ("public and private rows", _compared(report)),
    ]
    return Section("What was learned, from whom", (Pairs(tuple(pairs)),))


def _users(report: dict[str, Any]) -> str:
    users = int(report["users"])
    left = int(report.get("survivors", users))
    return f"{users:,}" if left == users else f"{left:,} of the {users:,} that were invited"


def _encoder(told: Any) -> list[tuple[str, str]]:
    if told is None:
        return [("encoder", "not recorded: embeddings of another origin")]
    encoding = Encoding.from_json(told)
    return [
        ("encoder", f"{encoding.encoder}, weights: {encoding.weights}"),
        ("encoder's hash", encoding.encoder_hash),
        ("preprocessing", str(encoding.preprocess)),
    ]


def _transform(report: dict[str, Any], maker: Maker) -> str:
    rows = report.get("public_rows")
    fitted = (
        "not fitted on data" if rows is None else f"fitted on {counted(int(rows), 'public row')}"
    )
    return (
        f"{fitted}: {maker.features} of {maker.dim} directions kept, rows clipped to norm "
        f"{maker.clip_norm:.4g}, of which the constant column has {maker.constant:.4g}"
    )


def _compared(report: dict[str, Any]) -> str:
    words = str(report.get("public_transform", "not recorded"))
    if (rows := report.get("private_rows_compared")) is not None:
        words += f"; {counted(int(rows), 'row')} looked at, {int(report['shared_rows'])} shared"
    return words


def sight_section(report: dict[str, Any]) -> Section:
    """Who could see what while the model was made."""
    return Section("Who could see what", (*_collusion(report), *_messages(report)))


def _collusion(report: dict[str, Any]) -> list[Block]:
    if "honest_users" not in report or "min_survivors" not in report:
        return []
    users, honest = int(report["users"]), int(report["honest_users"])
    if users == 1:
        return [Words("There was one user, which added all of the noise by itself.")]
    least = int(report["min_survivors"])
    words = (
        f"Every user added a share of the noise. The shares of {counted(honest, 'user')} alone "
        "keep the promise: it holds against everybody who sees the model, also together with "
        f"{least - honest:,} of the {users:,} users that reveal their noise or add none."
    )
    if (fraction := report.get("honest_fraction")) is not None:
        words += f" Assumed is that {percent(float(fraction))} of all users are honest."
    if (alone := report.get("epsilon_if_all_others_collude")) is not None:
        shown = alone if isinstance(alone, str) else f"ε = {rounded_up(float(alone))}"
        words += (
            " Against all other users together with whoever opened the sum, an honest user has its "
            f"own noise alone: {shown}."
        )
    if least < users:
        words += f" No sum of fewer than {least:,} users was to be opened."
    return [Words(words)]


def _messages(report: dict[str, Any]) -> list[Block]:
    lines: list[str] = []
    if (how := report.get("secure_sum")) is not None:
        lines.append(f"Secure sum: {how}.")
    if (seen := report.get("who_sees_what")) is not None:
        lines.append(f"While it learned: {seen}.")
    if (against := report.get("holds_against")) is not None:
        lines.append(f"What a user sent stays hidden from {against}.")
    if "federation" in report:
        lines.append(
            "A federation: every user's rows stayed on its own machine. Its digest is "
            f"{report['federation']}, that of the session {report.get('session', 'unknown')}."
        )
        lines += [f"Missing: {name}, lost at: {at}." for name, at in report["missing"].items()]
        if report.get("unchecked_parts"):
            parts = counted(len(report["unchecked_parts"]), "part")
            lines.append(f"Reported by one server alone, so that nobody could compare: {parts}.")
    else:
        lines.append(
            "One process played all users and saw all rows. The promise is about whoever sees the "
            "model, not about whoever ran this process."
        )
    for name, words in (
        ("bytes_per_user", "Sent by a user at most: {:,.0f} bytes."),
        ("bits_per_user", "Sent by a user: {:,.0f} bits."),
    ):
        if report.get(name) is not None:
            lines.append(words.format(float(report[name])))
    return [Items(tuple(lines))]


def limits_section(report: dict[str, Any], class_names: Sequence[str]) -> Section:
    """What nobody promises."""
    lines = [
        "That nothing can be learned about anybody: a conclusion that follows from what many "
        "people have in common follows without any one of them.",
        f"How many users there are, how many records each of them holds, and the "
        f"{len(class_names)} classes: all of that is public.",
        "More than this one release: what else is computed from the same records adds up. A ledger "
        "keeps count.",
        "Refusals: that a run was refused, and why, may rest on one record. No ε covers that.",
        "That settings were chosen without looking: a choice by private test rows costs privacy "
        "that is not in ε.",
        "That users were honest about their data: nobody can see a poisoned submission in a sum.",
        "Anything about the encoder: what it was trained on is not known here.",
        "That the model is as good on other pictures as on those it was tested with, or equally "
        "good for all groups of people.",
    ]
    if "probabilities" not in report:
        lines.append("That its probabilities are calibrated.")
    return Section("What is not promised", (Items(tuple(lines)),))


def _further_rounds(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What came after the first sum of statistics; nothing where there was one sum alone."""
    if "share_per_round" not in report:
        return []
    count = int(report["rounds"]) - 1
    words = f"{count} secure sums of clipped gradients of the softmax loss, under the same promise"
    return [("further rounds", words)]
