"""Changes where one record is replaced: other rows, sums before noise, reports; of every format."""

import contextlib
import csv
import io
import json
import math
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.engines import trial_pictures
from embed.hold_out import By, random_keys, with_held_out
from embed.run import Exclude
from embed.store import columns
from embed.water_filling import Centre
from pretrain.datasets import ImageSet
from pretrain.intake.decode import decode
from pretrain.sources import EMNIST_CLASSES, EMNIST_SIDE
from tests.benchmarks.run_by import RunBy
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.release import release
from train_distributed.one_shot.request import FaultInjection
from train_distributed.privacy.promise import Privacy
from train_distributed.released.evaluate import summed

PROMISE = Privacy(1.0, 1e-5)
RESIZE = 32
LARGE = 600  # pixels of a side of the picture whose file is the largest
ARRAYS = ("npz", "leaf")  # sources that hold pixels, so that no picture of theirs is unreadable
OF_THE_SUM = ("class_prior",)  # of a report: read off the noised sum, which the promise covers
COMPUTED = (("torch", "float32"), ("torch", "bfloat16"), ("openvino", "float32"))
SGD = {"solver": "sgd", "epochs": 3, "batch_size": 4}
HEAD: dict[str, Any] = {"sums": 1, "l2_reg": 0.3}
METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("discriminant", {"sums": 1}),
    *((name, HEAD) for name in ("softmax", "svm", "logistic")),
    *((name, SGD | HEAD) for name in ("softmax", "svm")),
    ("softmax", HEAD | {"prior": "equal"}),
    ("svm", HEAD | {"radius": 0.05}),
    ("discriminant", {"user_clip": 0.5}),
)


@dataclass(frozen=True)
class Record:
    """One picture; `name` and `data` are of its file."""

    name: str
    label: str
    user: str
    data: bytes


Records = Sequence[Record]
Options = dict[str, Any]  # of `embed run`
Pair = tuple[EmbeddingSet, EmbeddingSet]  # sets that differ in one record
Writer = Callable[[Records, Path, Sequence[str]], str]  # returns --data


def records_of(images: ImageSet, count: int) -> list[Record]:
    """At most so many pictures of a labelled set, as PNG files; without users, of three users."""
    images.need_labels()
    if len(images) < 12:
        raise ValueError(f"pictures must be 12 or more, got {len(images)} in {images.name}")
    rows, found = np.unique(np.linspace(0, len(images) - 1, count).astype(np.int64)), []
    for place, row in enumerate(rows.tolist()):
        user = "abc"[place % 3]
        if images.users is not None:
            number = int(images.users[row])
            user = images.user_names[number] if images.user_names else str(number)
        data = as_png(images.images(slice(row, row + 1))[0].transpose(1, 2, 0))
        found.append(Record(f"{place:04d}", images.class_names[images.labels[row]], user, data))
    return found


def replacements(
    records: Records, place: int, classes: Sequence[str]
) -> Iterator[tuple[str, Record]]:
    """Kinds of records that may replace one: its user stays, as numbers of rows are public."""
    old, draw = records[place], np.random.default_rng(0)
    side = Image.open(io.BytesIO(old.data)).size
    noise = draw.integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
    large = draw.integers(0, 256, (LARGE, LARGE, 3), dtype=np.uint8)
    tall = np.asarray(Image.open(io.BytesIO(old.data)).convert("RGB").resize((side[0] * 2, 90)))
    other = classes[(classes.index(old.label) + 1) % len(classes)]
    yield "another picture", replace(old, data=as_png(noise))
    yield "another class", replace(old, label=other)
    yield "another name", replace(old, name="zzzz")
    yield "another size", replace(old, data=as_png(tall))
    yield "unreadable", replace(old, data=b"no picture")
    yield "a duplicate", replace(old, data=records[place - 1].data)
    yield "all black", replace(old, data=as_png(np.zeros_like(noise)))
    yield "largest file", replace(old, data=as_png(large))


