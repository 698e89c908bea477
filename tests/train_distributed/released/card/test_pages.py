"""Cards: everything is text, nothing is loaded; no promise is smaller than the one shown."""

import base64
import functools
import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from embed import EmbeddingSet, PublicTransform
from tests.embedding_sets import clusters
from train_distributed import Privacy, Release, accounting, release
from train_distributed.one_shot.attacker import best_guess
from train_distributed.one_shot.metrics import ClassifierMetrics
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS, NOT_PRIVATE, RIVALS
from train_distributed.one_shot.report_file import Report
from train_distributed.released.card import balanced, bootstrap, card, exact, words_of
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


class Page(HTMLParser):
    """Tags in order, what they say, and whether they close one another."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
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


def model(names: tuple[str, ...] = ("a", "b", "c"), **more: Any) -> Release:
    """A release with test rows; `more` goes into its report."""
    made = trained(names)
    return replace(made, report=made.report | more)


@functools.cache
def trained(names: tuple[str, ...]) -> Release:
    rows = clusters(120, len(names), max(4, len(names)), noise=1, test=40, users=8)
    held = replace(rows, meta={"class_names": list(names)})
    return release(held, "discriminant", Privacy(1.0, 1e-5), noise="float", sums=1)


def text_of(page: Page) -> str:
    return " ".join(" ".join(page.words).split())


def as_html(made: Release, **known: Any) -> str:
    return card(made, markup="html", **known)


def as_markdown(made: Release, **known: Any) -> str:
    return card(made, markup="markdown", **known)


def test_names_are_text_wherever_they_stand() -> None:
    made = model(NASTY, secure_sum=NASTY[0], unsuitable_because=list(NASTY))
    known: Any = {"name": NASTY[1], "files": {NASTY[0]: NASTY[1]}, "command": NASTY[2]}
    page = Page(as_html(made, **known))
    assert not page.open
    assert not {tag for tag, _ in page.tags} & LOADS
    assert not [name for _, of in page.tags for name in of if name.startswith("on")]
    assert {(of["src"] or "")[:22] for of in page.of("img")} == {"data:image/png;base64,"}
    said = text_of(page)
    for name in NASTY:
        assert " ".join(name.split()) in said
    text = as_markdown(made, **known)
    assert not re.search(r"<(?!br)\w", text)
    assert "](javascript" not in text.replace(r"\]", "")
    table = text[text.index("Every class by itself") :].split("\n\n")[1].splitlines()
    assert len(table) == 2 + len(NASTY)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}


@functools.cache
def plain() -> str:
    return as_html(model())


def test_the_page_loads_nothing_and_serves_whoever_sees_nothing_or_a_narrow_screen() -> None:
    text = plain()
    page = Page(text)
    assert not re.search(r"https?://|url\(|@import|src=\"(?!data:)", text)
    (policy,) = [of["content"] for of in page.of("meta") if "http-equiv" in of]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert page.of("html") == [{"lang": "en"}]
    assert all(of["alt"] for of in page.of("img"))
    assert {of["scope"] for of in page.of("th")} == {"col", "row"}
    assert len(page.of("caption")) == len(page.of("table")) > 2
    assert any("width=device-width" in (of.get("content") or "") for of in page.of("meta"))
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    anchors = {of["id"] for of in page.of("h2")}
    assert {(of["href"] or "")[1:] for of in page.of("a")} == anchors
    assert len(anchors) == 7
    sources = [(of["src"] or "").partition(",")[2] for of in page.of("img")]
    assert [base64.b64decode(source)[:4] for source in sources] == [b"\x89PNG"] * 2
    assert as_html(model()) == text


@pytest.mark.parametrize("suitable", [True, False])
def test_the_verdict_stands_at_the_top_in_large_letters(suitable: bool) -> None:
    why = [] if suitable else ["floating-point noise", "seeded"]
    made = model(suitable_for_release=suitable, unsuitable_because=why)
    said, text = text_of(Page(as_html(made))), as_markdown(made)
    loud = "NOT SUITABLE FOR RELEASE"
    assert (loud in said, loud in text) == (not suitable, not suitable)
    if not suitable:
        assert said.index(loud) < said.index("privacy loss")
        assert "* floating-point noise\n* seeded" in text


FEDERATED = {
    **{"federation": "ab" * 32, "session": "cd" * 32, "protocol": "secagg", "sessions": 2},
    **{"secure_sum": "SecAgg+ among the users, one server", "bytes_per_user": 1234},
    **{"survivors": 7, "min_survivors": 7, "honest_users": 3, "surviving_users": ["a"]},
    "missing": {"hospital-b": "masked input"},
    "holds_against": "the server, colluding with at most 0.1 of the users",
    "epsilon_of_all_sessions": 1.5,
}
NOTED = {
    **{"file": "rows.ledger", "entry": "0a" * 8, "length": 3, "head": "0a" * 32},
    **{"epsilon_total": 1.25, "delta_total": 1e-5, "unit": "record"},
}
SHRUNK = {"preprocess": {"image_size": 32, "crop": 0.5}, "weights": "shipped"}
ENCODING = SHRUNK | {"encoder": "simclr-small", "encoder_hash": "12ab"}
TWO_SUMS = {"rounds": 2, "share_per_round": [0.05, 0.95], "common_share": 0.7251}
GRADIENTS = {"rounds": 5, "share_per_round": [0.5] + [0.125] * 4}


HIDDEN = "What a user sent stays hidden from the server, colluding with at most 0.1 of the users."
ENTRY = "This release is entry 0a0a0a0a0a0a0a0a of the ledger rows.ledger. All entries up"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (TWO_SUMS, ["has 72.5 % of a record's squared length"]),
        (GRADIENTS, ["4 secure sums of clipped gradients"]),
        *(
            ({"method": method}, [f"| method | {words_of(method)} |"])
            for method in ("discriminant", "dp-fl", "charter", "a method of tomorrow")
        ),
        ({"method": None}, ["| method | not recorded |"]),
        ({"encoding": ENCODING}, ["simclr-small, weights: shipped", "32 px, crop 0.5"]),
        ({}, ["One process played all users"]),
        ({"user_clip": 10.6249}, ["scaled down to a length of 10.62"]),
        (FEDERATED, ["hospital-b, lost at: masked input", "7 of the 8 that were invited", HIDDEN]),
        (FEDERATED, ["all sessions that the users agreed to: ε = 1.5"]),
        (FEDERATED, ["also together with 4 of the 8 users"]),
        ({"ledger": NOTED}, [ENTRY]),
        ({"ledger": NOTED | {"epsilon_total": "inf"}}, ["came to ε = inf"]),
        ({"ledger": "none"}, ["No ledger was kept when this model was made"]),
        ({"ledger": None}, ["No ledger was handed in for this card"]),
    ],
)
def test_a_card_says_what_the_report_does(more: Any, words: list[str]) -> None:
    text = " ".join(as_markdown(model(**more)).replace("\\", "").split())
    assert [each for each in words if each not in text] == []


def test_a_card_says_nothing_that_the_report_does_not() -> None:
    assert "gradients" not in as_markdown(model(**TWO_SUMS))
    assert "further rounds" not in as_markdown(model(rounds=5))
    assert "One process" not in as_markdown(model(**FEDERATED))
    assert "scaled down" not in as_markdown(model())


def test_every_method_has_words_and_many_classes_fit() -> None:
    assert {*METHODS, *RIVALS, *MANY_ROUNDS, *NOT_PRIVATE} == set(ALL_METHODS)
    names = tuple(f"class {k}" for k in range(60))
    made = Release(torch.zeros(5, 60).double(), PublicTransform.identity(4), names, model().report)
    assert "60: class 0, class 1" in as_markdown(made)
    assert "and 48 more" in as_markdown(made)


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
    made = model()
    tests = ("test_accuracy", "test_metrics", "test_accuracy_per_class")
    kept = {name: value for name, value in made.report.items() if name not in tests}
    made = replace(made, report=Report.of(kept))
    text = as_markdown(made, evaluation=EVALUATED)
    assert "| accuracy, evaluated privately | 81.2 % | 73.1 to 88.1 % at 90 % |" in text
    assert "| metric | value | 90 % interval |" in text
    assert "| recall of &lt;b&gt; | 50.0 % | 25.0 to 75.0 % |" in text
    assert "| recall of c | too few rows | 0.0 to 100.0 % |" in text
    assert "the luck of which users were drawn" in text
    assert "Its rows: disjoint from the training rows." in text
    assert "Nothing is known" not in text
    assert "Nothing is known" in as_markdown(made)
    broken = EVALUATED | {"suitable_for_release": False, "unsuitable_because": ["seeded"]}
    loud = "THIS EVALUATION IS NOT SUITABLE FOR RELEASE: seeded."
    assert loud in as_markdown(made, evaluation=broken)


@pytest.mark.parametrize("gone", ["accuracy", "recall", "private", "rows", "confidence_level"])
def test_an_evaluation_without_its_findings_is_refused(gone: str) -> None:
    found = {name: value for name, value in EVALUATED.items() if name != gone}
    with pytest.raises(ValueError, match=f"evaluation must .* `{gone}`"):
        as_markdown(model(), evaluation=found)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FRAME = """<iframe id="page" width="{width}" height="800" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
