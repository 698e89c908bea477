"""Released models, and what is done with them: `predict`, `evaluate`, `export`, `card`, ledgers."""

import shutil

from tests.train_distributed.commands.bad_inputs.case import DEEP, as_folder, cut, gone, put, table

SET = "predict --embeddings private --model"
EVALUATE = "evaluate --model model --embeddings private"
EXPORT = "export --format torch-export --model"
CARD = "card --model"
SHOW = "ledger show --ledger"
RESERVE = "ledger reserve --ledger new.ledger --data rows --delta 1e-5 --epsilon"
LIMIT = "ledger limit --ledger new.ledger --delta 1e-5 --epsilon"
RUN = "run --embeddings private --public public --ledger"
MODEL, ENCODER = "model/model.safetensors", "model/encoder.safetensors"

CASES = table(
    (f"{SET} nowhere", r"release must be an existing directory, got nowhere"),
    (f"{SET} table.csv", r"release must be an existing directory, got table"),
    (f"{SET} private", r"private/(model\.safetensors|report\.json)"),
    (f"{SET} model", r"model/model\.safetensors must .*got", cut(MODEL)),
    (f"{SET} model", r"model/model\.safetensors must .*got", cut(MODEL, 0)),
    (f"{SET} model", r"model/model\.safetensors", gone(MODEL)),
    (f"{SET} model", r"model/model\.safetensors", as_folder(MODEL)),
    (f"{SET} model", r"model/report\.json", gone("model/report.json")),
    (f"{SET} model", r"model/report\.json", put("model/report.json", "{")),
    (f"{SET} model", r"model/report\.json", put("model/report.json", "[1]")),
    (f"{SET} model", r"report\.json must be a readable JSON", put("model/report.json", DEEP)),
    (
        f"{SET} model",
        r"model\.safetensors: weights must be .* got none",
        put(MODEL, b"\x08" + b"\0" * 7 + b"{}      "),
    ),
    ("predict --model model --embeddings foreign", r"one encoder"),
    ("predict --model model --embeddings narrow", r"must .* got"),
    ("predict --model model --embeddings nan", r"got nan in row 7 of nan/embeddings\.npy"),
    ("predict --model model", r"exactly one of data and embeddings must be given, got neither"),
    (f"{SET} model --data pictures", r"must be given, got both"),
    (f"{SET} model --splits tset", r"splits must be of .* got"),
    (f"{SET} model --resize 3", r"resize must be left out with embeddings, got 3"),
    (f"{SET} model --encoder timm:resnet18", r"encoder must be left out with embeddings, got"),
    (
        "predict --model model --embeddings train_only --splits test",
        r"splits must hold rows, got none in test",
    ),
    (f"{SET} model --out model --overwrite", r"out must not hold what the command reads"),
    (f"{SET} model --out old", r"output directory must not exist .* got old"),
    (f"{SET} model --out /proc/nowhere/out", r"/proc/nowhere"),
    (
        "predict --model model --data pictures",
        r"encoder\.safetensors",
        cut(ENCODER),
    ),
    (
        "predict --model model --data pictures",
        r"encoder must be the one that the model learned with",
        lambda folder: shutil.copy(folder / "other.safetensors", folder / ENCODER),
    ),
    # evaluate
    ("evaluate --model model --embeddings train_only", r"must hold .*evaluation.* got"),
    ("evaluate --model model --embeddings foreign --users 1", r"one encoder"),
    ("evaluate --model model --embeddings unlabelled", r"must have labels"),
    (
        "evaluate --model model --embeddings nan",
        r"must be finite, got nan in row 95 of nan/embeddings\.npy",
    ),
    (
        "evaluate --model model --embeddings nobody",
        r"users must be named by the embedding set, .* got none for nobody",
    ),
    (f"{EVALUATE} --epsilon 0", r"epsilon must be > 0, got 0"),
    (f"{EVALUATE} --delta 1", r"delta must be in \(0, 1\), got 1"),
    (f"{EVALUATE} --bins -1", r"bins must be .* got -1"),
    (f"{EVALUATE} --bins 1000000000000", r"bins must be .* got 1000000000000"),
    (f"{EVALUATE} --confidence 1", r"confidence must be in \[0\.5, 0\.999\], got 1"),
    (f"{EVALUATE} --seed -1", r"seed must be in \[0, 2\^63\), got -1"),
    (f"{EVALUATE} --min-survivors 9", r"min_survivors must be in \[1, 4\]"),
    (f"{EVALUATE} --min-survivors 2 --honest-fraction 0.25", r"one certainly honest user, got -1"),
    (f"{EVALUATE} --out . --overwrite", r"out must not hold what the command reads"),
    (f"{EVALUATE} --users 3", r"users must be left out for scheme 'own', got 3"),
    (f"{EVALUATE} --scheme iid --users 1000", r"users must be in \[1, 24\], .* got 1000"),
    (f"{EVALUATE} --training nowhere", r"existing directory, got nowhere"),
    (f"{EVALUATE} --out model --overwrite", r"out must not hold what the command reads"),
    (f"{EVALUATE} --ledger limited.ledger", r"limit of ledger limited\.ledger must be"),
    # export
    (f"{EXPORT} nowhere", r"release must be an existing directory, got nowhere"),
    (f"{EXPORT} model", r"model\.safetensors must .*got", cut(MODEL)),
    (f"{EXPORT} bare", r"encoder must be given by name and weights"),
    (
        f"{EXPORT} bare --encoder other.safetensors",
        r"encoder must be the one that the model learned with",
    ),
    (f"{EXPORT} model --input-size 0 0", r"input_size must .* got"),
    ("export --format pickle --model model", r"format"),
    ("export --model model", r"--format"),
    (f"{EXPORT} model --out model --overwrite", r"out must not hold what the command reads"),
    (f"{EXPORT} model --out table.csv/x", r"table\.csv"),
    # card
    (f"{CARD} nowhere", r"release must be an existing directory, got nowhere"),
    (f"{CARD} model", r"model\.safetensors must .*got", cut(MODEL)),
    (f"{CARD} model --ledger nowhere", r"ledger must be an existing file, got nowhere"),
    (
        f"{CARD} model --ledger broken/broken.ledger",
        r"broken\.ledger.* chain|chain.*broken\.ledger",
    ),
    (f"{CARD} model --ledger model/report.json", r"model/report\.json"),
    (f"{CARD} model", r"report must be what a release writes", put("model/report.json", "{}")),
    (
        f"{CARD} model --evaluation e",
        r"evaluation must be of the model with SHA-256",
        put("e/evaluation.json", '{"model": "00"}'),
    ),
    (f"{CARD} model --evaluation private", r"private/evaluation\.json|evaluation must be"),
    (f"{CARD} model --out model --overwrite", r"out must not hold what the command reads"),
    (f"{CARD} model --out . --overwrite", r"out must not hold what the command reads"),
    (
        f"{CARD} model --out here --overwrite",
        r"out must not hold what the command reads",
        lambda folder: (folder / "here").symlink_to(folder / "model"),
    ),
    (f"{CARD} model --out old", r"output directory must not exist .* got old"),
    # ledgers
    (f"{SHOW} nowhere.ledger", r"ledger must exist, got nowhere\.ledger"),
    (f"{SHOW} broken/broken.ledger", r"broken\.ledger.*chain|chain.*broken\.ledger"),
    (f"{SHOW} pictures/red/0.png", r"pictures/red/0\.png"),
    (f"{SHOW} pictures", r"pictures"),
    (f"{SHOW} l.ledger", r"l\.ledger", put("l.ledger", '{"body": {}}\n')),
    (f"{SHOW} l.ledger", r"l\.ledger", put("l.ledger", bytes(range(256)))),
    (
        f"{SHOW} spent.ledger --embeddings private",
        r"exactly one of embeddings and ledger must be given, got both",
    ),
    ("ledger show", r"exactly one of embeddings and ledger must be given, got neither"),
    (f"{SHOW} .", r"ledger must be a file, got \."),
    (f"{SHOW} spent.ledger --delta 2", r"delta must be in \(0, 1\), got 2"),
    (f"{SHOW} spent.ledger --delta nan", r"delta must be in \(0, 1\), got nan"),
    (f"{SHOW} spent.ledger --reports report.json", r"must"),
    (f"{SHOW} spent.ledger --reports model", r"reports must be of results with a ledger, got"),
    *(
        (f"{SHOW} spent.ledger --reports r.json", r"reports must be of", put("r.json", text))
        for text in ("[]", "nonsense", '{"ledger": "none"}', DEEP)
    ),
    ("ledger reserve --ledger l --epsilon 1 --delta 1e-5", r"embeddings and data"),
    ("ledger reserve --embeddings no --epsilon 1 --delta 1e-5", r"existing dir"),
    ("ledger limit --ledger /dev/null --epsilon 1 --delta 1e-5", r"be a file"),
    (f"{RESERVE} 0", r"epsilon must be > 0, got 0"),
    (f"{RESERVE} nan", r"epsilon must be > 0, got nan"),
    (
        "ledger reserve --ledger new.ledger --data rows --epsilon 1 --delta 1",
        r"delta must be in \(0, 1\), got 1",
    ),
    (
        f"{RESERVE} 1 --sigma .1 --sensitivity 1",
        r"epsilon must be >= [\d.]+, what the noise gives, got 1",
    ),
    (f"{RESERVE} 1 --sigma 1", r"sigma and sensitivity must be given both or neither, got one"),
    (f"{RESERVE} 1 --group-size 0", r"group_size must be >= 1, got 0"),
    (f"{RESERVE} 1 --compositions -1", r"compositions must be in \[0, inf\), got -1"),
    (
        "ledger reserve --ledger broken/broken.ledger --data rows --delta 1e-5 --epsilon 1",
        r"broken\.ledger",
    ),
    (
        "ledger reserve --ledger limited.ledger --data others --delta 1e-5 --epsilon 1",
        r"limit of ledger limited\.ledger must be >= ",
    ),
    ("ledger reserve --ledger table.csv/l --data rows --delta 1e-5 --epsilon 1", r"table\.csv"),
    ("ledger reserve --ledger no/where --data rows --delta 1e-5 --epsilon 1", r"no/where"),
    (
        "ledger spend --ledger spent.ledger --id 0123456789abcdef",
        r"id must .* got '?0123456789abcdef",
    ),
    ("ledger spend --ledger nowhere.ledger --id 0", r"must .* got"),
    (f"{LIMIT} 0", r"epsilon must be > 0, got 0"),
    (f"{LIMIT} nan", r"epsilon must be > 0, got nan"),
    ("ledger limit --ledger limited.ledger --delta 1e-5 --epsilon 9", r"must .* got"),
    (f"{RUN} broken/broken.ledger", r"broken\.ledger"),
    (f"{RUN} limited.ledger", r"limit of ledger limited\.ledger must be"),
    (f"{RUN} pictures", r"pictures"),
    (f"{RUN} no/where.ledger", r"ledger must be in a folder that exists, got no/where\.ledger"),
    (f"{RUN} model/report.json", r"report\.json"),
)
