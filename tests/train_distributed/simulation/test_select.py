"""`select` reads public data only; `run` takes its file, for the same promise and public set."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from embed.compress import Compression
from embed.knowledge import Knowledge
from embed.transform_options import TransformOptions
from train_distributed.commands.configuration import RunConfig
from train_distributed.commands.run import Run
from train_distributed.commands.select import Select
from train_distributed.one_shot.defaults import HEAVY
from train_distributed.one_shot.method_options import MethodOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.checkpoint import Checkpoint
from train_distributed.simulation.plan import (
    NEAR,
    TIE,
    Choice,
    MethodConfig,
    Result,
    by_regret,
    ranking,
)
from train_distributed.simulation.rehearsal import FEW, Candidates, Sizes
from train_distributed.simulation.tasks import balanced_groups, pose_task
from train_distributed.simulation.tournament import Tournament

PROMISE = Privacy(2.0, 1e-5, 0.5)


def blobs(rows: int, classes: int, seed: int) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    x = 2 * np.eye(classes, 12)[labels] + 0.3 * rng.standard_normal((rows, 12))
    split = (np.arange(rows) % 5 == 0).astype(np.uint8)
    meta = {"class_names": [str(k) for k in range(classes)]}
    return EmbeddingSet(embeddings=x.astype(np.float32), labels=labels, split=split, meta=meta)


@pytest.fixture
def public(tmp_path) -> Path:
    blobs(400, 8, 0).save(tmp_path / "public")
    return tmp_path / "public"


@pytest.fixture
def chosen(public, tmp_path, capsys) -> Path:
    Select(public, 10, 16, 4, PROMISE, tasks=1, seeds=1, out=tmp_path / "chosen").run()
    return tmp_path / "chosen" / "configuration.json"


def report_of_run(folder: Path, public: Path, config: Path, promise: Privacy) -> dict:
    known = {"config": config, "privacy": promise, "public": public, "out": folder / "out"}
    Run(folder / "private", scheme="iid", users=10, seed=0, **known).run()
    return json.loads((folder / "out/report.json").read_text())


def test_run_takes_the_chosen_file(public, chosen, tmp_path, capsys):
    blobs(200, 4, 1).save(tmp_path / "private")
    report = report_of_run(tmp_path, public, chosen, PROMISE)
    written = json.loads(chosen.read_text())
    for name in ("method", "transform_options", "options"):
        assert report["configuration"][name] == written[name]
    assert report["epsilon"] == written["privacy"]["epsilon"] == 2.0
    best = json.loads((chosen.parent / "report.json").read_text())["candidates"]
    assert best[0]["method"] == written["method"]
    assert best[0]["accuracy"] > max(c["accuracy"] for c in best) - NEAR
    assert 1 <= len(best) <= 36


def test_run_refuses_a_file_for_another_promise_public_set_or_beside_options(
    public, chosen, tmp_path
):
    blobs(200, 4, 1).save(tmp_path / "private")
    blobs(100, 4, 2).save(tmp_path / "other")
    run = Run(tmp_path / "private", config=chosen, privacy=PROMISE, public=public, seed=0, users=1)
    with pytest.raises(ValueError, match="privacy must be what config was chosen for"):
        replace(run, privacy=replace(PROMISE, epsilon=3.0)).run()
    with pytest.raises(ValueError, match="public must be the set config was chosen on"):
        replace(run, public=tmp_path / "other").run()
    with pytest.raises(ValueError, match="method must be left out with config, got svm"):
        replace(run, method="svm").run()
    with pytest.raises(ValueError, match="options of method and transform must be left out"):
        replace(run, options=MethodOptions(l2_reg=1.0)).run()
    with pytest.raises(ValueError, match="options of method and transform must be left out"):
        replace(run, transform_options=TransformOptions(components=3)).run()
    chosen.write_text(chosen.read_text().replace("transform_options", "transform"))
    with pytest.raises(ValueError, match="config must be what select wrote"):
        run.run()


def test_an_infinite_epsilon_survives_the_file(tmp_path):
    before = RunConfig(
        "svm", TransformOptions(components=3), {"l2_reg": 0.1}, Privacy(np.inf, 1e-5)
    )
    (tmp_path / "c.json").write_text(before.text())
    assert RunConfig.read(tmp_path / "c.json") == before


def test_select_refuses_too_few_public_classes_and_empty_federations(public):
    with pytest.raises(ValueError, match="public must hold at least num_classes = 9 classes"):
        Select(public, 10, 16, 9, PROMISE).run()
    with pytest.raises(ValueError, match="users must be >= 1, got 0"):
        Select(public, 0, 16, 4, PROMISE).run()


def test_the_rehearsed_noise_is_that_of_the_whole_federation():
    scenario = Sizes(users=1000, rows_per_user=50, num_classes=10).stand_in(2020)
    assert (scenario.users, scenario.rows_per_user, scenario.stands_for) == (40, 50, (1000, 50))
    few = Sizes(users=1, rows_per_user=50_000, num_classes=10).stand_in(2020)
    assert (few.users, few.rows_per_user, few.stands_for) == (1, 2020, (1, 50_000))
    enough = Sizes(users=3, rows_per_user=5, num_classes=10).stand_in(2020)
    assert (enough.users, enough.rows_per_user) == (3, 5)


def test_similar_classes_are_grouped_and_most_are_left_for_the_transform():
    centres = np.array([[0.0, 0], [10, 0], [0, 10]])
    rng = np.random.default_rng(0)
    means = np.concatenate([centres + rng.normal(0, 0.1, (3, 2)) for _ in range(4)])
    found = balanced_groups(means, 3, 4, np.random.default_rng(1))
    for k in range(3):
        assert len(set(found[k::3])) == 1
    assert set(found) == {0, 1, 2}
    posed = pose_task(blobs(400, 16, 0), 2, np.random.default_rng(0))
    assert sorted(posed) == [-1] * 12 + [0, 0, 1, 1]
    few = pose_task(blobs(400, 8, 0), 4, np.random.default_rng(0))
    assert sorted(few) == [-1] * 4 + [0, 1, 2, 3]
    one_each = pose_task(blobs(400, 8, 0), 8, np.random.default_rng(0))
    assert sorted(one_each) == list(range(8))


def test_of_new_classes_as_many_are_left_as_are_asked():
    """As many rows of each class: so the task is as hard as the run's, class by class."""
    sizes = Sizes(users=100, rows_per_user=50, num_classes=100)
    assert sizes.of_new_classes(100) == replace(sizes, num_classes=50, rows_per_user=25)
    assert sizes.of_new_classes(250) == sizes
    assert sizes.of_new_classes(2).num_classes == 2  # there is no smaller task


