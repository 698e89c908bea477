"""Embedding sets and transforms, in every command that takes some."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embed import EmbeddingSet
from tests.train_distributed.commands.bad_inputs.case import (
    DEEP,
    Spoil,
    as_folder,
    cut,
    gone,
    put,
    table,
)

RUN = "run --embeddings private --public public"
FITTED = "run --embeddings private --public"
REHEARSE = "rehearse --users 4 --rows-per-user 12 --num-classes 2 --public"
SWEEP = "sweep frontier --seeds 1 --users 4 --public public --embeddings"
NAN_ROW = r"must be finite, got nan in row 7 of {}/embeddings\.npy"


def meta(name: str, **changes: Any) -> Spoil:
    """Changes fields of a set's meta.json."""

    def spoil(folder: Path) -> None:
        path = folder / name / "meta.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def array(name: str, values: Any) -> Spoil:
    """Puts an array in the place of a file."""
    return lambda folder: np.save(folder / name, values)


def one_user_everywhere(folder: Path) -> None:
    """All rows of every split are the same user's."""
    private = EmbeddingSet.open(folder / "private")
    replace(private, users=np.zeros(len(private), np.int64)).save(
        folder / "private", overwrite=True
    )


CASES = table(
    (
        "run --embeddings nowhere --public public",
        r"embeddings must be an existing directory, got nowhere",
    ),
    ("run --embeddings table.csv --public public", r"existing directory, got table\.csv"),
    (RUN, r"private/embeddings\.npy must be a complete npy", gone("private/embeddings.npy")),
    (RUN, r"private/embeddings\.npy must be a complete npy", cut("private/embeddings.npy")),
    (RUN, r"private/labels\.npy must be a complete npy file", cut("private/labels.npy", 0)),
    (RUN, r"private/embeddings\.npy must be", as_folder("private/embeddings.npy")),
    (RUN, r"private/meta\.json must be a readable JSON", put("private/meta.json", "{")),
    (RUN, r"private/meta\.json must be a readable JSON", put("private/meta.json", DEEP)),
    (RUN, r"private/meta\.json must be a JSON object", put("private/meta.json", "[]")),
    (RUN, r"private/meta\.json must be a readable JSON", put("private/meta.json", b"\xff\xfe\0")),
    (RUN, r"labels must be 96 integers, got", array("private/labels.npy", np.zeros(5, int))),
    (
        RUN,
        r"embeddings must be a float \(N, p\), got",
        array("private/embeddings.npy", np.zeros((96, 6), int)),
    ),
    (RUN, r"embeddings\.npy must be", array("private/embeddings.npy", np.array([{}]))),
    (
        RUN,
        r"class_names must be a list of distinct names, got",
        meta("private", class_names=["a", "a", "b"]),
    ),
    *(
        (RUN, r"class_names must be a list of distinct names", meta("private", class_names=names))
        for names in (5, None, {"a": 1})
    ),
    (RUN, r"labels must be < 2 class names, got 2", meta("private", class_names=["a", "b"])),
    (RUN, r"users must be >= 0, got -1", array("private/users.npy", np.arange(96) - 1)),
    (RUN, r"split must be 0, 1 or 2, got", array("private/split.npy", np.full(96, 7, np.uint8))),
    (
        "run --embeddings private --public foreign",
        r"public and embeddings must be embedded by one encoder, got .*network.*other|one encoder",
    ),
    ("run --embeddings private --public cropped", r"must be .*preprocess.*|one encoder"),
    (f"{FITTED} foreign_transform.safetensors", r"one encoder, got"),
    ("run --embeddings private --public narrow", r"transform must be of 6 columns, got one of 3"),
    (
        f"{FITTED} transform.safetensors",
        r"transform\.safetensors must .*got",
        cut("transform.safetensors"),
    ),
    (f"{FITTED} transform.safetensors", r"transform\.safetensors", cut("transform.safetensors", 0)),
    (
        f"{FITTED} transform.safetensors --examples public",
        r"must be left out with public a transform",
    ),
    ("run --embeddings private --public nowhere", r"embeddings must be an existing directory"),
    (f"{FITTED} nowhere.safetensors", r"nowhere\.safetensors"),
    (f"{FITTED} model/model.safetensors", r"model\.safetensors: transform must hold .* got"),
    ("run --embeddings private --public private", r"public must be another set"),
    ("run --embeddings private", r"--public"),
    ("run --embeddings nan --public public", NAN_ROW.format("nan")),
    ("run --embeddings private --public public_nan", NAN_ROW.format("public_nan")),
    ("run --embeddings nobody --public public", r"users must be named .* got none for nobody"),
    (
        "run --embeddings unlabelled --public public",
        r"embeddings must have labels to learn from, got unlabelled",
    ),
    *(
        (f"{how} --embeddings unlabelled --public public", r"must have labels")
        for how in ("rival amp", "rival admm-dual", "simulate --scheme one-class")
    ),
    (f"{REHEARSE} public_nan", NAN_ROW.format("public_nan")),
    (
        f"{REHEARSE} public_unlabelled",
        r"public must have labels to learn from, got public_unlabelled",
    ),
    (f"{REHEARSE} nowhere", r"must be an existing directory, got nowhere"),
    (f"{REHEARSE} public --like nowhere", r"must be an existing directory, got nowhere"),
    (f"{REHEARSE} public --like foreign", r"must be embedded by one encoder"),
    (f"{REHEARSE} public --like narrow", r"like must have 6 columns as public, got 3"),
    (f"{REHEARSE} public --like public_unlabelled", r"like must have labels to learn from"),
    (f"{SWEEP} nan", NAN_ROW.format("nan")),
    (f"{SWEEP} unlabelled", r"embeddings must have labels"),
    (f"{SWEEP} private --public narrow", r"public must have 6 columns as embeddings, got 3"),
    (f"{SWEEP} private --epsilons -1", r"epsilon must be > 0, got -1"),
    ("sweep frontier --seeds 1 --users 4 --public foreign --embeddings private", r"one encoder"),
    (f"{SWEEP} train_only", r"must .* got"),
)
