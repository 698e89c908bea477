"""A federation of three users in folders of their own, made by the commands themselves."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from tests.train_distributed.federation.folders.engine import Engine
from tests.train_distributed.federation.folders.tasks import agreed_task, with_config
from train_distributed.commands.federation import Init, Join
from train_distributed.federation.model_task import ModelTask
from train_distributed.privacy.promise import Privacy

ROWS, P, CLASSES = 12, 6, ("a", "b", "c")
OWN = ("127.0.0.1",)  # names of the services


def embeddings(seed: int, rows: int = ROWS) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    return EmbeddingSet(
        embeddings=draw.normal(size=(rows, P)).astype(np.float32),
        labels=draw.integers(0, len(CLASSES), rows),
        split=np.zeros(rows, np.int8),
        meta={"class_names": list(CLASSES)},
    )


@pytest.fixture
def joined(tmp_path: Path) -> Callable[..., list[Path]]:
    """Makes folders user0, user1, ... and server1, ... with keys; returns the party files."""

    def make(users: int = 3, servers: int = 0, hosts: tuple[str, ...] = OWN) -> list[Path]:
        files = []
        for i in range(users):
            embeddings(i).save(tmp_path / f"user{i}" / "embeddings")
            Join(tmp_path / f"user{i}", f"hospital-{i}", rows=ROWS).run()
            files.append(tmp_path / f"user{i}" / f"hospital-{i}.party.json")
        for j in range(1, servers + 1):
            Join(tmp_path / f"server{j}", f"adder-{j}", server=True, hosts=hosts).run()
            files.append(tmp_path / f"server{j}" / f"adder-{j}.party.json")
        transform = PublicTransform.fit(embeddings(99, 50))
        transform.save(tmp_path / "public.safetensors")
        return files

    return make


@pytest.fixture
def initiated(tmp_path: Path, joined: Callable[..., list[Path]]) -> Callable[..., Path]:
    """Makes the operator's folder, `fed`; returns the folder that holds all the others."""

    def make(users: int = 3, servers: int = 0, **settings: Any) -> Path:
        fixed: dict[str, Any] = {
            "folder": tmp_path / "fed",
            "transform": tmp_path / "public.safetensors",
            "hosts": OWN,
            "class_names": CLASSES,
            "protocol": ("secagg", "shares")[servers],
            "privacy": Privacy(5.0, 1e-5, None if servers else 0.8),
            "minimum": users,
        }
        settings = with_config(tmp_path / "config.json", fixed | settings)
        hosts = () if settings.get("behind_proxy") else OWN
        Init(parties=tuple(joined(users, servers, hosts)), **settings).run()
        return tmp_path

    return make


@pytest.fixture
def knowing(tmp_path: Path) -> Path:
    """A public transform that has a guess of the classes, by their names."""
    plain = PublicTransform.fit(embeddings(99, 50))
    means = torch.zeros(P, len(CLASSES), dtype=torch.float64)
    guess = ClassGuess("names of 200 public classes", means, plain.public.covariance)
    path = tmp_path / "knowing.safetensors"
    replace(plain, known=KnownClasses(CLASSES, (guess,))).save(path)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A public transform of rows that lie elsewhere."""
    path = tmp_path / "elsewhere.safetensors"
    plain = PublicTransform.fit(embeddings(99, 50))
    replace(plain, mean=plain.mean + 2).save(path)
    return path


@pytest.fixture
def make(initiated: Callable[..., Path]) -> Callable[..., ModelTask]:
    """Makes a task of four users, see `tasks.py`."""
    return partial(agreed_task, initiated)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)