def test_select_for_new_classes_fits_transforms_on_classes_that_no_task_asks(
    public, tmp_path, monkeypatch
):
    """As many public classes as private ones: tasks have half of them, transforms the others."""
    fitted, fit = [], Compression.fit_transform

    def seen(compression, rows, **options):
        fitted.append(set(np.unique(rows.labels).tolist()))
        return fit(compression, rows, **options)

    monkeypatch.setattr(Compression, "fit_transform", seen)
    given = {"public": public, "users": 10, "rows_per_user": 8, "num_classes": 8, "tasks": 1}
    Select(**given, out=tmp_path / "known").run()
    assert max(map(len, fitted)) == 8
    fitted.clear()
    Select(**given, new_classes=True, out=tmp_path / "new").run()
    assert max(map(len, fitted)) == 4
    shares = tmp_path / "balance.json"
    shares.write_text(json.dumps({str(number): 1 / 8 for number in range(8)}))
    with pytest.raises(ValueError, match="balance must be left out where new_classes"):
        Select(**given, new_classes=True, balance=shares, out=tmp_path / "told").run()


def test_ranking_takes_the_best_mean_per_epsilon():
    cells = [
        Result(name, "svm", "iid", epsilon, seed, value, {"l2_reg": float(len(name))}, "t")
        for name, epsilon, values in (("a", 1.0, (0.2, 0.9)), ("bb", 1.0, (0.6, 0.6)))
        for seed, value in enumerate(values)
    ]
    (best,) = ranking(cells).values()
    assert [choice.setting.label for choice in best] == ["bb", "a"]
    assert best[1].accuracy == pytest.approx(0.55)


