"""Cards: everything is text, nothing is loaded; no promise is smaller than the one shown."""

import base64
import functools
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from embed import PublicTransform
from tests.embedding_sets import clusters
from train_distributed import Privacy, Release, accounting, release
from train_distributed.one_shot.attacker import best_guess
from train_distributed.one_shot.metrics import ClassifierMetrics
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS, NOT_PRIVATE, RIVALS
from train_distributed.one_shot.report_file import Report
from train_distributed.released.card import balanced, bootstrap, card, words_of
from train_distributed.released.numbers import percent_range, rounded_up
from train_distributed.research.rivals.learn import ALL_METHODS

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }} {% raw %}",
    "[link](javascript:alert(1))",
    "| a | b |\n# heading\n* item",
    "&lt;b&gt; `code` $x$ __bold__",
    "--- ", "1. one", "x" * 400,
)  # fmt: skip
VOID = {"meta", "link", "img", "br", "hr", "input"}
LOADS = {"script", "link", "iframe", "object", "embed", "audio", "video", "form", "base"}
LOUD = "NOT SUITABLE FOR RELEASE"


class Page(HTMLParser):
    """Tags in order, what they say, and whether they close one another."""

    def __init__(self, made: Release, **known: Any) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.text = card(made, markup="html", **known)
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())


@functools.cache
def trained(names: tuple[str, ...]) -> Release:
    rows = clusters(120, len(names), max(4, len(names)), noise=1, test=40, users=8)
    held = replace(rows, meta={"class_names": list(names)})
    return release(held, "discriminant", Privacy(1.0, 1e-5), noise="float", sums=1)


def model(names: tuple[str, ...] = ("a", "b", "c"), **more: Any) -> Release:
    """A release with test rows; `more` goes into its report."""
    made = trained(names)
    return replace(made, report=made.report | more)


def section(title: str, report: dict[str, Any], **known: Any) -> str:
    """Markdown below a heading, or all of it, of a card of this report."""
    whole = Report.of({"users": 8, "suitable_for_release": True} | report)
    made = Release(torch.zeros(3, 2).double(), PublicTransform.identity(2), ("a", "b"), whole)
    text = card(made, markup="markdown", **known)
    return text.partition(f"## {title}")[2].partition("\n## ")[0] if title else text


def test_names_are_text_wherever_they_stand() -> None:
    made = model(NASTY, secure_sum=NASTY[0], unsuitable_because=list(NASTY))
    known: Any = {"name": NASTY[1], "files": {NASTY[0]: NASTY[1]}, "command": NASTY[2]}
    page = Page(made, **known)
    assert not page.open
    assert not {tag for tag, _ in page.tags} & LOADS
    assert not [name for _, of in page.tags for name in of if name.startswith("on")]
    assert {(of["src"] or "")[:22] for of in page.of("img")} == {"data:image/png;base64,"}
    assert [name for name in NASTY if " ".join(name.split()) not in page.said] == []
    text = card(made, markup="markdown", **known)
    assert not re.search(r"<(?!br)\w", text)
    assert "](javascript" not in text.replace(r"\]", "")
    table = text[text.index("Every class by itself") :].split("\n\n")[1].splitlines()
    assert len(table) == 2 + len(NASTY)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}


def test_the_page_loads_nothing_and_serves_whoever_sees_nothing() -> None:
    page = Page(model())
    assert not re.search(r"https?://|url\(|@import|src=\"(?!data:)", page.text)
    (policy,) = [of["content"] for of in page.of("meta") if "http-equiv" in of]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert all(of["alt"] for of in page.of("img"))
    assert len(page.of("caption")) == len(page.of("table")) > 2
    assert {(of["href"] or "")[1:] for of in page.of("a")} == {of["id"] for of in page.of("h2")}
    sources = [(of["src"] or "").partition(",")[2] for of in page.of("img")]
    assert [base64.b64decode(source)[:4] for source in sources] == [b"\x89PNG"] * 2
    assert Page(model()).text == page.text


def test_the_verdict_stands_at_the_top() -> None:
    why = {"suitable_for_release": False, "unsuitable_because": ["floating-point noise", "seeded"]}
    said, text = Page(model(**why)).said, card(model(**why), markup="markdown")
    assert said.index(LOUD) < said.index("privacy loss")
    assert f"* {why['unsuitable_because'][0]}\n* seeded" in text[text.index(LOUD) :]
    assert LOUD not in card(model(suitable_for_release=True), markup="markdown")


