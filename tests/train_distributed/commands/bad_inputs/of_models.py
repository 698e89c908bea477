"""Released models, and what is done with them: `predict`, `evaluate`, `export`, `card`, ledgers."""

import shutil
from pathlib import Path

from tests.train_distributed.commands.bad_inputs.case import (
    DEEP,
    NEW,
    OVER,
    as_folder,
    cut,
    gone,
    put,
    under,
)

MODEL, ENCODER = "model/model.safetensors", "model/encoder.safetensors"
REPORT, OTHER, NONE = "model/report.json", '{"model": "00"}', '{"ledger": "none"}'
EMPTY = b"\x08" + b"\0" * 7 + b"{}      "


def other_encoder(folder: Path) -> None:
    shutil.copy(folder / "other.safetensors", folder / ENCODER)


def link(folder: Path) -> None:
    (folder / "here").symlink_to(folder / "model")


TYPED = {
    "run --embeddings private --public public": [
        ("--ledger broken/broken.ledger", r"broken\.ledger"),
        ("--ledger limited.ledger", r"limit of ledger limited\.ledger must be"),
        ("--ledger pictures", "pictures"),
        ("--ledger no/where.ledger", r"ledger must be in a folder .* got no/where\.ledger"),
        ("--ledger model/report.json", r"report\.json"),
    ],
    "predict --model model --data": [
        ("pictures", r"encoder\.safetensors", cut(ENCODER)),
        ("pictures", "encoder must be the one that the model learned with", other_encoder),
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
        ("", r"model/model\.safetensors", gone(MODEL), as_folder(MODEL)),
        ("", r"model/report\.json", gone(REPORT), put(REPORT, "{"), put(REPORT, "[1]")),
        ("", r"report\.json must be a readable JSON", put(REPORT, DEEP)),
        ("", r"model\.safetensors: weights must be .* got none", put(MODEL, EMPTY)),
        ("--data pictures", "must be given, got both"),
        ("--splits tset", "splits must be of .* got"),
        ("--resize 3", "resize must be left out with embeddings, got 3"),
        ("--encoder timm:resnet18", "encoder must be left out with embeddings, got"),
        ("--out model --overwrite", OVER),
        ("--out old", NEW),
        ("--out /proc/nowhere/out", "/proc/nowhere"),
    ],
    "predict --embeddings private --model": [
        ("nowhere | table.csv", "release must be an existing directory, got (nowhere|table)"),
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
        ("--epsilon 0", "epsilon must be > 0, got 0"),
        ("--delta 1", r"delta must be in \(0, 1\), got 1"),
        ("--bins -1 | --bins 1000000000000", "bins must be .* got (-1|1000000000000)"),
        ("--confidence 1", r"confidence must be in \[0\.5, 0\.999\], got 1"),
        ("--seed -1", r"seed must be in \[0, 2\^63\), got -1"),
        ("--min-survivors 9", r"min_survivors must be in \[1, 4\]"),
        ("--min-survivors 2 --honest-fraction 0.25", "one certainly honest user, got -1"),
        ("--out . --overwrite | --out model --overwrite", OVER),
        ("--users 3", "users must be left out for scheme 'own', got 3"),
        ("--layout flat", "layout must be left out with embeddings, got flat"),
        ("--scheme iid --users 1000", r"users must be in \[1, 24\], .* got 1000"),
        ("--training nowhere", "existing directory, got nowhere"),
        ("--ledger limited.ledger", r"limit of ledger limited\.ledger must be"),
    ],
    "export --format torch-export --model": [
        ("nowhere", "release must be an existing directory, got nowhere"),
        ("model", r"model\.safetensors must .*got", cut(MODEL)),
        ("bare", "encoder must be given by name and weights"),
        ("bare --encoder other.safetensors", "encoder must be the one that the model learned with"),
        ("model --input-size 0 0", "input_size must .* got"),
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
        ("--evaluation e", "must be of the model with SHA-256", put("e/evaluation.json", OTHER)),
        ("--evaluation private", r"private/evaluation\.json|evaluation must be"),
        ("--out model --overwrite | --out . --overwrite", OVER),
        ("--out here --overwrite", OVER, link),
        ("--out old", NEW),
    ],
    "card": [("--model nowhere", "release must be an existing directory, got nowhere")],
    "ledger show --ledger": [
        ("nowhere.ledger", r"ledger must exist, got nowhere\.ledger"),
        ("broken/broken.ledger", r"broken\.ledger.*chain|chain.*broken\.ledger"),
        ("pictures/red/0.png", r"pictures/red/0\.png"),
        ("pictures", "pictures"),
        ("l.ledger", r"l\.ledger", put("l.ledger", '{"body": {}}\n')),
        ("l.ledger", r"l\.ledger", put("l.ledger", bytes(range(256)))),
        ("spent.ledger --embeddings private", "exactly one of embeddings and ledger .* got both"),
        (".", r"ledger must be a file, got \."),
        ("spent.ledger --delta 2", r"delta must be in \(0, 1\), got 2"),
        ("spent.ledger --delta nan", r"delta must be in \(0, 1\), got nan"),
        ("spent.ledger --reports report.json", "must"),
        ("spent.ledger --reports model", "reports must be of results with a ledger, got"),
        ("spent.ledger --reports r.json", "reports must be of", put("r.json", "[]")),
        ("spent.ledger --reports r.json", "reports must be of", put("r.json", "nonsense")),
        ("spent.ledger --reports r.json", "reports must be of", put("r.json", NONE)),
        ("spent.ledger --reports r.json", "reports must be of", put("r.json", DEEP)),
    ],
    "ledger": [
        ("show", "exactly one of embeddings and ledger must be given, got neither"),
        ("reserve --ledger l --epsilon 1 --delta 1e-5", "embeddings and data"),
        ("reserve --embeddings no --epsilon 1 --delta 1e-5", "existing dir"),
        ("limit --ledger /dev/null --epsilon 1 --delta 1e-5", "be a file"),
        ("reserve --ledger n --data a --epsilon 1 --delta 1", r"delta must be in \(0, 1\), got 1"),
        ("spend --ledger spent.ledger --id 0123456789abcdef", "id must .* got '?0123456789abcdef"),
        ("spend --ledger nowhere.ledger --id 0", "must .* got"),
        ("limit --ledger new.ledger --delta 1e-5 --epsilon 0", "epsilon must be > 0, got 0"),
        ("limit --ledger new.ledger --delta 1e-5 --epsilon nan", "epsilon must be > 0, got nan"),
        ("limit --ledger limited.ledger --delta 1e-5 --epsilon 9", "must .* got"),
    ],
    "ledger reserve --ledger new.ledger --data rows --delta 1e-5 --epsilon": [
        ("0 | nan", "epsilon must be > 0, got (0|nan)"),
        ("1 --sigma .1 --sensitivity 1", r"epsilon must be >= [\d.]+, what the noise gives, got 1"),
        ("1 --sigma 1", "sigma and sensitivity must be given both or neither, got one"),
        ("1 --group-size 0", "group_size must be >= 1, got 0"),
        ("1 --compositions -1", r"compositions must be in \[0, inf\), got -1"),
    ],
    "ledger reserve --data rows --delta 1e-5 --epsilon 1 --ledger": [
        ("broken/broken.ledger", r"broken\.ledger"),
        ("limited.ledger", r"limit of ledger limited\.ledger must be >= "),
        ("table.csv/l", r"table\.csv"),
        ("no/where", "no/where"),
    ],
}

CASES = under(TYPED)
