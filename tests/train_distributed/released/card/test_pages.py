"""Pages of a card: everything is text, nothing is loaded, every method has its words."""

import base64
import functools
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS, NOT_PRIVATE, RIVALS
from train_distributed.one_shot.report_file import Report
from train_distributed.released.card import card, words_of
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
    labels = np.arange(120) % len(names)
    rows = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)
    rows[:, 0] += labels
    split = np.repeat([0, 1], [80, 40]).astype(np.uint8)
    users = np.arange(120) % 8
    meta = {"class_names": list(names)}
    held = EmbeddingSet(embeddings=rows, labels=labels, users=users, split=split, meta=meta)
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


def test_the_page_loads_nothing_and_forbids_it() -> None:
    text = as_html(model())
    assert not re.search(r"https?://|url\(|@import|src=\"(?!data:)", text)
    page = Page(text)
    (policy,) = [of["content"] for of in page.of("meta") if "http-equiv" in of]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_whoever_sees_nothing_or_a_narrow_screen_is_served_too() -> None:
    text = as_html(model())
    page = Page(text)
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


def test_pictures_are_pictures_and_the_same_each_time() -> None:
    made = model()
    sources = [of["src"] or "" for of in Page(as_html(made)).of("img")]
    pictures = [base64.b64decode(source.partition(",")[2]) for source in sources]
    assert len(pictures) == 2
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert as_html(made) == as_html(made)


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


def test_every_method_has_words() -> None:
    assert {*METHODS, *RIVALS, *MANY_ROUNDS, *NOT_PRIVATE} == set(ALL_METHODS)


def test_the_card_names_a_sum_before_where_there_was_one() -> None:
    text = as_markdown(model(rounds=2, share_per_round=[0.05, 0.95], common_share=0.7251))
    assert "has 72.5 % of a record's squared length" in text.replace("\n", " ")
    assert "gradients" not in text


def test_the_card_names_further_rounds_where_there_were_any() -> None:
    assert "further rounds" not in as_markdown(model(rounds=5))
    several = model(rounds=5, share_per_round=[0.5] + [0.125] * 4)
    assert "4 secure sums of clipped gradients" in as_markdown(several)


@pytest.mark.parametrize(
    "method", ["discriminant", "dp-fl", "charter", None, "a method of tomorrow"]
)
def test_a_card_says_which_method(method: str | None) -> None:
    words = words_of(str(method)) if method else "not recorded"
    assert f"| method | {words} |" in as_markdown(model(method=method)).replace("\\", "")


FEDERATED = {
    "federation": "ab" * 32,
    "session": "cd" * 32,
    "protocol": "secagg",
    "secure_sum": "SecAgg+ among the users, one server",
    "survivors": 7,
    "min_survivors": 7,
    "honest_users": 3,
    "surviving_users": ["a"],
    "missing": {"hospital-b": "masked input"},
    "bytes_per_user": 1234,
    "holds_against": "the server, colluding with at most 0.1 of the users",
    "sessions": 2,
    "epsilon_of_all_sessions": 1.5,
}


def test_a_federation_is_told_from_one_process() -> None:
    alone, together = (as_markdown(model(**more)) for more in ({}, FEDERATED))
    assert "One process played all users" in alone
    assert "One process" not in together
    assert "hospital-b, lost at: masked input" in together
    assert "7 of the 8 that were invited" in together
    hidden = "hidden from the server, colluding with at most 0.1 of the users."
    assert f"What a user sent stays {hidden}" in together
    assert "all sessions that the users agreed to: ε = 1.5" in together
    assert "also together with 4 of the 8 users" in together


def test_the_encoder_is_named_with_its_preprocessing() -> None:
    encoding = {
        "encoder": "simclr-small",
        "encoder_hash": "12ab",
        "weights": "shipped",
        "preprocess": {"image_size": 32, "crop": 0.5},
    }
    said = text_of(Page(as_html(model(encoding=encoding))))
    assert "simclr-small, weights: shipped" in said
    assert "32 px, crop 0.5" in said


def test_many_classes_fit() -> None:
    names = tuple(f"class {k}" for k in range(60))
    weights = torch.zeros(5, 60).double()
    made = model()
    many = Release(weights, PublicTransform.identity(4), names, made.report)
    assert "60: class 0, class 1" in as_markdown(many)
    assert "and 48 more" in as_markdown(many)


EVALUATED: dict[str, Any] = Privacy(0.5, 1e-5).report() | {
    "users": 50,
    "rows": 500,
    "sampling": "users",
    "with_the_training": "disjoint from the training rows",
    "confidence_level": 0.9,
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


def test_an_evaluation_that_may_not_be_shown_says_so() -> None:
    broken = EVALUATED | {"suitable_for_release": False, "unsuitable_because": ["seeded"]}
    assert "THIS EVALUATION IS NOT SUITABLE FOR RELEASE: seeded." in as_markdown(
        model(), evaluation=broken
    )


@pytest.mark.parametrize("gone", ["accuracy", "recall", "private", "rows", "confidence_level"])
def test_an_evaluation_without_its_findings_is_refused(gone: str) -> None:
    found = {name: value for name, value in EVALUATED.items() if name != gone}
    with pytest.raises(ValueError, match=f"evaluation must .* `{gone}`"):
        as_markdown(model(), evaluation=found)


NOTED = {
    "file": "rows.ledger",
    "entry": "0a" * 8,
    "length": 3,
    "head": "0a" * 32,
    "epsilon_total": 1.25,
    "delta_total": 1e-5,
    "unit": "record",
}


@pytest.mark.parametrize(
    ("noted", "words"),
    [
        (NOTED, "This release is entry 0a0a0a0a0a0a0a0a of the ledger rows.ledger. All entries up"),
        (NOTED | {"epsilon_total": "inf"}, "came to ε = inf"),
        ("none", "No ledger was kept when this model was made"),
        (None, "No ledger was handed in for this card"),
    ],
)
def test_a_card_repeats_the_ledger_entry_of_its_release(noted: Any, words: str) -> None:
    assert words in as_markdown(model(ledger=noted))


def test_a_users_clip_is_said_in_words() -> None:
    assert "scaled down to a length of 10.62" in as_markdown(model(user_clip=10.6249))
    assert "scaled down" not in as_markdown(model())
