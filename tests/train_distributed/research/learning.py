"""One call for a model by any method, with the settings of a request and of a method together."""

from dataclasses import fields
from typing import Any

from embed import EmbeddingSet
from train_distributed import Privacy, Release
from train_distributed.one_shot.release import ReleaseRequest
from train_distributed.research.baselines.learn import run_method

SETTINGS = {field.name for field in fields(ReleaseRequest)}


def learn(rows: EmbeddingSet, method: str, privacy: Privacy, **given: Any) -> Release:
    """Settings that a request does not know are options of the method."""
    options = {name: value for name, value in given.items() if name not in SETTINGS}
    settings = {name: value for name, value in given.items() if name in SETTINGS}
    request = ReleaseRequest(
        embeddings=rows, method=method, privacy=privacy, options=options, **settings
    )
    return run_method(request)