onload = () => {{
  const page = document.getElementById("page").contentDocument;
  const wide = page.documentElement.clientWidth;
  const out = [...page.querySelectorAll("body *")].filter(
    (each) => !each.closest(".scroll table") && each.getBoundingClientRect().right > wide + 1);
  const broken = [...page.images].filter((each) => !each.naturalWidth);
  document.getElementById("found").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth - wide,
    out: out.map((each) => each.tagName), pictures: page.images.length, broken: broken.length}});
}};
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_sticks_out_of_a_narrow_screen(width: int, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs one of {', '.join(BROWSERS)}")
    meta = {"class_names": [f"class {k} " + "x" * (4 * k) for k in range(40)]}
    labels, users = np.arange(800) % 40, np.arange(800) % 20
    given = {"split": np.repeat([0, 1], [400, 400]).astype(np.uint8), "users": users, "meta": meta}
    held = EmbeddingSet(embeddings=np.eye(40)[labels], labels=labels, **given)
    made = release(held, "discriminant", Privacy(1.0, 1e-5), noise="float", sums=1)
    files = {"model.safetensors": "0a" * 32, "y" * 90: "0b" * 32}
    command = "blind-averaging run --embeddings " + "z" * 200
    page = card(made, markup="html", name="w" * 80, files=files, command=command)
    outer = tmp_path / "outer.html"
    outer.write_text(FRAME.format(width=width, page=html.escape(page, quote=True)))
    typed = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    typed += ["--virtual-time-budget=10000", "--dump-dom", outer.as_uri()]
    said = subprocess.run(typed, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'<pre id="found">(.+?)</pre>', said)
    assert found is not None
    expected = {"width": 0, "out": [], "pictures": 2, "broken": 0}
    assert json.loads(html.unescape(found[1])) == expected


def stated(epsilon: float = 1.0, delta: float = 1e-5, **more: Any) -> dict[str, Any]:
    multiplier = accounting.noise_multiplier(epsilon, delta)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 1}
    return Privacy(epsilon, delta).report() | curve | more


