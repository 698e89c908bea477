"""Released models, and what is done with them: `predict`, `evaluate`, `export`, `card`, ledgers."""

from tests.train_distributed.commands.bad_inputs.case import as_folder, cut, gone, put, table

SET = "predict --embeddings private --model"
EVALUATE = "evaluate --model model --embeddings private"
EXPORT = "export --format sklearn --model"
PICTURES = "export --format torch-export --model model"
CARD = "card --model"
SHOW = "ledger show --ledger"
RESERVE = "ledger reserve --ledger new.ledger --data rows --delta 1e-5 --epsilon"
LIMIT = "ledger limit --ledger new.ledger --delta 1e-5 --epsilon"
RUN = "run --embeddings private --public public --ledger"
MODEL = "model/model.safetensors"

CASES = table(
    ("no model", f"{SET} nowhere", r"release must be an existing directory, got nowhere"),
    (
        "model that is a file",
        f"{SET} table.csv",
        r"release must be an existing directory, got table",
    ),
    ("model that is a set", f"{SET} private", r"private/(model\.safetensors|report\.json)"),
    ("truncated model", f"{SET} model", r"model/model\.safetensors must .*got", cut(MODEL)),
    ("empty model", f"{SET} model", r"model/model\.safetensors must .*got", cut(MODEL, 0)),
    ("model without weights", f"{SET} model", r"model/model\.safetensors", gone(MODEL)),
    ("weights that are a folder", f"{SET} model", r"model/model\.safetensors", as_folder(MODEL)),
    ("model without a report", f"{SET} model", r"model/report\.json", gone("model/report.json")),
    (
        "report that is no JSON",
        f"{SET} model",
        r"model/report\.json",
        put("model/report.json", "{"),
    ),
    (
        "report that is a list",
        f"{SET} model",
        r"model/report\.json",
        put("model/report.json", "[1]"),
    ),
    (
        "transform for a model",
        f"{SET} model",
        r"model\.safetensors: weights must be .* got none",
        put(MODEL, b"\x08" + b"\0" * 7 + b"{}      "),
    ),
    ("embeddings of another encoder", "predict --model model --embeddings foreign", r"one encoder"),
    ("embeddings of another width", "predict --model model --embeddings narrow", r"must .* got"),
    (
        "embeddings of NaN",
        "predict --model model --embeddings nan",
        r"got nan in row 7 of nan/embeddings\.npy",
    ),
    (
        "neither pictures nor embeddings",
        "predict --model model",
        r"exactly one of data and embeddings must be given, got neither",
    ),
    ("both pictures and embeddings", f"{SET} model --data pictures", r"must be given, got both"),
    (
        "encoder beside embeddings",
        f"{SET} model --encoder timm:resnet18",
        r"encoder must be left out with embeddings, got",
    ),
    (
        "splits that are empty",
        "predict --model model --embeddings train_only --splits test",
        r"splits must hold rows, got none in test",
    ),
    (
        "predictions over the model",
        f"{SET} model --out model --overwrite",
        r"out must not hold what the command reads",
    ),
    (
        "predictions over a model",
        f"{SET} model --out old",
        r"output directory must not exist .* got old",
    ),
    ("predictions where none can be", f"{SET} model --out /proc/nowhere/out", r"/proc/nowhere"),
    (
        "carried encoder that was cut",
        "predict --model model --data pictures",
        r"encoder\.safetensors",
        cut("model/encoder.safetensors"),
    ),
    # evaluate
    (
        "evaluation without rows",
        "evaluate --model model --embeddings train_only",
        r"must hold .*evaluation.* got",
    ),
    (
        "evaluation by another encoder",
        "evaluate --model model --embeddings foreign --users 1",
        r"one encoder",
    ),
    (
        "evaluation without labels",
        "evaluate --model model --embeddings unlabelled",
        r"must have labels",
    ),
    (
        "evaluation of NaN",
        "evaluate --model model --embeddings nan",
        r"must be finite, got nan in row 95 of nan/embeddings\.npy",
    ),
    (
        "evaluation of nobody",
        "evaluate --model model --embeddings nobody",
        r"users must be named by the embedding set, .* got none for nobody",
    ),
    ("evaluation at no epsilon", f"{EVALUATE} --epsilon 0", r"epsilon must be > 0, got 0"),
    ("evaluation at delta one", f"{EVALUATE} --delta 1", r"delta must be in \(0, 1\), got 1"),
    ("negative bins", f"{EVALUATE} --bins -1", r"bins must be .* got -1"),
    (
        "a milliard of bins",
        f"{EVALUATE} --bins 1000000000000",
        r"bins must be .* got 1000000000000",
    ),
    (
        "confidence of one",
        f"{EVALUATE} --confidence 1",
        r"confidence must be in \[0\.5, 0\.999\], got 1",
    ),
    (
        "users of a set that names them",
        f"{EVALUATE} --users 3",
        r"users must be left out for scheme 'own', got 3",
    ),
    (
        "users beyond the rows",
        f"{EVALUATE} --scheme iid --users 1000",
        r"users must be in \[1, 24\], .* got 1000",
    ),
    ("trained on by nobody", f"{EVALUATE} --training nowhere", r"existing directory, got nowhere"),
    (
        "evaluation into the model",
        f"{EVALUATE} --out model --overwrite",
        r"out must not hold what the command reads",
    ),
    (
        "evaluation within a limit",
        f"{EVALUATE} --ledger limited.ledger",
        r"limit of ledger limited\.ledger must be",
    ),
    # export
    (
        "export of nothing",
        f"{EXPORT} nowhere",
        r"release must be an existing directory, got nowhere",
    ),
    ("export of a cut model", f"{EXPORT} model", r"model\.safetensors must .*got", cut(MODEL)),
    (
        "rows exported with an encoder",
        f"{EXPORT} model --encoder timm:resnet18",
        r"encoder must be left out for sklearn, .* got timm",
    ),
    (
        "export without an encoder",
        "export --format torch-export --model bare",
        r"encoder must be given by name and weights",
    ),
    (
        "export with another encoder",
        "export --format torch-export --model bare --encoder other.safetensors",
        r"encoder must be the one that the model learned with",
    ),
    ("export of pictures of nothing", f"{PICTURES} --input-size 0 0", r"input_size must .* got"),
    ("export in no format", "export --format pickle --model model", r"format"),
    (
        "export over the model",
        f"{EXPORT} model --out model --overwrite",
        r"out must not hold what the command reads",
    ),
    ("export below a file", f"{EXPORT} model --out table.csv/x", r"table\.csv"),
    # card
    ("card of nothing", f"{CARD} nowhere", r"release must be an existing directory, got nowhere"),
    ("card of a cut model", f"{CARD} model", r"model\.safetensors must .*got", cut(MODEL)),
    (
        "card without the ledger",
        f"{CARD} model --ledger nowhere",
        r"ledger must be an existing file, got nowhere",
    ),
    (
        "card of a broken ledger",
        f"{CARD} model --ledger broken/broken.ledger",
        r"broken\.ledger.* chain|chain.*broken\.ledger",
    ),
    (
        "card with an evaluation of another",
        f"{CARD} model --evaluation private",
        r"private/evaluation\.json|evaluation must be",
    ),
    (
        "card over the model",
        f"{CARD} model --out model --overwrite",
        r"out must not hold what the command reads",
    ),
    (
        "card over another model",
        f"{CARD} model --out old",
        r"output directory must not exist .* got old",
    ),
    # ledgers
    ("no ledger", f"{SHOW} nowhere.ledger", r"ledger must exist, got nowhere\.ledger"),
    (
        "broken ledger",
        f"{SHOW} broken/broken.ledger",
        r"broken\.ledger.*chain|chain.*broken\.ledger",
    ),
    ("ledger that is a picture", f"{SHOW} pictures/red/0.png", r"pictures/red/0\.png"),
    ("ledger that is a folder", f"{SHOW} pictures", r"pictures"),
    (
        "ledger that was cut at its start",
        f"{SHOW} l.ledger",
        r"l\.ledger",
        put("l.ledger", '{"body": {}}\n'),
    ),
    ("ledger of bytes", f"{SHOW} l.ledger", r"l\.ledger", put("l.ledger", bytes(range(256)))),
    (
        "ledger and set",
        f"{SHOW} spent.ledger --embeddings private",
        r"exactly one of embeddings and ledger must be given, got both",
    ),
    ("ledger at delta two", f"{SHOW} spent.ledger --delta 2", r"delta must be in \(0, 1\), got 2"),
    (
        "ledger at delta NaN",
        f"{SHOW} spent.ledger --delta nan",
        r"delta must be in \(0, 1\), got nan",
    ),
    ("ledger without the entry", f"{SHOW} spent.ledger --reports report.json", r"must"),
    (
        "report without a ledger",
        f"{SHOW} spent.ledger --reports model",
        r"reports must be of results with a ledger, got",
    ),
    ("reserve nothing", f"{RESERVE} 0", r"epsilon must be > 0, got 0"),
    ("reserve NaN", f"{RESERVE} nan", r"epsilon must be > 0, got nan"),
    (
        "reserve at delta one",
        "ledger reserve --ledger new.ledger --data rows --epsilon 1 --delta 1",
        r"delta must be in \(0, 1\), got 1",
    ),
    (
        "reserve with too little noise",
        f"{RESERVE} 1 --sigma .1 --sensitivity 1",
        r"epsilon must be >= [\d.]+, what the noise gives, got 1",
    ),
    (
        "reserve with half of it",
        f"{RESERVE} 1 --sigma 1",
        r"sigma and sensitivity must be given both or neither, got one",
    ),
    ("reserve for nobody", f"{RESERVE} 1 --group-size 0", r"group_size must be >= 1, got 0"),
    (
        "reserve negative compositions",
        f"{RESERVE} 1 --compositions -1",
        r"compositions must be in \[0, inf\), got -1",
    ),
    (
        "reserve in a broken ledger",
        "ledger reserve --ledger broken/broken.ledger --data rows --delta 1e-5 --epsilon 1",
        r"broken\.ledger",
    ),
    (
        "reserve beyond the limit",
        "ledger reserve --ledger limited.ledger --data others --delta 1e-5 --epsilon 1",
        r"limit of ledger limited\.ledger must be >= ",
    ),
    (
        "reserve below a file",
        "ledger reserve --ledger table.csv/l --data rows --delta 1e-5 --epsilon 1",
        r"table\.csv",
    ),
    (
        "reserve in no folder",
        "ledger reserve --ledger no/where --data rows --delta 1e-5 --epsilon 1",
        r"no/where",
    ),
    (
        "spend what was not reserved",
        "ledger spend --ledger spent.ledger --id 0123456789abcdef",
        r"id must .* got '?0123456789abcdef",
    ),
    ("spend from no ledger", "ledger spend --ledger nowhere.ledger --id 0", r"must .* got"),
    ("limit of nothing", f"{LIMIT} 0", r"epsilon must be > 0, got 0"),
    ("limit of NaN", f"{LIMIT} nan", r"epsilon must be > 0, got nan"),
    (
        "limit that is raised",
        "ledger limit --ledger limited.ledger --delta 1e-5 --epsilon 9",
        r"must .* got",
    ),
    ("run with a broken ledger", f"{RUN} broken/broken.ledger", r"broken\.ledger"),
    ("run beyond the limit", f"{RUN} limited.ledger", r"limit of ledger limited\.ledger must be"),
    ("run with a ledger that is a folder", f"{RUN} pictures", r"pictures"),
    ("run with a ledger in no folder", f"{RUN} no/where.ledger", r"no/where"),
    ("run with a ledger that is a model", f"{RUN} model/report.json", r"report\.json"),
)
