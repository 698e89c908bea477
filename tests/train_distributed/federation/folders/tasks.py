"""A task as four users have agreed on it, in the folders that the commands made."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from embed import EmbeddingSet
from train_distributed.commands.options import RunConfig
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.privacy.promise import Privacy

W, ROWS, K = 4, 12, 3
PROMISE = Privacy(1.0, 1e-5, 0.75)
FACTS = SessionFacts(session="5e" * 32, bytes_per_user=1234, missing={1: "masked input"})


def agreed_task(
    initiated: Callable[..., Path], method: str = "softmax", **settings: object
) -> ModelTask:
    """Read again from the operator's folder."""
    promise = replace(PROMISE, honest_fraction=None) if settings.get("servers") else PROMISE
    fixed = {"privacy": promise, "minimum": 3, "method": method} | settings
    folder = initiated(W, **fixed) / "fed"
    federation = with_roll(Federation.load(folder / "federation.json"), folder)
    return ModelTask.of(federation, folder / "transform.safetensors")


def with_config(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of `init`, with what cannot be typed, method and options, in a file at `path`.

    Of one sum, unless they say something else: what is tested of a sum holds for each of two.
    """
    settings["options"] = {"sums": 1} | settings.get("options", {})
    if settings.keys() & {"config", "model"}:
        del settings["options"]
    own = {name: settings.pop(name) for name in ("method", "options") if name in settings}
    promise = settings.pop("privacy")
    if own or promise.noise_by == "servers":
        chosen = {"method": "discriminant", "options": {}} | own
        path.write_text(RunConfig(**chosen, privacy=promise).text())
        return settings | {"config": path}
    return settings | {name: each for name, each in vars(promise).items() if name != "noise_by"}


def embeddings_of(tmp_path: Path, i: int) -> EmbeddingSet:
    return EmbeddingSet.open(tmp_path / f"user{i}" / "embeddings")