NOTED = {
    **{"file": "rows.ledger", "entry": "0a" * 8, "length": 3, "head": "0a" * 32},
    **{"epsilon_total": 1.25, "delta_total": 1e-5, "unit": "record"},
}
FEDERATED = {
    **{"federation": "ab" * 32, "session": "cd" * 32, "protocol": "secagg", "sessions": 2},
    **{"secure_sum": "SecAgg+ among the users, one server", "bytes_per_user": 1234},
    **{"survivors": 7, "min_survivors": 7, "honest_users": 3, "surviving_users": ["a"]},
    "missing": {"hospital-b": "masked input"},
    "holds_against": "the server, colluding with at most 0.1 of the users",
    **{"epsilon_of_all_sessions": 1.5, "ledger": NOTED},
}
SMALL = {"encoder": "simclr-small", "encoder_hash": "12ab", "weights": "shipped"}
ENCODING = SMALL | {"preprocess": {"image_size": 32, "crop": 0.5}}
TWO_SUMS = {"rounds": 2, "share_per_round": [0.05, 0.95], "common_share": 0.7251}
GRADIENTS = {"rounds": 5, "share_per_round": [0.5] + [0.125] * 4}
ONE_PROCESS = {"method": "charter", "encoding": ENCODING, "user_clip": 10.6249, "ledger": "none"}
OF_ONE_PROCESS = [
    *("One process played all users", f"| method | {words_of('charter')} |"),
    *("simclr-small, weights: shipped", "32 px, crop 0.5", "scaled down to a length of 10.62"),
    "No ledger was kept when this model was made",
]
OF_A_FEDERATION = [
    *("hospital-b, lost at: masked input", "7 of the 8 that were", "to: ε = 1.5"),
    *("also together with 4 of the 8 users", "| method | not recorded |"),
    "What a user sent stays hidden from the server, colluding with at most 0.1 of the users.",
    "This release is entry 0a0a0a0a0a0a0a0a of the ledger rows.ledger. All entries up",
]


def stated(epsilon: float = 1.0, delta: float = 1e-5, **more: Any) -> dict[str, Any]:
    multiplier = accounting.noise_multiplier(epsilon, delta)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 1}
    return Privacy(epsilon, delta).report() | curve | more


def metrics(confusion: list[list[int]], **more: object) -> dict[str, Any]:
    counts = np.array(confusion)
    labels, predicted = (
        np.repeat(each.ravel(), counts.ravel()) for each in np.indices(counts.shape)
    )
    measured = ClassifierMetrics("abc"[: len(counts)], len(labels))
    measured.add(9 * torch.eye(len(counts)).double()[predicted], labels)
    return {"test_metrics": measured.report() | more}


BY_USER = Privacy(1.0, 1e-5, unit="user", group_size=2).report()
ZERO_OUT = stated(sensitivity=2.0, zero_out_sensitivity=1.25, zero_out_epsilon=0.60012)
ROUNDS = stated(epsilon_per_iteration=0.12344, epsilon_of_all_sessions=2.5)
ONE_SIDED = metrics([[5, 0, 0], [5, 0, 0], [0, 0, 0]], warnings=["one class only"])
MANY = metrics([[5, 1], [2, 8]])
del MANY["test_metrics"]["confusion"]  # of many classes
OLDER = {"test_accuracy": 0.5, "test_accuracy_per_class": {"a": 0.25}}
GOOD, PROMISE = "How good it is", "The promise"


@pytest.mark.parametrize(
    ("title", "report", "words"),
    [
        ("", TWO_SUMS | ONE_PROCESS, ["has 72.5 % of a record's squared length", *OF_ONE_PROCESS]),
        ("", GRADIENTS, ["4 secure sums of clipped gradients", "No ledger was handed in"]),
        ("", FEDERATED, OF_A_FEDERATION),
        ("", {"ledger": NOTED | {"epsilon_total": "inf"}}, ["came to ε = inf"]),
        (PROMISE, {}, ["Take any one record (a picture with its class) out of the training data"]),
        (PROMISE, {}, ["no figure of that kind is proven", "(2ε, (1 + e^ε) δ)"]),
        (PROMISE, BY_USER, ["Take any 2 users out"]),
        (PROMISE, ZERO_OUT, ["| replace one record (promised) | 1 | 1e-05 | 2 |", "second row"]),
        (PROMISE, ZERO_OUT, ["| take out one record, all counts stay | 0.601 | 1e-05 | 1.25 |"]),
        (PROMISE, ROUNDS, ["one iteration: ε = 0.124", "the users agreed to: ε = 2.5"]),
        (PROMISE, stated(40.0), ["protects hardly anybody"]),
        (GOOD, metrics([[40, 10], [5, 45]]), ["| accuracy | 85.0 % | 76.4 to 91.4 % |"]),
        (GOOD, metrics([[40, 10], [5, 45]]), ["| always answering 'a' | 50.0 % |  |"]),
        (GOOD, ONE_SIDED, ["\n\n**Warning: one class only.**", "| a | 5 | 100.0 % |"]),
        (GOOD, ONE_SIDED, ["| b | 5 | 0.0 % | 0.0 to 52.2 % | – |", "| c | 0 | – |  | – |  |"]),
        (GOOD, MANY, ["| a | 6 | 83.3 % | 35.8 to 99.6 % | 71.4 % |"]),
        (GOOD, MANY, ["| balanced accuracy: mean recall of the classes | 81.7 % |  |"]),
        (GOOD, {"test_accuracy": None}, ["Nothing is known"]),
        (GOOD, OLDER, ["there is no interval", "| a | 25.0 % |"]),
    ],
)
def test_a_card_says_what_the_report_does(title: str, report: Any, words: list[str]) -> None:
    said = section(title, stated() | report)
    if not title:
        said = " ".join(said.replace("\\", "").split())
    assert [each for each in words if each not in said] == []


