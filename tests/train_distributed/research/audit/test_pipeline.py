"""Neighbours through whole commands: nothing else changes, and planted faults are found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embed import engines
from embed.engines import trial_pictures
from pretrain.datasets import ImageSet
from pretrain.encoder import save_encoder
from pretrain.resnet import ResNetConfig, SmallResNet
from tests.train_distributed.research.audit import neighbours
from tests.train_distributed.research.audit.neighbours import SOURCES, PipelineAudit, Record

CLASSES = ("cat", "dog", "owl")
KINDS = 8
FEW = ("another picture", "another class", "all black")


@pytest.fixture
def records() -> list[Record]:
    pixels = trial_pictures(17, 40, 32).permute(0, 2, 3, 1).numpy()
    images = ImageSet(
        name="set",
        labels=np.arange(17) % 3,
        split=np.zeros(17, np.uint8),
        class_names=CLASSES,
        read=lambda rows: pixels[rows],
    )
    return neighbours.records_of(images, 17)


@pytest.fixture
def pipeline(tmp_path: Path, records: list[Record]) -> PipelineAudit:
    """With an encoder of 128 numbers: products of fewer do not show where a row was."""
    network = SmallResNet(ResNetConfig((8, 128), (1, 1)), torch.Generator().manual_seed(0))
    save_encoder(network, tmp_path / "encoder.safetensors")
    (tmp_path / "made").mkdir()
    encoder = {"encoder": str(tmp_path / "encoder.safetensors")}
    return PipelineAudit(records, CLASSES, tmp_path / "made", encoder)


@pytest.mark.parametrize("source", SOURCES)
def test_one_record_changes_no_other_row_of_any_source(source, pipeline) -> None:
    found = list(neighbours.of_rows(pipeline, source, source, batch_size=5))
    assert len(found) == KINDS - (source in neighbours.ARRAYS)
    assert not [check.found for check in found if check.broken]
    assert max(check.moved for check in found) == 1


@pytest.mark.parametrize(
    "fault",
    [
        lambda forward, batch: lambda pixels: forward(pixels) + len(pixels) * 2.0**-20,
        lambda forward, batch: lambda pixels: forward(pixels) - 1e-3 * forward(pixels).mean(0),
    ],
)
def test_faults_on_the_way_to_the_rows_are_found(fault, pipeline, monkeypatch) -> None:
    """Rows that show how many others are in their batch, and rows less the mean of their batch."""
    monkeypatch.setattr(engines, "filled_up", fault)
    found = list(neighbours.of_rows(pipeline, "class folders", "", batch_size=16))
    assert any(check.broken for check in found)
    assert "BROKEN by" in neighbours.as_text(found)


def test_a_draw_by_places_is_found(pipeline: PipelineAudit) -> None:
    first = pipeline.embedded("class folders", pipeline.records)
    changed = dict(neighbours.replacements(pipeline.records, 0, CLASSES))["another class"]
    second = pipeline.embedded("class folders", [changed, *pipeline.records[1:]])
    right, wrong = (first, neighbours.aligned(first, second)), (first, second)
    assert not any(check.broken for check in neighbours.of_draws(right, ""))
    # one draw in some dozens takes the same rows at the places that moved
    assert any(check.broken for _ in range(10) for check in neighbours.of_draws(wrong, ""))


@pytest.fixture
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kinds of records."""
    every = neighbours.replacements

    def some(*given) -> list[tuple[str, Record]]:
        return [each for each in every(*given) if each[0] in FEW]

    monkeypatch.setattr(neighbours, "replacements", some)


@pytest.mark.usefixtures("few_kinds")
def test_sums_and_reports_hold_for_every_method(pipeline: PipelineAudit) -> None:
    found = list(neighbours.checks(pipeline, (), ()))
    assert not [check for check in found if check.broken]
    commands = {"embed hold-out", "embed exclude", "run", "evaluate"}
    assert {check.command for check in found} == commands
    of_sums = [check.moved for check in found if check.command == "run"]
    assert len(of_sums) == 2 * len(FEW) * (len(neighbours.METHODS) + 1)
    assert max(of_sums) > 0.8  # the bound is not idle


@pytest.mark.usefixtures("few_kinds")
def test_a_sensitivity_of_half_is_found(pipeline, monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "METHODS", (("discriminant", {"sums": 1}),))
    monkeypatch.setattr("heads.statistics._farthest", lambda *_: 1.0)
    found = [check for check in neighbours.checks(pipeline, (), ()) if check.command == "run"]
    assert any(check.broken for check in found)


@pytest.mark.slow
def test_the_whole_pipeline(pipeline: PipelineAudit) -> None:
    """Every source, engine, draw, method and report, with the encoder that is shipped."""
    shipped = replace(pipeline, encoder={"encoder": "simclr-small"})
    found = list(neighbours.checks(shipped))
    assert not [check for check in found if check.broken]
    computed = {f"{engine}, {compute}" for engine, compute in neighbours.COMPUTED}
    assert {check.where for check in found if check.command == "embed run"} == {*SOURCES, *computed}