def as_png(pixels: np.ndarray) -> bytes:
    """The file of an (h, w, 3) uint8 picture."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def _files(place: str) -> Writer:
    """Into files by a pattern of label, user and name."""

    def written(records: Records, folder: Path, classes: Sequence[str]) -> str:
        for record in records:
            path = folder / place.format(r=record)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(record.data)
        return str(folder)

    return written


def _csv(records: Records, folder: Path, classes: Sequence[str]) -> str:
    _files("pictures/{r.name}.png")(records, folder, classes)
    with (folder / "table.csv").open("w", newline="") as file:
        rows = [[f"pictures/{r.name}.png", r.label, r.user] for r in records]
        csv.writer(file).writerows([["path", "label", "user"], *rows])
    return f"csv:{folder / 'table.csv'}"


def _npz(records: Records, folder: Path, classes: Sequence[str]) -> str:
    pixels = np.stack([decode(record.data, record.name, size=RESIZE) for record in records])
    return _arrays(folder, records, x_train=pixels)


def _npz_files(records: Records, folder: Path, classes: Sequence[str]) -> str:
    offsets = np.cumsum([0, *(len(record.data) for record in records)])
    blob = np.frombuffer(b"".join(record.data for record in records), np.uint8)
    return _arrays(folder, records, jpeg_train=blob, off_train=offsets)


def _arrays(folder: Path, records: Records, **pictures: Any) -> str:
    labels, users = [record.label for record in records], [record.user for record in records]
    np.savez(folder / "set.npz", **pictures, y_train=labels, writer_train=users)
    return str(folder / "set.npz")


def _table(records: Records) -> dict[str, list[Any]]:
    pictures = [{"bytes": r.data, "path": f"{r.name}.png"} for r in records]
    labels, users = [r.label for r in records], [r.user for r in records]
    return {"image": pictures, "label": labels, "user": users}


def _parquet(records: Records, folder: Path, classes: Sequence[str]) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(_table(records)), folder / "set.parquet")
    return f"parquet:{folder / 'set.parquet'}"


def _hugging_face(records: Records, folder: Path, classes: Sequence[str]) -> str:
    import datasets

    kinds = {"label": datasets.Value("string"), "user": datasets.Value("string")}
    features = datasets.Features({"image": datasets.Image(), **kinds})
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict(_table(records), features=features)
    made.save_to_disk(str(folder / "set"))
    return f"hf:{folder / 'set'}"


def _web_dataset(records: Records, folder: Path, classes: Sequence[str]) -> str:
    with tarfile.open(folder / "set.tar", "w") as tar:
        for r in records:
            members = {"png": r.data, "cls": r.label.encode(), "user": r.user.encode()}
            for kind, data in members.items():
                member = tarfile.TarInfo(f"{r.name}.{kind}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return f"wds:{folder / 'set.tar'}"


def _leaf(records: Records, folder: Path, classes: Sequence[str]) -> str:
    """Federated EMNIST's classes take the place of the records', in their order."""
    users = defaultdict[str, dict[str, list[Any]]](lambda: {"x": [], "y": []})
    for record in records:
        grey = decode(record.data, record.name, size=EMNIST_SIDE).mean(2) / 255
        users[record.user]["x"].append(grey.flatten().tolist())
        users[record.user]["y"].append(classes.index(record.label))
    for split in ("train", "test"):
        (folder / split).mkdir()
    content = {"users": list(users), "user_data": users}
    (folder / "train" / "data.json").write_text(json.dumps(content))
    return f"fed-emnist:{folder}"


SOURCES: dict[str, tuple[Writer, Options]] = {
    "class folders": (_files("{r.label}/{r.name}.png"), {"layout": "class"}),
    "user folders": (_files("{r.user}/{r.label}/{r.name}.png"), {"layout": "user-class"}),
    "flat folder": (_files("{r.name}.png"), {"layout": "flat", "class_names": ()}),
    "csv": (_csv, {}),
    "npz": (_npz, {}),
    "npz of files": (_npz_files, {}),
    "parquet": (_parquet, {}),
    "hf": (_hugging_face, {}),
    "wds": (_web_dataset, {}),
    "leaf": (_leaf, {"splits": ("train",), "class_names": EMNIST_CLASSES}),
}


def write_source(name: str, records: Records, folder: Path, classes: Sequence[str]) -> Options:
    """Options of `embed run` that read the records, which are written into a new folder."""
    folder.mkdir(parents=True)
    write, options = SOURCES[name]
    data = write(sorted(records, key=lambda each: (each.label, each.name)), folder, classes)
    return {"data": data, "class_names": tuple(classes), "resize": RESIZE} | options


def rows_of(rows: EmbeddingSet) -> Iterator[tuple[Any, ...]]:
    """Every row by its bits, class, user and split."""
    classes, users = rows.meta.get("class_names") or (), rows.meta.get("user_names")
    named = users_of(rows)
    for place, row in enumerate(np.asarray(rows.embeddings)):
        label, user = int(rows.labels[place]), int(named[place])
        kind = classes[label] if classes and label >= 0 else label
        yield row.tobytes(), kind, users[user] if users else user, int(rows.split[place])


def users_of(rows: EmbeddingSet) -> np.ndarray:
    """(N,) whose rows they are; of a set without users one user's."""
    return np.zeros(len(rows), np.int64) if rows.users is None else rows.users


def with_users(rows: EmbeddingSet) -> EmbeddingSet:
    """The rows, all of one user where the set names none."""
    named = columns(rows) | {"users": users_of(rows)}
    return EmbeddingSet(embeddings=rows.embeddings, **named, meta=rows.meta)