def guess(report: dict[str, Any]) -> float:
    return best_guess(Report.of(report))


def section(title: str, report: dict[str, Any]) -> str:
    """Of a card, as Markdown."""
    whole = Report.of({"users": 3, "suitable_for_release": True} | report)
    made = Release(torch.zeros(3, 2).double(), PublicTransform.identity(2), ("a", "b"), whole)
    return card(made, markup="markdown").partition(f"## {title}")[2].partition("\n## ")[0]


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


BY_USER = Privacy(1.0, 1e-5, unit="user")
ZERO_OUT = stated(sensitivity=2.0, zero_out_sensitivity=1.25, zero_out_epsilon=0.60012)
ROUNDS = stated(epsilon_per_iteration=0.12344, epsilon_of_all_sessions=2.5)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (stated(), ["Take any one record (a picture with its class) out of the training data"]),
        (BY_USER.report(), ["Take all records of any one user out"]),
        (Privacy(1.0, 1e-5, group_size=3).report(), ["Take any 3 records out"]),
        (Privacy(1.0, 1e-5, unit="user", group_size=2).report(), ["Take any 2 users out"]),
        (ZERO_OUT, ["| replace one record (promised) | 1 | 1e-05 | 2 |", "second row"]),
        (ZERO_OUT, ["| take out one record, all counts stay | 0.601 | 1e-05 | 1.25 |"]),
        (stated(), ["no figure of that kind is proven", "(2ε, (1 + e^ε) δ)"]),
        (ROUNDS, ["one iteration: ε = 0.124", "all sessions that the users agreed to: ε = 2.5"]),
        (stated(40.0), ["protects hardly anybody"]),
    ],
)
def test_a_card_says_what_is_promised(report: dict[str, Any], words: list[str]) -> None:
    said = section("The promise", report)
    assert all(each in said for each in words)


