"""`select` on public tasks keeps the rule's directions for pictures of another kind."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from embed.transform_options import TransformOptions
from tests.train_distributed.simulation.test_select import PROMISE, blobs
from train_distributed.commands.configuration import RunConfig
from train_distributed.commands.run import Run
from train_distributed.commands.select import Select
from train_distributed.simulation.plan import NEAR, Choice, Result, place
from train_distributed.simulation.rehearsal import Candidates, Sizes
from train_distributed.simulation.tournament import Tournament

OTHERS = (3, 90)


def kept(candidates: Candidates) -> dict[str, set]:
    return {
        kind: {s.options.get("keep") for s in candidates.settings if s.transform.endswith(kind)}
        for kind in ("principal", "mixed", "hedge", "discriminant")
    }


def test_a_hedge_keeps_what_the_rule_says_where_pictures_are_of_another_kind() -> None:
    found = Candidates.default(512, centre="private", others=OTHERS)
    numbers = {(q, *OTHERS) for q in (64, 128, 256, 512)}
    assert kept(found) == {
        "principal": {None},
        "mixed": set(),
        "hedge": numbers,
        "discriminant": {None},
    }
    widths = {n: o.components for n, o in found.transforms.items() if n.endswith("hedge")}
    assert widths == {f"q={q} hedge": max(q, 90) for q in (64, 128, 256, 512)}
    for plain in (
        Candidates.default(512, centre="private"),
        Candidates.default(512, centre="public", others=OTHERS),
    ):
        assert set().union(*kept(plain).values()) == {None} == kept(plain)["mixed"]
        assert plain.transforms["q=64 hedge"].components == 64


def test_hedges_with_discriminants_are_of_one_transform() -> None:
    found = Candidates.default(640, centre="private", others=(3, 100), discriminants=100)
    assert kept(found)["hedge"] == {(q, 3, 100) for q in (64, 128, 256, 512)}
    hedges = {n: o for n, o in found.transforms.items() if o.directions == "hedge"}
    assert hedges == {"q=512 hedge": TransformOptions(512, "hedge", discriminants=100)}
    assert {s.transform for s in found.settings} == found.transforms.keys()
    narrow = Candidates.default(200, centre="private", others=(3, 100), discriminants=100)
    assert narrow.transforms["q=200 hedge"].components == 200


def test_where_classes_are_known_directions_beyond_the_first_are_faint() -> None:
    known, plain = Candidates.default(512, leading=20), Candidates.default(512)
    assert known.transforms.keys() == {*plain.transforms, "by rule"}
    for name, options in known.transforms.items():
        q = 20 if name == "by rule" else plain.transforms[name].components or 512
        expected = (256, q) if q < 256 else (q, None)
        assert (options.components, options.leading) == expected
    more = {s.transform for s in known.settings if "alpha" in s.options}
    assert more == {s.transform for s in plain.settings if "alpha" in s.options}


@pytest.mark.parametrize(("behind", "first"), [(NEAR / 2, "hedge"), (2 * NEAR, "principal")])
def test_of_near_ties_on_public_tasks_the_one_that_suits_other_kinds_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, behind: float, first: str
) -> None:
    def played(self: Tournament, tasks: int, done: object) -> tuple[Candidates, list[Choice]]:
        by_kind = {s.transform.split()[-1]: s for s in self.candidates.settings}
        best = [Choice(by_kind["principal"], 0.6), Choice(by_kind["hedge"], 0.6 - behind)]
        return self.candidates, best

    monkeypatch.setattr(Tournament, "_after", played)
    blobs(400, 8, 0).save(tmp_path / "public")
    select = Select(tmp_path / "public", 10, 16, 4, PROMISE, out=tmp_path / "chosen")
    select.run()
    chosen = RunConfig.read(tmp_path / "chosen" / "configuration.json")
    assert chosen.transform_options.directions == first
    assert ("keep" in chosen.options) == (first == "hedge")
    report = json.loads((tmp_path / "chosen" / "report.json").read_text())
    assert report["candidates"][0]["transform"].endswith(first)
    like = replace(select, like=tmp_path / "public", out=tmp_path / "like")
    like.run()
    alike = RunConfig.read(tmp_path / "like" / "configuration.json")
    assert alike.transform_options.directions == "principal"
    assert "keep" not in alike.options


def test_run_keeps_what_select_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ranked(self: Tournament, done: object) -> list[Choice]:
        return [Choice(s, 0.5) for s in self.candidates.settings if "keep" in s.options]

    monkeypatch.setattr(Tournament, "ranked", ranked)
    monkeypatch.setattr(Sizes, "kept_of_others", lambda self, privacy, width: (2, 5))
    blobs(400, 8, 0).save(tmp_path / "public")
    blobs(200, 4, 1).save(tmp_path / "private")
    Select(tmp_path / "public", 10, 16, 4, PROMISE, out=tmp_path / "chosen").run()
    config = tmp_path / "chosen" / "configuration.json"
    known = {"config": config, "privacy": PROMISE, "public": tmp_path / "public"}
    Run(tmp_path / "private", scheme="iid", users=10, seed=0, out=tmp_path / "out", **known).run()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["configuration"]["options"]["keep"] == [12, 2, 5]
    assert report.get("directions_kept") in (None, 2, 5)
    assert "common_share" in report


def test_results_of_a_file_are_those_of_their_candidate() -> None:
    setting = next(s for s in Candidates.default(512, centre="private", others=OTHERS).settings)
    keeping = replace(setting, options={**setting.options, "keep": (64, *OTHERS)})
    result = Result(
        *("", setting.method, "", 1.0, 0, 0.5),
        options=keeping.options,
        transform=setting.transform,
    )
    again = Result(**json.loads(json.dumps(result.as_dict())))
    assert place(again) == place(result) == place(keeping) != place(setting)