def aligned(first: EmbeddingSet, second: EmbeddingSet) -> EmbeddingSet:
    """The second set with every row where the first has it, for a comparison under one draw."""
    places: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows_of(second)):
        places[row].append(place)
    order = [places[row].pop() if places[row] else -1 for row in rows_of(first)]
    left = [place for rest in places.values() for place in rest]
    return second.subset(np.array([left.pop() if place < 0 else place for place in order]))


def differing(first: Any, second: Any, at: str = "") -> list[str]:
    """Places in which two reports differ, those of the noised sum left out."""
    if at in OF_THE_SUM:
        return []
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return [] if first == second else [at]
    return [
        place
        for name in sorted(first.keys() | second.keys())
        for place in differing(first.get(name), second.get(name), f"{at}.{name}".strip("."))
    ]


@dataclass(frozen=True)
class Check:
    """One comparison of two sets that differ in one record of a kind."""

    command: str
    where: str  # source, engine or method
    kind: str
    moved: float  # of what may change, as a share of what is allowed to
    broken: bool
    found: str

    @classmethod
    def of_rows(cls, command: str, where: str, kind: str, pair: Pair) -> "Check":
        """All rows but one must be in both sets, as often."""
        rows = [Counter(rows_of(each)) for each in pair]
        gone, new = (rows[0] - rows[1]).total(), (rows[1] - rows[0]).total()
        most, found = max(gone, new), f"{gone} rows gone, {new} new of {len(pair[0])}"
        return cls(command, where, kind, float(most), most > 1, found)

    @classmethod
    def of_sums(cls, command: str, where: str, kind: str, made: list[Any], claim: float) -> "Check":
        """The opened sum moves by the claim at most, and the reports are equal."""
        moved = float((made[0].opened - made[1].opened).norm())
        changed = differing(made[0].report, made[1].report)
        found = f"sum moved by {moved:.4g} of {claim:.4g}; report differs in {changed or 'nothing'}"
        return cls(command, where, kind, moved / claim, moved > claim or bool(changed), found)


@dataclass(frozen=True)
class PipelineAudit:
    """The records, options of `embed run` that name an encoder, and an empty folder.

    The first record of the last class is replaced, so that in folders its place may become any.
    """

    records: Records
    classes: Sequence[str]
    folder: Path
    encoder: Mapping[str, Any]

    def embedded(self, source: str, records: Records, **options: Any) -> EmbeddingSet:
        """The set that `embed run` makes of the records, in a new directory."""
        place = self.folder / f"{len(list(self.folder.iterdir())):04d}"
        given = write_source(source, records, place / "source", self.classes)
        return self._run(place, **given, **options, skip_unreadable=True)

    def _run(self, place: Path, **options: Any) -> EmbeddingSet:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            RunBy(**{**self.encoder, **options, "out": place / "rows"}).run()
        return EmbeddingSet.open(place / "rows")

    def neighbours(self, source: str, **options: Any) -> Iterator[tuple[str, EmbeddingSet]]:
        """Kinds of records, and the set with one of such a kind in the place of another."""
        place = [record.label for record in self.records].index(max(self.classes))
        for kind, record in replacements(self.records, place, self.classes):
            if kind != "unreadable" or source not in ARRAYS:
                changed = [*self.records[:place], record, *self.records[place + 1 :]]
                yield kind, self.embedded(source, changed, **options)

    def public(self) -> EmbeddingSet:
        """Generated pictures through the encoder, with labels that say nothing."""
        place = self.folder / "public"
        place.mkdir()
        pixels = trial_pictures(200, RESIZE, RESIZE).permute(0, 2, 3, 1).numpy()
        np.savez(place / "set.npz", x_train=pixels, y_train=np.arange(200) % 5)
        return self._run(place, data=str(place / "set.npz"))


def checks(
    pipeline: PipelineAudit,
    sources: Iterable[str] = SOURCES,
    computed: Iterable[tuple[str, str]] = COMPUTED,
) -> Iterator[Check]:
    """All comparisons: every source, engine, draw, method and report by every kind of record."""
    for source in sources:
        yield from of_rows(pipeline, source, source)
    for engine, compute in computed:
        options = {"engine": engine, "compute": compute, "batch_size": 7}
        yield from of_rows(pipeline, "class folders", f"{engine}, {compute}", **options)
    transform = PublicTransform.fit(pipeline.public(), components=8)
    found: list[Check] = []
    for source in ("class folders", "user folders"):
        first = pipeline.embedded(source, pipeline.records)
        about = about_a_row(transform, first)
        for kind, second in pipeline.neighbours(source):
            if len(first) != len(second):
                continue  # the numbers of rows are public: these are no neighbours
            pair = first, aligned(first, second)
            found += of_draws(pair, kind)
            found.append(of_exclusion(pair, kind, pipeline.folder))
            named = with_users(pair[0]), with_users(pair[1])
            found += [of_sums(named, kind, transform, *each) for each in METHODS]
            found.append(of_sums(named, kind, transform, about, {}))
            found += of_evaluations(named, kind, transform)
    yield from sorted(found, key=lambda check: (check.command, check.where))