def test_a_card_promises_nothing_that_does_not_hold() -> None:
    text = section(PROMISE, Privacy(math.inf, 1e-5).report())
    assert text.startswith("\n\n**Nothing is promised.")
    assert "|" not in text
    assert "protects hardly anybody" not in section(PROMISE, stated(3.0))
    assert "One process" not in section("", stated() | FEDERATED)
    assert {*METHODS, *RIVALS, *MANY_ROUNDS, *NOT_PRIVATE} == set(ALL_METHODS)  # each has words


EVALUATED: dict[str, Any] = Privacy(0.5, 1e-5).report() | {
    **{"users": 50, "rows": 500, "sampling": "users", "confidence_level": 0.9},
    "with_the_training": "disjoint from the training rows",
    "accuracy": {"estimate": 0.8123, "low": 0.7312, "high": 0.8801},
    "balanced_accuracy": {"estimate": None, "low": 0.2, "high": 0.95},
    "expected_calibration_error": None,
    "recall": {
        "<b>": {"estimate": 0.5, "low": 0.25, "high": 0.75, "rows": 20.5},
        "c": {"estimate": None, "low": 0.0, "high": 1.0, "rows": -1.0, "too_few_rows": True},
    },
    "suitable_for_release": True,
}


def test_a_private_evaluation_keeps_its_own_intervals() -> None:
    text = section("", stated(), evaluation=EVALUATED)
    assert "| accuracy, evaluated privately | 81.2 % | 73.1 to 88.1 % at 90 % |" in text
    assert "| recall of &lt;b&gt; | 50.0 % | 25.0 to 75.0 % |" in text
    assert "| recall of c | too few rows | 0.0 to 100.0 % |" in text
    assert "the luck of which users were drawn" in text
    assert "Its rows: disjoint from the training rows." in text
    assert "Nothing is known" not in text
    broken = EVALUATED | {"suitable_for_release": False, "unsuitable_because": ["seeded"]}
    assert f"THIS EVALUATION IS {LOUD}: seeded." in section("", stated(), evaluation=broken)


@pytest.mark.parametrize("gone", ["accuracy", "recall", "private", "rows", "confidence_level"])
def test_an_evaluation_without_its_findings_is_refused(gone: str) -> None:
    found = {name: value for name, value in EVALUATED.items() if name != gone}
    with pytest.raises(ValueError, match=f"evaluation must .* `{gone}`"):
        section("", stated(), evaluation=found)


def guess(report: dict[str, Any]) -> float:
    return best_guess(Report.of(report))


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.1, 1.0, 8.0, 40.0, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_odds_are_those_of_the_best_attacker_rounded_up(epsilon: float, delta: float) -> None:
    """A Gaussian of sensitivity over noise μ is told from its shift with probability Φ(μ/2)."""
    report = stated(epsilon, delta)
    exact = float(ndtr(1 / report["noise_multiplier"] / 2))
    assert exact <= guess(report) <= min(1.0, exact + 0.0011)
    general = guess(Privacy(epsilon, delta).report())
    bound = (math.exp(min(epsilon, 700.0)) + delta) / (1 + math.exp(min(epsilon, 700.0)))
    assert bound - 1e-12 <= general <= min(1.0, bound + 0.0011)
    assert guess(report) <= general + 1e-9


def test_odds_are_of_all_compositions_and_general_where_noise_is_far_from_gaussian() -> None:
    assert guess(stated(log10_zeta=-100.0)) == guess(stated())
    assert guess(stated(log10_zeta=-2.0)) == guess(Privacy(1.0, 1e-5).report())
    four = accounting.noise_multiplier(1.0, 1e-5, 4)
    assert guess(stated(noise_multiplier=four, compositions=4)) == guess(stated())


def test_numbers_are_never_rounded_to_less() -> None:
    rng = np.random.default_rng(0)
    for value in 10 ** rng.uniform(-12, 6, 2000):
        for digits in (1, 3, 6):
            shown = float(rounded_up(float(value), digits))
            assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)
    ends = [percent_range(*each) for each in ((0.12349, 0.56701), (0.1, 0.9), (0.0, 1.0))]
    assert ends == ["12.3 to 56.8 %", "10.0 to 90.0 %", "0.0 to 100.0 %"]


def test_intervals_of_counts_cover_what_drew_them() -> None:
    rng = np.random.default_rng(1)
    truth = np.array([[0.3, 0.05, 0.05], [0.1, 0.2, 0.0], [0.06, 0.04, 0.2]])
    right = balanced(1e6 * truth)
    covered = np.zeros(2)
    for _ in range(60):
        drawn = rng.multinomial(300, truth.ravel()).reshape(3, 3)
        ends = bootstrap(drawn)
        covered += [low <= of <= high for of, (low, high) in zip(right, ends.values(), strict=True)]
    assert (covered >= 53).all()