def test_a_card_promises_nothing_that_does_not_hold() -> None:
    text = section("The promise", Privacy(math.inf, 1e-5).report())
    assert text.startswith("\n\n**Nothing is promised.")
    assert "|" not in text
    assert "protects hardly anybody" not in section("The promise", stated(3.0))


def metrics(confusion: list[list[int]], **more: object) -> dict[str, Any]:
    counts = np.array(confusion)
    labels, predicted = (
        np.repeat(each.ravel(), counts.ravel()) for each in np.indices(counts.shape)
    )
    measured = ClassifierMetrics("abc"[: len(counts)], len(labels))
    measured.add(9 * torch.eye(len(counts)).double()[predicted], labels)
    return {"test_metrics": measured.report() | more}


def test_the_interval_of_a_share_covers_it() -> None:
    """Of 40 rows, at every tenth of a share: at least as often as it says."""
    rng = np.random.default_rng(0)
    for share in np.arange(0, 1.01, 0.1):
        ends = [exact(hits, 40) for hits in range(41)]
        covers = np.array([each.low <= share <= each.high for each in ends])
        assert covers[rng.binomial(40, share, 4000)].mean() >= 0.94


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


ONE_SIDED = metrics([[5, 0, 0], [5, 0, 0], [0, 0, 0]], warnings=["one class only"])
MANY = metrics([[5, 1], [2, 8]])
del MANY["test_metrics"]["confusion"]  # of many classes
OLDER = {"test_accuracy": 0.5, "test_accuracy_per_class": {"a": 0.25}}


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (metrics([[40, 10], [5, 45]]), ["| accuracy | 85.0 % | 76.4 to 91.4 % |"]),
        (metrics([[40, 10], [5, 45]]), ["| always answering 'a' | 50.0 % |  |"]),
        (ONE_SIDED, ["\n\n**Warning: one class only.**", "| a | 5 | 100.0 % |"]),
        (ONE_SIDED, ["| b | 5 | 0.0 % | 0.0 to 52.2 % | – |", "| c | 0 | – |  | – |  |"]),
        (MANY, ["| a | 6 | 83.3 % | 35.8 to 99.6 % | 71.4 % |"]),
        (MANY, ["| balanced accuracy: mean recall of the classes | 81.7 % |  |"]),
        ({}, ["Nothing is known"]),
        ({"test_accuracy": None}, ["Nothing is known"]),
        (OLDER, ["there is no interval", "| a | 25.0 % |"]),
    ],
)
def test_a_card_says_how_good_a_model_is(report: dict[str, Any], words: list[str]) -> None:
    said = section("How good it is", Privacy(1.0, 1e-5).report() | report)
    assert all(each in said for each in words)
    assert "Warning" not in said or said.startswith("\n\n**Warning")  # first of all
