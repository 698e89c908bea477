"""One bad input: what is typed, what is spoilt before, and how the one line must read.

Cases of numbers and words out of range, in every command; of models, ledgers and cards.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from train_distributed.commands.federation import Join

OUT = {  # commands that write a directory: it is told to replace a model, which it must not do
    *("embed run", "embed hold-out", "embed exclude", "embed fit-transform"),
    *("pretrain simclr", "pretrain probe", "pretrain convert", "run"),
    *("predict", "evaluate", "export", "card", "rehearse", "sweep", "audit", "protect"),
}
DEEP = '{"a":' * 50_000 + "0" + "}" * 50_000  # more levels than a stack holds
OVER = r"out must not hold what the command reads, \S+, got \S+"
NEW = r"output directory must not exist .* got old"
NAN_ROW = "must be finite, got nan in row 7"
Spoil = Callable[[Path], object]  # of the folder that the command runs in


@dataclass(frozen=True)
class Case:
    typed: str  # without the program's name
    says: str  # a regular expression: argument, rule, value
    spoil: Spoil | None = None

    @property
    def arguments(self) -> list[str]:
        """As the shell would give them, an existing model as the directory to write."""
        words = shlex.split(self.typed)
        writes = words[0] in OUT or " ".join(words[:2]) in OUT
        return words + (["--out", "old", "--overwrite"] if writes and "--out" not in words else [])


def table(*rows: Any) -> list[Case]:
    """Cases of (typed, says) or (typed, says, spoil)."""
    return [Case(*row) for row in rows]


def under(rows: Mapping[str, list[Any]]) -> list[Case]:
    """Cases by the words that they begin with.

    ` | ` separates what is refused alike, `{}` is the last word; of several spoils each is a case.
    """
    return [
        Case(f"{first} {typed}".strip(), says.replace("{}", typed.split(" ")[-1]), spoil)
        for first, cases in rows.items()
        for words, says, *spoils in cases
        for typed in words.split(" | ")
        for spoil in spoils or (None,)
    ]


def cut(name: str, keep: int = -1) -> Spoil:
    """Truncates a file: to half of it, or to so many bytes."""

    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2 if keep < 0 else keep])

    return spoil


def put(name: str, content: str | bytes) -> Spoil:
    """Writes a file, over the one that may be there."""

    def spoil(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return spoil


def gone(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def arrays(**held: object) -> Spoil:
    return lambda folder: np.savez(folder / "data.npz", **held)  # pyright: ignore[reportArgumentType]


SETS = "--embeddings private --public public"
INIT = "federation init --folder fed --hosts localhost --num-classes 2 --parties"
PROMISE = {"epsilon": 1.0, "delta": 1e-5}
HALF = PROMISE | {"honest_fraction": 0.5}
PETS, SHARES = '{"cat": 0.5, "dog": 0.5}', '{"blue": 0.2, "green": 0.3, "red": 0.5}'
SGD = {"solver": "sgd", "epochs": 2, "batch_size": 2}
MODEL, REPORT, OTHER = "model/model.safetensors", "model/report.json", '{"model": "00"}'
EMPTY = b"\x08" + b"\0" * 7 + b"{}      "


def further(**settings: object) -> Spoil:
    """A file `s.json` for `protect`."""
    return put("s.json", json.dumps(settings))


def head(x: np.ndarray | None = None, y: np.ndarray | None = None) -> Spoil:
    def spoil(folder) -> None:
        (folder / "rows").mkdir()
        np.save(folder / "rows" / "embeddings.npy", np.ones((4, 1)) if x is None else x)
        np.save(folder / "rows" / "labels.npy", np.arange(4) % 2 if y is None else y)

    return spoil


def chosen(**changes: Any) -> Spoil:
    """The file of `rehearse`, c.json, with other fields."""
    fields = {"method": "softmax", "options": {"components": 3}, "privacy": PROMISE}
    return put("c.json", json.dumps(fields | changes))


def option(**given: Any) -> Spoil:
    return chosen(options=given)


def of_two(**changes: Any) -> Spoil:
    """The same and the files of two parties."""

    def spoil(folder) -> None:
        chosen(**changes)(folder)
        for name in "ab":
            with redirect_stdout(StringIO()):
                Join(folder / name, name, rows=8).run()
            (folder / name / f"{name}.party.json").rename(folder / f"{name}.party.json")

    return spoil


TYPED = {
    "run --embeddings private --public public": [
        ("--epsilon 0 | --epsilon nan", "epsilon must be > 0, got {}"),
        ("--epsilon soon", "epsilon.*soon"),
        ("--delta 1 | --delta nan", r"delta must be in \(0, 1\), got {}"),
        ("--seed -1", r"seed must be in \[0, 2\^63\), got -1"),
        ("--epochs 3", "Unrecognized options: --epochs"),
        ("--method forest", "method"),
        ("--components 9", r"components must be in \[1, 6\], got 9"),
        ("--prior flat", "prior must be .* got flat"),
        ("--prior p.json", r"prior must .*p\.json.* classes blue, green, red", put("p.json", PETS)),
        ("--method svm --prior p.json", "prior must be .* for an SVM", put("p.json", SHARES)),
        ("--user-clip 0", "user_clip must be finite and > 0, got 0"),
        ("--config table.csv | --out table.csv --overwrite", r"table\.csv"),
        ("--out old", NEW),
        ("--out private --overwrite | --out . --overwrite | --out public --overwrite", OVER),
        ("--out /proc/nowhere/out", "/proc/nowhere"),
        ("--with-encoder other.safetensors", r"weights must be left out for network.* got other"),
        ("--ledger broken/broken.ledger", r"broken\.ledger"),
        ("--ledger limited.ledger", r"limit of ledger limited\.ledger must be"),
        ("--ledger no/where.ledger", r"ledger must be in a folder .* got no/where\.ledger"),
        ("--ledger pictures | --ledger model/report.json", "{}"),
    ],
    "run --embeddings private --public public --config c.json": [
        ("", r"config .*c\.json.*known_noise is no option", option(known_noise=[0])),
        ("", r"config .*c\.json.*l2_reg: Expected `float . null`, got `bool`", option(l2_reg=True)),
        ("", r"config .*c\.json.*method must be one of", chosen(method="admm-dual")),
        ("", "config .*components: Expected `int . null`, got `str`", option(components="3")),
        ("", "privacy must be what config was", chosen(privacy=PROMISE | {"unit": "user"})),
        ("", r"config must be .*c\.json", put("c.json", "[]"), put("c.json", '{"method": 3}')),
    ],
    "simulate --embeddings private --public public": [
        (f"--users 0 | --users {10**30 - 1}", r"users must be in \[1, 48\], .* got {}"),
        ("--scheme own --users 4", "users must be left out for scheme 'own', got 4"),
    ],
    "rival": [
        (f"non-private-svm {SETS}", "epsilon must be inf for 'non-private-svm', got 1"),
        (f"amp {SETS} --noise discrete", "noise must be 'float' for 'amp'"),
        (f"admm-dual {SETS} --iterations 0", "iterations must be >= 1, got 0"),
        (f"amp {SETS} --prior equal", "Unrecognized options: --prior"),
        ("forest", "forest"),
    ],
    "rehearse --public public --users 4 --rows-per-user 12 --num-classes 2": [
        ("--users 0", "users must be >= 1, got 0"),
        ("--epsilon inf", "epsilon must be finite, .* got inf"),
        ("--epsilon 0 | --epsilon 1 0", "epsilon must be > 0, got 0"),
        ("--epsilon", "epsilon"),
        ("--out public --overwrite", OVER),
        ("--out old", NEW),
    ],
    "sweep": [
        ("everything", "everything"),
        ("frontier", "embeddings must be given for frontier, got None"),
        ("convergence --embeddings private", "embeddings must be left out for .* got private"),
    ],
    "sweep frontier --embeddings private --public public": [
        ("--out private --overwrite", OVER),
        ("--users 1000", r"users must be in \[1, 48\]"),
        ("--seeds 0", "seeds must be >= 1, got 0"),
    ],
    "plot": [
        ("report.json", "results must be the JSON of a sweep, got"),
    ],
    "audit": [
        ("--epsilon 1", "epsilon must be left out for method all, whose list states its own"),
        ("--method servers --users 2", "users must be left out for method servers"),
    ],
    "audit --method discriminant": [
        ("--rows 0", "rows must be .* got 0"),
        ("--canaries 0 --rows 1000000000000", "memory must suffice, got: Unable to allocate"),
        ("--confidence 1", r"confidence must be in \(0, 1\), got 1"),
        ("--epsilon inf", "epsilon must be finite for an audit, got inf"),
        ("--out old", NEW),
    ],
    "audit --trials 16 --config c.json": [
        ("--users 1", "group_size must be <= 3", chosen(privacy=PROMISE | {"group_size": 9})),
        ("--method svm", "method must be softmax as config says, .* got svm", chosen()),
        ("", "method must be one of .* got 'forest'", chosen(method="forest")),
        ("", "config must be left out for method all", chosen(method="all")),
        ("", "options must be left out for an evaluation", chosen(method="evaluation")),
        ("--canaries 9", "canaries must be .* or 0 for method 'softmax'", chosen(options=SGD)),
        ("", "honest_fraction must be left out or 1 for", chosen(method="admm-dual", privacy=HALF)),
    ],
    "audit --trials 16 --users 2 --method": [
        ("amp --canaries 9", "canaries must be left out or 0 for method 'amp'"),
        ("charter-sum --noise float", "noise must be 'discrete'"),
        ("amp --noise discrete", "noise must be 'float' for 'amp'"),
    ],
    "protect": [
        ("--images private.npz --out . --overwrite", "out must not hold what|output directory"),
        ("--embeddings private", "embeddings and public must be given together, got one"),
        ("--embeddings private --public foreign", "one encoder"),
        ("--embeddings unlabelled --public public", "embeddings must have labels"),
        ("--images nowhere.npz", "images must be"),
        ("--prefer-utility 0", "must not both be 0"),
        ("--settings nowhere.json", r"nowhere\.json must be a readable JSON object"),
    ],
    "protect --settings s.json": [
        ("", r"threshold must be in \(0, 1\), got 2", further(threshold=2)),
        ("", "key_bits must be >= 2048", further(key_bits=1024)),
        ("", r"s\.json must have names of components, .* got model", further(model=3)),
        ("", r"s\.json: rows: Expected `int`, got `str`, got 'all'", further(rows="all")),
        ("--clients 3", r"victims must be in \[1, 3\]", further(models=1, steps=0, victims=4)),
    ],
    "account": [
        ("--epsilon 1", "exactly two of .* must be given, got 1"),
        ("--epsilon 1 --delta .1 --noise-multiplier 1", "exactly two of .* must be given, got 3"),
    ],
    "account --epsilon 1 --delta .1 --honest-fraction .5": [
        ("--users 9 --noise-by servers", "honest_fraction must be left out where servers add"),
        ("", "honest_fraction must be left out without users"),
    ],
    "federation join --folder me --name": [
        ("'' --rows 3 | '../A' --rows 3 | 'H A' --rows 3", "name must be 1 to 40 of a-z"),
        ("a --rows 1 --server", "be left out for a server"),
        ("a", "exactly one of rows and embeddings must be given, got"),
        ("a --rows 0", r"rows must be in \[1, \d+\], got 0"),
        ("a --embeddings unlabelled", "must have labels"),
    ],
    INIT: [
        ("table.csv --transform transform.safetensors", r"table\.csv"),
        ("a --port 0", r"port must be in \[1, 65535\], got 0"),
    ],
    f"{INIT} a --transform transform.safetensors --config c.json": [
        ("", r"config must be what rehearse wrote, got c\.json", put("c.json", "[]")),
        ("--epsilon 2", r"epsilon must be 1\.0 as config says, .* got 2", chosen()),
    ],
    f"{INIT} a.party.json b.party.json --transform transform.safetensors --config c.json": [
        ("", "method must be one of discriminant, findings.* got 'amp'", of_two(method="amp")),
        ("", "transform must be fitted on the set config was", of_two(public_hash="0" * 64)),
        ("", "bits is no option, those are l2_reg", of_two(options={"bits": 3})),
        ("", r"components must be in \[1, .* got 99", of_two(options={"components": 99})),
        ("", "prior must have the classes", of_two(options={"prior": {"cat": 0.5, "dog": 0.5}})),
        ("", "prior must hold shares of sum 1", of_two(options={"prior": {"0": 0.5, "1": 0.6}})),
        ("", "config must be .*prior", of_two(options={"prior": "p.json"})),
    ],
    "federation": [
        ("join --name a --rows 3 --folder table.csv/me", r"table\.csv"),
        ("join --name a --rows 3 --folder table.csv", r"table\.csv"),
        ("init --folder fed --parties a", "hosts must be given, got none"),
        ("status --folder private | start --folder private", "must|private"),
    ],
    "heads fit --data rows --out fitted --num-classes 2 --l2-reg 1 --clip-norm": [
        ("1.5", r"data must hold a readable embeddings\.npy, got"),
        (".5", "clip_norm|norm.* got", head()),
        ("1.5", r"labels\.npy must hold integers, got float64", head(y=np.ones(4))),
        ("2 --out old", "out must not exist, got old", head()),
        ("2", r"\(n,\), got \(4, 1\) and \(3,\)", head(y=np.zeros(3, int))),
        ("2", r"data must hold a readable labels\.npy", head(y=np.array([{}] * 4, object))),
        ("2 --noise-multiplier 0", "noise_multiplier must be finite and > 0, got 0", head()),
        ("2 --data unlabelled", "must have labels to learn from, got unlabelled"),
        ("2", "must .* got|n must be", head(x=np.zeros((0, 1)), y=np.zeros(0, int))),
    ],
    "": [
        ("heads fit", "--data"),
        ("embed", "command must be one of run, .* got none"),
        ("pretrain forest", "simclr, convert, probe"),
        ("forest", "one of .*audit, protect, ledger, federation, pretrain.* got forest"),
    ],
    "predict --model": [
        ("model --embeddings foreign", "one encoder"),
        ("model --embeddings narrow", "must .* got"),
        ("model --embeddings nan", r"got nan in row 7 of nan/embeddings\.npy"),
        ("model", "exactly one of data and embeddings must be given, got neither"),
        ("model --embeddings train_only --splits test", "splits must hold rows, got none in test"),
    ],
    "predict --embeddings private --model model": [
        ("", r"model/model\.safetensors must .*got", cut(MODEL), cut(MODEL, 0)),
        ("", r"model/report\.json must be a readable JSON", put(REPORT, DEEP)),
        ("", r"model\.safetensors: weights must be .* got none", put(MODEL, EMPTY)),
        ("--data pictures", "must be given, got both"),
        ("--splits tset", "splits must be of .* got"),
        ("--resize 3", "resize must be left out with embeddings, got 3"),
        ("--encoder timm:resnet18", "encoder must be left out with embeddings, got"),
        ("--out model --overwrite", OVER),
        ("--out old", NEW),
    ],
    "predict --embeddings private --model": [
        ("nowhere | table.csv", "release must be an existing directory, got {}"),
        ("private", r"private/(model\.safetensors|report\.json)"),
    ],
    "evaluate --model model": [
        ("--embeddings train_only", "must hold .*evaluation.* got"),
        ("--embeddings foreign --users 1", "one encoder"),
        ("--embeddings unlabelled", "must have labels"),
        ("--embeddings nan", r"must be finite, got nan in row 95 of nan/embeddings\.npy"),
        ("--embeddings nobody", "users must be named by the embedding set, .* got none for nobody"),
    ],
    "evaluate --model model --embeddings private": [
        ("--seed -1", r"seed must be in \[0, 2\^63\), got -1"),
        ("--out . --overwrite | --out model --overwrite", OVER),
        ("--users 3", "users must be left out for scheme 'own', got 3"),
        ("--layout flat", "layout must be left out with embeddings, got flat"),
        ("--scheme iid --users 1000", r"users must be in \[1, 24\], .* got 1000"),
        ("--training nowhere", "existing directory, got nowhere"),
        ("--ledger limited.ledger", r"limit of ledger limited\.ledger must be"),
    ],
    "export --format torch-export --model": [
        ("model", r"model\.safetensors must .*got", cut(MODEL)),
        ("model --out model --overwrite", OVER),
        ("model --out table.csv/x", r"table\.csv"),
    ],
    "export": [("--format pickle --model model", "format"), ("--model model", "--format")],
    "card --model model": [
        ("", r"model\.safetensors must .*got", cut(MODEL)),
        ("--ledger nowhere", "ledger must be an existing file, got nowhere"),
        ("--ledger broken/broken.ledger", r"broken\.ledger.* chain|chain.*broken\.ledger"),
        ("--ledger model/report.json", r"model/report\.json"),
        ("", "report must be what a release writes", put(REPORT, "{}")),
        ("--evaluation e", "evaluation must be .* SHA-256", put("e/evaluation.json", OTHER)),
        ("--evaluation private", r"private/evaluation\.json|evaluation must be"),
        ("--out model --overwrite | --out . --overwrite", OVER),
        ("--out here --overwrite", OVER, lambda at: (at / "here").symlink_to(at / "model")),
        ("--out old", NEW),
    ],
    "ledger show --ledger": [
        ("nowhere.ledger", r"ledger must exist, got nowhere\.ledger"),
        ("broken/broken.ledger", r"broken\.ledger.*chain|chain.*broken\.ledger"),
        ("pictures/red/0.png | pictures", "{}"),
        ("spent.ledger --embeddings private", "exactly one of embeddings and ledger .* got both"),
        (".", r"ledger must be a file, got \."),
        ("spent.ledger --delta 2 | spent.ledger --delta nan", r"must be in \(0, 1\), got {}"),
        ("spent.ledger --reports report.json", "must"),
        ("spent.ledger --reports model", "reports must be of results with a ledger, got"),
    ],
    "ledger": [
        ("show", "exactly one of embeddings and ledger must be given, got neither"),
        ("reserve --ledger l --epsilon 1 --delta 1e-5", "embeddings and data"),
        ("reserve --embeddings no --epsilon 1 --delta 1e-5", "existing dir"),
        ("limit --ledger /dev/null --epsilon 1 --delta 1e-5", "be a file"),
        ("spend --ledger spent.ledger --id 0123456789abcdef", "id must .* got '?0123456789abcdef"),
        ("spend --ledger nowhere.ledger --id 0", "must .* got"),
    ],
    "ledger reserve --ledger new.ledger --data rows --delta 1e-5 --epsilon": [
        ("0 | nan", "epsilon must be > 0, got {}"),
        ("1 --sigma .1 --sensitivity 1", r"epsilon must be >= [\d.]+, what the noise gives, got 1"),
    ],
    "ledger reserve --data rows --delta 1e-5 --epsilon 1 --ledger": [
        ("broken/broken.ledger | table.csv/l | no/where", "{}"),
        ("limited.ledger", r"limit of ledger limited\.ledger must be >= "),
    ],
}

CASES = under(TYPED)
