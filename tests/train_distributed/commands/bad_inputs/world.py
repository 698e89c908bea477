"""A folder as a user's would be: pictures, embedding sets, transforms, models, ledgers; all tiny.

A case of the tables that spoils something gets a copy of its own.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.run import Run as EmbedRun
from tests.train_distributed.ledger.ledger_entries import STATED
from tests.train_distributed.sized_pictures import tiny_encoder
from train_distributed import Privacy, release
from train_distributed.ledger.ledger import Ledger, Limit

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 50), "red": (220, 30, 20)}
SIZE = 8


def make(root: Path) -> None:
    for seed, name in enumerate(("network", "other")):
        tiny_encoder(root / f"{name}.safetensors", seed)
    _pictures(root)
    rng = np.random.default_rng(0)
    _npz(root / "private.npz", rng, users=True)
    _npz(root / "public.npz", rng, users=False)
    for name, data, encoder in (
        ("private", "private", "network.safetensors"),
        ("public", "public", "network.safetensors"),
        ("foreign", "public", "other.safetensors"),
        ("cropped", "public", "network.safetensors@crop=0.75"),
    ):
        EmbedRun(data=str(root / f"{data}.npz"), encoder=str(root / encoder), out=root / name).run()
    _sets(root)
    _models(root)
    _ledgers(root)


def draw(folder: Path, rows: int, seed: int) -> list[np.ndarray]:
    """Noisy pictures, each class of one colour, in turns: FOLDER/CLASS/NUMBER.png; their pixels."""
    rng, pixels = np.random.default_rng(seed), []
    for row in range(rows):
        name, colour = list(COLOURS.items())[row % len(COLOURS)]
        (folder / name).mkdir(parents=True, exist_ok=True)
        noisy = rng.normal(colour, 40, (SIZE, SIZE, 3))
        pixels.append(np.clip(noisy, 0, 255).astype(np.uint8))
        Image.fromarray(pixels[-1]).save(folder / name / f"{row // len(COLOURS)}.png")
    return pixels


def _pictures(root: Path) -> None:
    draw(root / "pictures", 9, 3)
    lines = [
        f"pictures/{name}/{k}.png,{name},user{k},{'test' if k == 2 else 'train'}"
        for name in COLOURS
        for k in range(3)
    ]
    (root / "table.csv").write_text("\n".join(["path,label,user,split", *lines]) + "\n")


def _npz(path: Path, rng: np.random.Generator, *, users: bool) -> None:
    arrays = {"names": np.array(list(COLOURS))}
    for part, rows in (("train", 48), ("test", 24), ("evaluation", 24)):
        labels = np.arange(rows) % len(COLOURS)
        means = np.array(list(COLOURS.values()))[labels, None, None]
        pixels = rng.normal(means, 40, (rows, SIZE, SIZE, 3))
        arrays |= {f"x_{part}": np.clip(pixels, 0, 255).astype(np.uint8), f"y_{part}": labels}
        if users:
            first = 100 if part == "test" else 0
            arrays[f"writer_{part}"] = first + np.arange(rows) // 3 % 4
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]


def _sets(root: Path) -> None:
    private, public = EmbeddingSet.open(root / "private"), EmbeddingSet.open(root / "public")
    replace(private, users=None).save(root / "nobody")
    replace(private, labels=np.full(len(private), -1)).save(root / "unlabelled")
    replace(public, labels=np.full(len(public), -1)).save(root / "public_unlabelled")
    meta = {"class_names": list(COLOURS)}
    narrow = np.ascontiguousarray(public.embeddings[:, :3])
    EmbeddingSet(embeddings=narrow, labels=public.labels, meta=meta).save(root / "narrow")
    private.subset(private.split == 0).save(root / "train_only")
    for name, source in (("nan", private), ("public_nan", public)):
        rows = np.array(source.embeddings)
        rows[[7, -1], 1] = np.nan
        rest = {k: v for k, v in source.meta.items() if k != "content_hash"}
        pictures = np.array([f"{k}.png" for k in range(len(rows))])
        replace(source, embeddings=rows, names=pictures, meta=rest).save(root / name)


def _models(root: Path) -> None:
    for name, source in (("foreign_transform", "foreign"), ("transform", "public")):
        transform = PublicTransform.fit(EmbeddingSet.open(root / source), components=4)
        transform.save(root / f"{name}.safetensors")
    private, promise = EmbeddingSet.open(root / "private"), Privacy(50.0, 1e-5)
    model = release(private, "discriminant", promise, transform=transform, sums=1)
    model.save(root / "model")
    shutil.copytree(root / "model", root / "bare")  # without its encoder
    shutil.copy(root / "network.safetensors", root / "model" / "encoder.safetensors")
    shutil.copytree(root / "model", root / "old")  # what a command must not lose


def _ledgers(root: Path) -> None:
    ledger = Ledger(root / "spent.ledger")
    for result in ("one", "two"):
        kept = ledger.reserve(replace(STATED, epsilon=1.0, delta=1e-5, result=result))
    ledger.spend(kept)
    Ledger(root / "limited.ledger").limit(Limit(epsilon=0.01, delta=1e-5))
    lines = ledger.path.read_bytes().replace(b'"one"', b'"own"')
    (root / "broken").mkdir()  # a ledger's neighbours are read as well
    (root / "broken" / "broken.ledger").write_bytes(lines)
    (root / "report.json").write_text(json.dumps({"ledger": {"entry": "0" * 16}}))


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder: mode and content by path; of directories and links what they are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = b""
        if path.is_symlink():
            content = str(path.readlink()).encode()
        elif path.is_file():
            content = path.read_bytes()
        found[path.relative_to(folder).as_posix()] = (path.lstat().st_mode, content)
    return found