def as_text(group: Sequence[Check]) -> str:
    """One line for the comparisons of one command in one place, and one for each that is broken."""
    first, worst = group[0], max(check.moved for check in group)
    of = "of the claim" if first.command in ("run", "evaluate") else "row(s)"
    line = f"{first.command:15} {first.where:45} {len(group)} kinds, at most {worst:.3g} {of}"
    broken = [f"  BROKEN by {check.kind}: {check.found}" for check in group if check.broken]
    return "\n".join([line, *broken])


def of_rows(pipeline: PipelineAudit, source: str, where: str, **options: Any) -> Iterator[Check]:
    """`embed run`: all other rows are the same bits, with their labels, users and splits."""
    first = pipeline.embedded(source, pipeline.records, **options)
    for kind, second in pipeline.neighbours(source, **options):
        yield Check.of_rows("embed run", where, kind, (first, second))


def of_draws(pair: Pair, kind: str) -> Iterator[Check]:
    """`embed hold-out`: with one draw, all other rows are in the same part."""
    counts: dict[By, int] = {"record": len(pair[0]), "user": len(np.unique(users_of(pair[0])))}
    for by, count in counts.items():
        if count > 1:
            keys = random_keys(count)
            first, second = (with_held_out(each, 0.4, by=by, keys=keys) for each in pair)
            yield Check.of_rows("embed hold-out", by, kind, (first, second))


def of_exclusion(pair: Pair, kind: str, folder: Path) -> Check:
    """`embed exclude`: whether another row stays does not depend on the record."""
    folder = folder / f"excluded {len(list(folder.iterdir()))}"
    pair[0].subset(np.arange(1, len(pair[0]), 3)).save(folder / "public")
    rest = [folder / "first rest", folder / "second rest"]
    for name, each, out in zip(("first", "second"), pair, rest, strict=True):
        each.subset(slice(None)).save(folder / name)
        Exclude(embeddings=folder / name, public=(folder / "public",), out=out).run()
    opened = EmbeddingSet.open(rest[0]), EmbeddingSet.open(rest[1])
    return Check.of_rows("embed exclude", "", kind, opened)


def of_sums(
    pair: Pair, kind: str, transform: PublicTransform, method: str | Method, options: Options
) -> Check:
    """`run`: without noise the sum moves by its sensitivity at most, and the report not at all.

    Where rows are shuffled, both sets are given the same order: the bound is that of every order.
    """
    name = method if isinstance(method, str) else f"{method.name} about a centre"
    where = ", ".join([name, *(f"{option} {value}" for option, value in options.items())])
    claims: dict[str, Any] = {}
    made = []
    for rows in pair:
        users = range(len(np.unique(users_of(rows))))
        given = {**options, "faults": FaultInjection(known_noise=users), "reserve": claims.update}
        if options.get("solver") == "sgd":
            given |= {"noise": "float", "generator": torch.Generator().manual_seed(1)}
        made.append(release(rows, method, PROMISE, transform=transform, **given))
    claim = claims["sensitivity"] * math.sqrt(claims.get("compositions", 1))
    return Check.of_sums("run", where, kind, made, claim)


def about_a_row(transform: PublicTransform, rows: EmbeddingSet) -> Method:
    """The second sum of a discriminant, about a centre at the first row."""
    place = transform(rows.embeddings[:1], dtype=torch.float64)[0, 1:]
    options = {"sums": 2, "class_noise": 0.1}
    method = build_method("discriminant", transform, len(rows.meta["class_names"]), options)
    return replace(method.about(Centre.of(0.9 * place, 1.0, transform.public)), first=None)


def of_evaluations(pair: Pair, kind: str, transform: PublicTransform) -> Iterator[Check]:
    """`evaluate`, where the record is held out: as `of_sums`."""
    keys = random_keys(len(pair[0]))
    keys[[a != b for a, b in zip(*map(rows_of, pair), strict=True)]] = 2**64 - 1
    held = [with_held_out(each, 0.5, keys=keys) for each in pair]
    model = release(held[0], "discriminant", PROMISE, transform=transform, sums=1)
    users = range(len(np.unique(users_of(pair[0])[held[0].split == 2])))
    for overlap in ("refuse", "add"):
        claims: dict[str, Any] = {}
        given = {"faults": FaultInjection(known_noise=users), "reserve": claims.update}
        made = [summed(model, each, PROMISE, overlap=overlap, **given) for each in held]
        yield Check.of_sums("evaluate", f"overlap {overlap}", kind, made, claims["sensitivity"])
