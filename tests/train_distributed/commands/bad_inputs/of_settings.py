"""Numbers and words out of range: `run`, `select`, `sweep`, `audit`, `protect`, `account`, …"""

import numpy as np

from tests.train_distributed.commands.bad_inputs.case import Spoil, put, table

RUN = "run --embeddings private --public public"
IID = f"{RUN} --scheme iid --users"
SELECT = "select --public public --users 4 --rows-per-user 12 --num-classes 2"
SWEEP = "sweep accuracy --embeddings private --public public"
AUDIT = "audit --method class-sums"
INIT = "federation init --folder fed --hosts localhost --num-classes 2 --parties"
FIT = "heads fit --data rows --out fitted --num-classes 2 --l2-reg 1 --clip-norm"


def head(x: np.ndarray | None = None, y: np.ndarray | None = None) -> Spoil:
    """A directory `rows` for `heads fit`."""

    def spoil(folder) -> None:
        (folder / "rows").mkdir()
        np.save(folder / "rows" / "embeddings.npy", np.ones((4, 1)) if x is None else x)
        np.save(folder / "rows" / "labels.npy", np.arange(4) % 2 if y is None else y)

    return spoil


CASES = table(
    ("no epsilon", f"{RUN} --epsilon 0", r"epsilon must be > 0, got 0"),
    ("epsilon of NaN", f"{RUN} --epsilon nan", r"epsilon must be > 0, got nan"),
    ("epsilon of a word", f"{RUN} --epsilon soon", r"epsilon.*soon"),
    ("delta of one", f"{RUN} --delta 1", r"delta must be in \(0, 1\), got 1"),
    ("delta of NaN", f"{RUN} --delta nan", r"delta must be in \(0, 1\), got nan"),
    ("delta below all numbers", f"{RUN} --delta 1e-320", r"delta must be >= 1e-290"),
    (
        "more than all are honest",
        f"{RUN} --honest-fraction 2",
        r"honest_fraction must be in \(0, 1\], got 2",
    ),
    ("group of nobody", f"{RUN} --group-size 0", r"group_size must be >= 1, got 0"),
    ("negative seed", f"{RUN} --seed -1", r"seed must be in \[0, 2\^63\), got -1"),
    ("huge seed", f"{RUN} --seed {'9' * 30}", r"seed must be in \[0, 2\^63\), got 999"),
    ("huge number of users", f"{IID} {'9' * 30}", r"users must be in \[1, 48\], .* got 999"),
    ("no users", f"{IID} 0", r"users must be in \[1, 48\], .* got 0"),
    ("too many classes", f"{RUN} --num-classes 9", r"num_classes must be 3"),
    ("no survivors", f"{RUN} --min-survivors 0", r"min_survivors|honest user"),
    ("option of another method", f"{RUN} --epochs 3", r"options must fit method 'discriminant'"),
    ("method that is none", f"{RUN} --method forest", r"method"),
    ("option that is none", f"{RUN} --colour red", r"--colour"),
    ("ridge of NaN", f"{RUN} --method least-squares --ridge nan", r"ridge must be .* got nan"),
    ("infinite ridge", f"{RUN} --method least-squares --ridge inf", r"ridge must be .* got inf"),
    ("prior that is no file", f"{RUN} --prior flat", r"prior must be .* got flat"),
    (
        "prior of other classes",
        f"{RUN} --prior p.json",
        r"prior must be .*p\.json.*wanted",
        put("p.json", '{"cat": 0.5, "dog": 0.5}'),
    ),
    (
        "prior of a margin",
        f"{RUN} --method svm --prior equal",
        r"prior must be 'empirical' for an SVM",
    ),
    ("prior of a rival", f"{RUN} --method amp --noise float --prior equal", r"options must fit"),
    (
        "users clipped to nothing",
        f"{RUN} --method class-sums --user-clip 0",
        r"user_clip must be finite and > 0, got 0",
    ),
    (
        "regulariser of zero",
        f"{RUN} --method softmax --l2-reg 0",
        r"l2_reg must be finite and > 0, got 0",
    ),
    ("configuration that is none", f"{RUN} --config table.csv", r"table\.csv"),
    ("configuration of a list", f"{RUN} --config c.json", r"c\.json|config", put("c.json", "[]")),
    (
        "configuration of nonsense",
        f"{RUN} --config c.json",
        r"c\.json|config",
        put("c.json", '{"method": 3}'),
    ),
    ("run over a model", f"{RUN} --out old", r"output directory must not exist .* got old"),
    (
        "run over its rows",
        f"{RUN} --out private --overwrite",
        r"out must not hold what the command reads",
    ),
    ("run over a file", f"{RUN} --out table.csv --overwrite", r"table\.csv"),
    ("run where none can be", f"{RUN} --out /proc/nowhere/out", r"/proc/nowhere"),
    (
        "run over its folder",
        f"{RUN} --out . --overwrite",
        r"out must not hold what the command reads",
    ),
    (
        "encoder to carry that is another",
        f"{RUN} --with-encoder --encoder-weights other.safetensors",
        r"weights must be left out for network\.safetensors, .* got other",
    ),
    (
        "weights without the encoder",
        f"{RUN} --encoder-weights x",
        r"encoder_weights must be left out .* got x",
    ),
    # select and sweep
    ("select for nobody", f"{SELECT} --users 0", r"users must be >= 1, got 0"),
    ("select without rehearsal", f"{SELECT} --tasks 0", r"tasks must be >= 1, got 0"),
    ("select with too many classes", f"{SELECT} --num-classes 99", r"must .* got"),
    ("select with one class", f"{SELECT} --num-classes 1", r"num_classes must be >= 2, got 1"),
    ("select with a concentration", f"{SELECT} --concentration 1", r"concentration must be"),
    (
        "select over its rows",
        f"{SELECT} --out public --overwrite",
        r"out must not hold what the command reads",
    ),
    (
        "sweep over its rows",
        f"{SWEEP} --out private --overwrite",
        r"out must not hold what the command reads",
    ),
    (
        "protect over its pictures",
        "protect --images private.npz --out . --overwrite",
        r"out must not hold what|output directory",
    ),
    ("select over a model", f"{SELECT} --out old", r"output directory must not exist .* got old"),
    ("sweep of nothing", "sweep everything", r"everything"),
    ("sweep without sets", "sweep accuracy", r"embeddings must be given for accuracy, got None"),
    ("sweep with too many users", f"{SWEEP} --users 1000", r"users must be in \[1, 48\]"),
    ("sweep at no epsilon", f"{SWEEP} --epsilons 0", r"epsilons? must be > 0, got .*0"),
    ("sweep with no seeds", f"{SWEEP} --seeds 0", r"seeds must be >= 1, got 0"),
    (
        "sweep of sets that need none",
        "sweep convergence --embeddings private",
        r"embeddings must be left out for convergence, got private",
    ),
    ("plot of no sweep", "plot report.json", r"results must be the JSON of a sweep, got"),
    (
        "plot of bytes",
        "plot r.json.gz",
        r"results must be the JSON of a sweep, got",
        put("r.json.gz", b"\x1f\x8b\0"),
    ),
    (
        "plot of a sweep without rows",
        "plot r.json",
        r"results must",
        put("r.json", '{"experiment": "accuracy"}'),
    ),
    ("plot of a list", "plot r.json", r"results must be", put("r.json", '{"experiment": []}')),
    # audit, protect, account
    ("audit with no trials", f"{AUDIT} --trials 0", r"trials must be >= .* got 0"),
    ("audit with no users", f"{AUDIT} --users 0", r"users must be .* got 0"),
    ("audit with no rows", f"{AUDIT} --rows 0", r"rows must be .* got 0"),
    ("audit with no features", f"{AUDIT} --features 0", r"features must be .* got 0"),
    (
        "audit beyond the memory",
        f"{AUDIT} --rows 1000000000000",
        r"memory must suffice, got: Unable to allocate",
    ),
    ("audit with one class", f"{AUDIT} --num-classes 1", r"num_classes must be .* got 1"),
    (
        "audit with full confidence",
        f"{AUDIT} --confidence 1",
        r"confidence must be in \(0, 1\), got 1",
    ),
    ("audit at no epsilon", f"{AUDIT} --epsilon -3", r"epsilon must be > 0, got -3"),
    ("audit over a model", f"{AUDIT} --out old", r"output directory must not exist .* got old"),
    ("protect for nothing", "protect --budget -1", r"budget must be .* got -1"),
    ("protect with no clients", "protect --clients 0", r"clients must be .* got 0"),
    ("protect above one", "protect --threshold 2", r"threshold must be in \(0, 1\), got 2"),
    (
        "protect with half of the sets",
        "protect --embeddings private",
        r"embeddings and public must be given together, got one",
    ),
    ("protect with no attacks", "protect --attacks 0", r"attacks must be >= 1, got 0"),
    ("protect with a negative seed", "protect --seed -1 --rounds 1", r"seed must be .* got -1"),
    ("protect with one server", "protect --servers 1", r"servers must be .* got 1"),
    ("account of one number", "account --epsilon 1", r"exactly two of .* must be given, got 1"),
    (
        "account of three",
        "account --epsilon 1 --delta .1 --noise-multiplier 1",
        r"exactly two of .* must be given, got 3",
    ),
    ("account at no epsilon", "account --epsilon 0 --delta 1e-5", r"epsilon must be > 0, got 0"),
    ("account at delta two", "account --epsilon 1 --delta 2", r"delta must be in \(0, 1\), got 2"),
    (
        "account of nothing",
        "account --epsilon 1 --delta 1e-5 --compositions 0",
        r"compositions must be .* >= 1, got 0",
    ),
    ("account of NaN", "account --epsilon nan --noise-multiplier 1", r"epsilon must be .* got nan"),
    # federation
    (
        "party without a name",
        "federation join --folder me --name '' --rows 3",
        r"name must be .* got ''",
    ),
    (
        "party of capitals",
        "federation join --folder me --name '../A' --rows 3",
        r"name must be .* got '\.\./A'",
    ),
    (
        "party without rows",
        "federation join --folder me --name a",
        r"exactly one of rows and embeddings must be given, got",
    ),
    (
        "party of no rows",
        "federation join --folder me --name a --rows 0",
        r"rows must be in \[1, \d+\], got 0",
    ),
    (
        "party of nothing",
        "federation join --folder me --name a --embeddings nowhere",
        r"existing directory, got nowhere",
    ),
    (
        "party below a file",
        "federation join --folder table.csv/me --name a --rows 3",
        r"table\.csv",
    ),
    ("party in a file", "federation join --folder table.csv --name a --rows 3", r"table\.csv"),
    (
        "party without labels",
        "federation join --folder me --name a --embeddings unlabelled",
        r"must have labels",
    ),
    (
        "federation of nothing",
        f"{INIT} nowhere.party.json --transform transform.safetensors",
        r"nowhere\.party\.json",
    ),
    ("federation of a table", f"{INIT} table.csv --transform transform.safetensors", r"table\.csv"),
    ("federation at no port", f"{INIT} a --port 0", r"port must be in \[1, 65535\], got 0"),
    (
        "federation over a model",
        "federation init --folder old --hosts localhost --parties a",
        r"output directory must not exist .* got old",
    ),
    (
        "federation without hosts",
        "federation init --folder fed --parties a",
        r"hosts must be given, got none",
    ),
    ("state of no federation", "federation status --folder private", r"must|private"),
    ("start of no federation", "federation start --folder private", r"must|private"),
    # heads
    ("head of nothing", f"{FIT} 1.5", r"data must hold a readable embeddings\.npy, got"),
    ("head of long rows", f"{FIT} .5", r"clip_norm|norm.* got", head()),
    ("head of NaN", f"{FIT} 1.5", r"finite", head(x=np.full((4, 1), np.nan))),
    (
        "head of unknown labels",
        f"{FIT} 1.5",
        r"y must lie in \[0, 2\), got 2",
        head(y=np.array([0, 1, 2, 1])),
    ),
    (
        "head of halves",
        f"{FIT} 1.5",
        r"labels\.npy must hold integers, got float64",
        head(y=np.ones(4)),
    ),
    ("head of a negative norm", f"{FIT} -1", r"clip_norm must be .* got -1", head()),
    (
        "head over a model",
        "heads fit --data rows --out old --num-classes 2 --l2-reg 1 --clip-norm 2",
        r"out must not exist, got old",
        head(),
    ),
    (
        "head with no noise",
        f"{FIT} 2 --noise-multiplier 0",
        r"noise_multiplier must be finite and > 0, got 0",
        head(),
    ),
    (
        "head of no rows",
        f"{FIT} 2",
        r"must .* got|n must be",
        head(x=np.zeros((0, 1)), y=np.zeros(0, int)),
    ),
)