def test_candidates_name_only_transforms_that_exist():
    candidates = Candidates.default(1280)
    assert {setting.transform for setting in candidates.settings} == set(candidates.transforms)
    assert len(candidates.settings) <= 28
    assert {o.components for o in Candidates.default(40).transforms.values()} == {40}
    more = Candidates.default(1280, rounds=8).settings
    assert len(more) <= 36
    assert {s.options.get("rounds") for s in more} == {None, 8}
    weighed = Candidates.default(1280, rounds=8, moment_weight=0.8).settings
    assert len(weighed) == len(more)
    assert {(s.options.get("rounds"), s.options.get("alpha")) for s in weighed} == {
        (None, 0.8),
        (None, HEAVY),
        (8, None),
    }
    heaviest = Candidates.default(1280, moment_weight=HEAVY).settings
    assert len(heaviest) == len({s.transform for s in heaviest})


def test_a_users_clip_is_chosen_where_users_are_protected(public, tmp_path, monkeypatch, capsys):
    """It stands in the file that `run` takes, and its noise is that of the clip."""
    few = Candidates.default(12)
    few = Candidates(few.settings[:3], few.transforms)
    monkeypatch.setattr(Candidates, "default", lambda *args, **more: few)
    promise = replace(PROMISE, unit="user")
    Select(public, 10, 16, 4, promise, tasks=1, seeds=1, out=tmp_path / "chosen").run()
    config = tmp_path / "chosen" / "configuration.json"
    written = json.loads(config.read_text())
    clip = written["options"]["user_clip"]
    assert 0 < clip < 16
    assert written["privacy"]["unit"] == "user"
    offered = json.loads((tmp_path / "chosen" / "report.json").read_text())["candidates"]
    assert all("user_clip" in candidate["options"] for candidate in offered)
    blobs(200, 4, 1).save(tmp_path / "private")
    report = report_of_run(tmp_path, public, config, promise)
    assert report["user_clip"] == clip
    assert report["sensitivity"] == pytest.approx(2 * clip, rel=1e-9)


def test_rounds_out_of_range_or_beside_users_clips_are_refused(public):
    with pytest.raises(ValueError, match=r"rounds must be in \[0, 1000\], got -1"):
        Select(public, 10, 16, 4, PROMISE, rounds=-1).run()
    with pytest.raises(ValueError, match="rounds must be 0 where users are clipped, got 2"):
        Select(public, 10, 16, 4, replace(PROMISE, unit="user"), rounds=2).run()


@pytest.mark.parametrize(("lead", "first"), [(0.5 * TIE, 1.0), (2 * TIE, None)])
def test_heavier_moments_win_a_near_tie_of_the_same_rows_only(lead, first):
    def cell(transform: str, accuracy: float, alpha: float | None) -> Result:
        options = {} if alpha is None else {"alpha": alpha}
        return Result("d", "discriminant", "iid", 1.0, 0, accuracy, options, transform)

    cells = [cell("t", 0.6, None), cell("t", 0.6 - lead, 1.0), cell("other", 0.6 - lead / 9, 1.0)]
    (best,) = ranking(cells).values()
    assert (best[0].setting.transform, best[0].setting.options.get("alpha")) == ("t", first)
    assert len(best) == 3


def test_the_set_that_is_like_the_private_one_is_played_on(public, tmp_path, capsys):
    """Classes of the public set lie along other directions; transforms are the public set's."""
    other = blobs(300, 6, 5)
    turned = np.roll(other.embeddings, 3, axis=1)
    like = EmbeddingSet(embeddings=turned, labels=other.labels, split=other.split, meta=other.meta)
    like.save(tmp_path / "like")
    select = Select(public, 10, 16, 4, PROMISE, like=tmp_path / "like", tasks=2, seeds=1)
    replace(select, out=tmp_path / "out").run()
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["played_on"] == ["like"]
    assert report["played_hashes"] == {"like": like.content_hash()}
    assert "on tasks of like" in capsys.readouterr().out
    assert RunConfig.read(tmp_path / "out/configuration.json").public_hash == report["public_hash"]
    with pytest.raises(ValueError, match="like must hold at least num_classes = 7 classes, got 6"):
        replace(select, num_classes=7, out=tmp_path / "more").run()
    known = replace(select, knowledge=Knowledge(examples=public), out=tmp_path / "known")
    with pytest.raises(ValueError, match="like must be left out where classes are known"):
        known.run()


def test_after_each_task_the_worse_half_of_many_candidates_is_given_up():
    settings = tuple(MethodConfig("a", "discriminant", str(number)) for number in range(20))
    candidates = Candidates(settings, {str(number): TransformOptions(8) for number in range(20)})
    ranked = [Choice(setting, 0.5) for setting in reversed(settings)]
    kept = candidates.better_half(ranked)
    assert [setting.transform for setting in kept.settings] == [str(n) for n in range(10, 20)]
    assert set(kept.transforms) == {setting.transform for setting in kept.settings}
    assert len(kept.better_half(ranked[:10]).settings) == FEW
    known = {"public": blobs(40, 4, 0), "privacy": PROMISE, "candidates": candidates}
    sizes = Sizes(users=10, rows_per_user=16, num_classes=4)
    assert Tournament(sizes=sizes, tasks=3, seeds=2, **known).most == (20 + 10 + FEW) * 2


def cell(transform: str, balanced: float) -> Result:
    return Result("a", "discriminant", "iid", 1.0, 0, 0.0, {}, transform, balanced=balanced)


def test_of_several_kinds_the_largest_regret_decides():
    """The best mean is not chosen: it is far behind on one kind."""
    photographs = {"narrow": 0.9, "wide": 0.5, "between": 0.8}
    letters = {"narrow": 0.3, "wide": 0.6, "between": 0.5}
    kinds = {"public": photographs, "letters": letters}
    cells = {name: [cell(*each) for each in kind.items()] for name, kind in kinds.items()}
    best = by_regret(cells)
    assert [choice.setting.transform for choice in best] == ["between", "narrow", "wide"]
    assert [choice.regret for choice in best] == pytest.approx([0.1, 0.3, 0.4])
    assert [choice.accuracy for choice in best] == pytest.approx([0.65, 0.6, 0.55])
    (alone,) = ranking(cells["public"]).values()
    assert [c.setting for c in by_regret({"public": cells["public"]})] == [c.setting for c in alone]


def test_sets_of_other_kinds_are_played_on_too(public, tmp_path, capsys):
    """One of them has fewer classes than the run."""
    paths = []
    for classes in (6, 3):
        other = blobs(300, classes, classes)
        turned = np.roll(other.embeddings, 3, axis=1)
        paths.append(tmp_path / f"of {classes}")
        EmbeddingSet(
            embeddings=turned, labels=other.labels, split=other.split, meta=other.meta
        ).save(paths[-1])
    select = Select(public, 10, 16, 4, PROMISE, shifted=tuple(paths), tasks=2, seeds=1)
    replace(select, out=tmp_path / "out").run()
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["played_on"] == ["public", *(f"shifted {path}" for path in paths)]
    assert report["criterion"] == "largest regret"
    assert report["private_data_read"] is False
    regrets = [candidate["regret"] for candidate in report["candidates"]]
    assert regrets == sorted(regrets)
    assert f"the public set {public}, shifted {paths[0]}" in capsys.readouterr().out
    with pytest.raises(ValueError, match="shifted must be left out beside like"):
        replace(select, like=public).run()
    narrow = EmbeddingSet(embeddings=np.ones((8, 3), np.float32), labels=np.arange(8) % 4)
    narrow.save(tmp_path / "narrow")
    with pytest.raises(ValueError, match="shifted must have 12 columns as public, got 3"):
        replace(select, shifted=(tmp_path / "narrow",), out=tmp_path / "none").run()


@pytest.mark.parametrize("jobs", [1, 5])
def test_an_interrupted_choice_goes_on_where_it_was(public, tmp_path, monkeypatch, jobs):
    """It chooses as one that was not interrupted, and plays no finished job again."""
    select = Select(public, 10, 16, 4, PROMISE, tasks=2, seeds=1, out=tmp_path / "out")
    replace(select, out=tmp_path / "whole").run()
    append, played = Checkpoint.append, []

    def recorded(journal, key, rows):
        if len(played) == jobs:
            raise KeyboardInterrupt
        played.append(key)
        append(journal, key, rows)

    monkeypatch.setattr(Checkpoint, "append", recorded)
    with pytest.raises(KeyboardInterrupt):
        select.run()
    assert not (tmp_path / "out").exists()
    first, played[:] = list(played), []
    jobs = 10_000
    select.run()
    assert set(first).isdisjoint(played)
    assert not list(tmp_path.glob(".*unfinished*"))
    reports = [json.loads((tmp_path / n / "report.json").read_text()) for n in ("out", "whole")]
    assert reports[0]["candidates"] == reports[1]["candidates"]
