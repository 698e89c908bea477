"""Numbers and words out of range: `run`, `rehearse`, `sweep`, `audit`, `protect`, `account`, …"""

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np

from tests.train_distributed.commands.bad_inputs.case import DEEP, Spoil, put, table
from train_distributed.commands.federation import Join

RUN = "run --embeddings private --public public"
SIMULATE = "simulate --embeddings private --public public"
IID = f"{SIMULATE} --users"
RIVAL = "rival {} --embeddings private --public public"
REHEARSE = "rehearse --public public --users 4 --rows-per-user 12 --num-classes 2"
SWEEP = "sweep frontier --embeddings private --public public"
AUDIT = "audit --method discriminant"
PROTECT = "protect --settings s.json"
CAN = "audit --trials 16 --users 2 --method"
INIT = "federation init --folder fed --hosts localhost --num-classes 2 --parties"
INIT_OF_TWO = f"{INIT} a.party.json b.party.json --transform transform.safetensors"
FIT = "heads fit --data rows --out fitted --num-classes 2 --l2-reg 1 --clip-norm"
PROMISE = {"epsilon": 1.0, "delta": 1e-5}


def further(**settings: object) -> Spoil:
    """A file `s.json` for `protect`."""
    return put("s.json", json.dumps(settings))


def head(x: np.ndarray | None = None, y: np.ndarray | None = None) -> Spoil:
    """A directory `rows` for `heads fit`."""

    def spoil(folder) -> None:
        (folder / "rows").mkdir()
        np.save(folder / "rows" / "embeddings.npy", np.ones((4, 1)) if x is None else x)
        np.save(folder / "rows" / "labels.npy", np.arange(4) % 2 if y is None else y)

    return spoil


def configuration(**changes: Any) -> Spoil:
    """The file of `rehearse`, c.json, with other fields."""
    fields = {"method": "softmax", "options": {"components": 3}}
    return put("c.json", json.dumps(fields | {"privacy": PROMISE} | changes))


def of_two(**changes: Any) -> Spoil:
    """The same and the files of two parties."""

    def spoil(folder) -> None:
        configuration(**changes)(folder)
        for name in "ab":
            with redirect_stdout(StringIO()):
                Join(folder / name, name, rows=8).run()
            (folder / name / f"{name}.party.json").rename(folder / f"{name}.party.json")

    return spoil


CASES = table(
    (f"{RUN} --epsilon 0", r"epsilon must be > 0, got 0"),
    (f"{RUN} --epsilon nan", r"epsilon must be > 0, got nan"),
    (f"{RUN} --epsilon soon", r"epsilon.*soon"),
    (f"{RUN} --delta 1", r"delta must be in \(0, 1\), got 1"),
    (f"{RUN} --delta nan", r"delta must be in \(0, 1\), got nan"),
    (f"{RUN} --delta 1e-320", r"delta must be >= 1e-290"),
    (f"{RUN} --honest-fraction 2", r"honest_fraction must be in \(0, 1\], got 2"),
    (f"{RUN} --group-size 0", r"group_size must be >= 1, got 0"),
    (f"{RUN} --seed -1", r"seed must be in \[0, 2\^63\), got -1"),
    (f"{RUN} --seed {'9' * 30}", r"seed must be in \[0, 2\^63\), got 999"),
    (f"{IID} {'9' * 30}", r"users must be in \[1, 48\], .* got 999"),
    (f"{IID} 0", r"users must be in \[1, 48\], .* got 0"),
    (f"{RUN} --num-classes 9", r"num_classes must be 3"),
    (f"{RUN} --epochs 3", r"Unrecognized options: --epochs"),
    (f"{RUN} --method forest", r"method"),
    (f"{RUN} --colour red", r"--colour"),
    (RIVAL.format("non-private-svm"), r"epsilon must be inf for 'non-private-svm', got 1"),
    (RIVAL.format("amp") + " --noise discrete", r"noise must be 'float' for 'amp'"),
    (RIVAL.format("admm-dual") + " --iterations 0", r"iterations must be >= 1, got 0"),
    (f"{SIMULATE} --seed 1 --noise discrete", r"generator must be None for noise 'discrete'"),
    (f"{SIMULATE} --scheme own --users 4", r"users must be left out for scheme 'own', got 4"),
    (f"{SIMULATE} --scheme dirichlet --users 4", r"concentration must be given"),
    (f"{RUN} --components 9", r"components must be in \[1, 6\], got 9"),
    (f"{RUN} --prior flat", r"prior must be .* got flat"),
    (
        f"{RUN} --prior p.json",
        r"prior must be .*p\.json.*must have the classes blue, green, red",
        put("p.json", '{"cat": 0.5, "dog": 0.5}'),
    ),
    (
        f"{RUN} --method svm --prior p.json",
        r"prior must be 'equal' or 'private' for an SVM",
        put("p.json", '{"blue": 0.2, "green": 0.3, "red": 0.5}'),
    ),
    (RIVAL.format("amp") + " --prior equal", r"Unrecognized options: --prior"),
    ("rival forest", r"forest"),
    (f"{RUN} --user-clip 0", r"user_clip must be finite and > 0, got 0"),
    (f"{RUN} --method softmax --l2-reg 0", r"l2_reg must be finite and > 0, got 0"),
    (f"{RUN} --config table.csv", r"table\.csv"),
    *(
        (f"{RUN} --config c.json", rf"config must be .*c\.json.*{says}", configuration(**change))
        for says, change in (
            ("known_noise is no option", {"options": {"known_noise": [0]}}),
            ("epochs: Expected `int . null`, got `float`", {"options": {"epochs": 2.5}}),
            ("l2_reg: Expected `float . null`, got `bool`", {"options": {"l2_reg": True}}),
            ("edges is no option", {"options": {"edges": 5}}),
            ("method must be one of", {"method": "admm-dual"}),
            ("components: Expected `int . null`, got `str`", {"options": {"components": "3"}}),
            ("Expected `float`, got `str`", {"privacy": {"epsilon": "soon", "delta": 1e-5}}),
            ("unexpected keyword", {"users": 3}),
        )
    ),
    (
        f"{RUN} --config c.json",
        r"privacy must be what config was chosen for",
        configuration(privacy={"epsilon": 1.0, "delta": 1e-5, "unit": "user"}),
    ),
    (f"{RUN} --config c.json", r"config must be .*c\.json", put("c.json", "[]")),
    (f"{RUN} --config c.json", r"config must be .*c\.json", put("c.json", '{"method": 3}')),
    (f"{RUN} --config c.json", r"config must be .*c\.json", put("c.json", DEEP)),
    (f"{RUN} --out old", r"output directory must not exist .* got old"),
    (f"{RUN} --out private --overwrite", r"out must not hold what the command reads"),
    (f"{RUN} --out table.csv --overwrite", r"table\.csv"),
    (f"{RUN} --out /proc/nowhere/out", r"/proc/nowhere"),
    (f"{RUN} --out . --overwrite", r"out must not hold what the command reads"),
    (f"{RUN} --out public --overwrite", r"out must not hold what the command reads"),
    (
        f"{RUN} --with-encoder other.safetensors",
        r"weights must be left out for network\.safetensors, .* got other",
    ),
    # rehearse and sweep
    (f"{REHEARSE} --users 0", r"users must be >= 1, got 0"),
    (f"{REHEARSE} --rows-per-user 0", r"rows_per_user must be >= 1, got 0"),
    (f"{REHEARSE} --epsilon inf", r"epsilon must be finite, .* got inf"),
    (f"{REHEARSE} --epsilon 0", r"epsilon must be > 0, got 0"),
    (f"{REHEARSE} --delta 1", r"delta must be in \(0, 1\), got 1"),
    (f"{REHEARSE} --like nowhere", r"must be an existing directory, got nowhere"),
    (f"{REHEARSE} --num-classes 99", r"must .* got"),
    (f"{REHEARSE} --num-classes 1", r"num_classes must be >= 2, got 1"),
    ("select --public public", r"select has been retired: type rehearse"),
    (f"{REHEARSE} --epsilon", r"epsilon"),
    (f"{REHEARSE} --epsilon 1 0", r"epsilon must be > 0, got 0"),
    (f"{REHEARSE} --epsilon inf", r"epsilon must be finite.* got inf"),
    (f"{REHEARSE} --unit everybody", r"everybody"),
    (f"{REHEARSE} --out public --overwrite", r"out must not hold what the command reads"),
    (f"{SWEEP} --out private --overwrite", r"out must not hold what the command reads"),
    (
        "protect --images private.npz --out . --overwrite",
        r"out must not hold what|output directory",
    ),
    (f"{REHEARSE} --out old", r"output directory must not exist .* got old"),
    ("sweep everything", r"everything"),
    ("sweep frontier", r"embeddings must be given for frontier, got None"),
    (f"{SWEEP} --users 1000", r"users must be in \[1, 48\]"),
    (f"{SWEEP} --epsilons 0", r"epsilons? must be > 0, got .*0"),
    (f"{SWEEP} --seeds 0", r"seeds must be >= 1, got 0"),
    (
        "sweep convergence --embeddings private",
        r"embeddings must be left out for convergence, got private",
    ),
    ("plot report.json", r"results must be the JSON of a sweep, got"),
    (
        "plot r.json.gz",
        r"results must be the JSON of a sweep, got",
        put("r.json.gz", b"\x1f\x8b\0"),
    ),
    ("plot r.json", r"results must be the JSON of a sweep", put("r.json", DEEP)),
    ("plot r.json", r"results must", put("r.json", '{"experiment": "frontier"}')),
    ("plot r.json", r"results must be", put("r.json", '{"experiment": []}')),
    # audit, protect, account
    (f"{AUDIT} --trials 8", r"trials must be >= .* got 8"),
    (f"{AUDIT} --canaries 1", r"canaries must be >= 2, got 1"),
    (f"{AUDIT} --users 0", r"users must be .* got 0"),
    (f"{AUDIT} --rows 0", r"rows must be .* got 0"),
    (f"{AUDIT} --canaries 0 --rows 1000000000000", r"memory must suffice, got: Unable to allocate"),
    (f"{AUDIT} --confidence 1", r"confidence must be in \(0, 1\), got 1"),
    (f"{AUDIT} --epsilon -3", r"epsilon must be > 0, got -3"),
    (f"{AUDIT} --epsilon inf", r"epsilon must be finite for an audit, got inf"),
    ("audit --epsilon 1", r"epsilon must be left out for method all, whose list states its own"),
    ("audit --method servers --users 2", r"users must be left out for method servers"),
    *(
        (f"audit --trials 16 --config c.json {typed}", says, configuration(**change))
        for typed, says, change in (
            ("--users 1", r"group_size must be <= 3", {"privacy": PROMISE | {"group_size": 9}}),
            ("--method svm", r"method must be softmax as config says, or be left out, got svm", {}),
            ("--epsilon 2", r"epsilon must be 1\.0 as config says, or be left out, got 2", {}),
            ("--unit user", r"unit must be record as config says, or be left out, got user", {}),
            ("", r"known_noise is no option", {"options": {"known_noise": [0]}}),
            ("", r"l2_reg must be finite and > 0, got 0", {"options": {"l2_reg": 0}}),
            ("", r"method must be one of .* got 'forest'", {"method": "forest"}),
            ("", r"method must be one of .* got 'non-private-svm'", {"method": "non-private-svm"}),
            ("", r"config must be left out for method all", {"method": "all"}),
            ("", r"options must be left out for an evaluation", {"method": "evaluation"}),
            ("", r"options must fit method 'svm'", {"method": "svm", "options": {"rounds": 3}}),
            (
                "--canaries 9",
                r"canaries must be left out or 0 for method 'softmax' with these settings",
                {"options": {"solver": "sgd", "epochs": 2, "batch_size": 2}},
            ),
            (
                "",
                r"honest_fraction must be left out or 1 for method 'admm-dual'",
                {"method": "admm-dual", "privacy": PROMISE | {"honest_fraction": 0.5}},
            ),
        )
    ),
    (f"{AUDIT} --out old", r"output directory must not exist .* got old"),
    ("protect --budget -1", r"budget must be .* got -1"),
    ("protect --clients 0", r"clients must be .* got 0"),
    (PROTECT, r"threshold must be in \(0, 1\), got 2", further(threshold=2)),
    ("protect --embeddings private", r"embeddings and public must be given together, got one"),
    ("protect --embeddings private --public foreign", r"one encoder"),
    ("protect --embeddings unlabelled --public public", r"embeddings must have labels"),
    ("protect --attacks 0", r"attacks must be >= 1, got 0"),
    ("protect --seed -1 --rounds 1", r"seed must be .* got -1"),
    (PROTECT, r"servers must be .* got 1", further(servers=1)),
    (PROTECT, r"key_bits must be >= 2048", further(key_bits=1024)),
    (PROTECT, r"half_width must be finite and > 0", further(half_width=0)),
    (PROTECT, r"s\.json must be a readable JSON object", put("s.json", "{")),
    (PROTECT, r"s\.json must be a readable JSON object", put("s.json", '{"step": NaN}')),
    (PROTECT, r"s\.json must be a JSON object, got list", put("s.json", "[]")),
    (PROTECT, r"s\.json must have names of components, .* got model", further(model=3)),
    (PROTECT, r"s\.json: rows: Expected `int`, got `str`, got 'all'", further(rows="all")),
    (PROTECT, r"s\.json: models: Expected `int`, got `bool`", further(models=True)),
    (PROTECT, r"s\.json: step: Expected `float`, got `null`", further(step=None)),
    ("protect --settings nowhere.json", r"nowhere\.json must be a readable JSON object"),
    ("protect --clients 2501", r"users must be in \[1, 2500\]"),
    (PROTECT, r"models must be >= 1", further(models=0)),
    ("protect --prefer-utility -1", r"prefer_utility must be in \[0, inf\)"),
    ("protect --prefer-utility 0", r"must not both be 0"),
    ("protect --images nowhere.npz", r"images must be"),
    (
        f"{PROTECT} --clients 3",
        r"victims must be in \[1, 3\]",
        further(models=1, steps=0, victims=4),
    ),
    ("account --epsilon 1", r"exactly two of .* must be given, got 1"),
    (
        "account --epsilon 1 --delta .1 --noise-multiplier 1",
        r"exactly two of .* must be given, got 3",
    ),
    ("account --epsilon 0 --delta 1e-5", r"epsilon must be > 0, got 0"),
    ("account --epsilon 1 --delta 2", r"delta must be in \(0, 1\), got 2"),
    ("account --epsilon 1 --delta 1e-5 --compositions 0", r"compositions must be .* >= 1, got 0"),
    ("account --epsilon nan --noise-multiplier 1", r"epsilon must be .* got nan"),
    (
        "account --epsilon 1 --delta .1 --users 9 --noise-by servers --honest-fraction .5",
        r"honest_fraction must be left out where servers add the noise",
    ),
    (
        "account --epsilon 1 --delta .1 --honest-fraction 1",
        r"honest_fraction must be left out without users",
    ),
    # audit of methods
    (f"{CAN} amp --canaries 9", r"canaries must be left out or 0 for method 'amp'"),
    (f"{CAN} charter-sum --noise float", r"noise must be 'discrete'"),
    (f"{CAN} amp --noise discrete", r"noise must be 'float' for 'amp'"),
    (f"{CAN} charter --rows 2", r"rounds must be <= rows/3"),
    (f"{CAN} non-private-svm", r"method"),
    # the program
    (
        "forest",
        r"one of .*audit, protect, ledger, federation, pretrain.* got forest",
    ),
    ("pretrain forest", r"simclr, convert, probe"),
    ("embed", r"command must be one of run, .* got none"),
    ("heads train", r"command must be 'fit', got train"),
    ("heads fit", r"--data"),
    # federation
    ("federation join --folder me --name '' --rows 3", r"name must be .* got ''"),
    ("federation join --folder me --name '../A' --rows 3", r"name must be .* got '\.\./A'"),
    ("federation join --folder me --name 'H A' --rows 3", r"name must be 1 to 40 of a-z"),
    ("federation join --folder me --name a --rows 1 --server", r"be left out for a server"),
    (
        "federation join --folder me --name a",
        r"exactly one of rows and embeddings must be given, got",
    ),
    ("federation join --folder me --name a --rows 0", r"rows must be in \[1, \d+\], got 0"),
    (
        "federation join --folder me --name a --embeddings nowhere",
        r"existing directory, got nowhere",
    ),
    ("federation join --folder table.csv/me --name a --rows 3", r"table\.csv"),
    ("federation join --folder table.csv --name a --rows 3", r"table\.csv"),
    ("federation join --folder me --name a --embeddings unlabelled", r"must have labels"),
    (f"{INIT} nowhere.party.json --transform transform.safetensors", r"nowhere\.party\.json"),
    (f"{INIT} table.csv --transform transform.safetensors", r"table\.csv"),
    *(
        (f"{INIT} a --transform transform.safetensors --config c.json {typed}", says, spoil)
        for typed, says, spoil in (
            ("", r"config must be what rehearse wrote, got c\.json", put("c.json", "[]")),
            ("", r"config must be .*c\.json", put("c.json", DEEP)),
            (
                "",
                r"config must be .*known_noise is no",
                configuration(options={"known_noise": [0]}),
            ),
            ("--epsilon 2", r"epsilon must be 1\.0 as config says, .* got 2", configuration()),
            ("--delta .1", r"delta must be 1e-05 as config says, .* got 0\.1", configuration()),
            ("--group-size 2", r"group_size must be 1 as config says, .* got 2", configuration()),
        )
    ),
    *(
        (f"{INIT_OF_TWO} --config c.json", says, of_two(**change))
        for says, change in (
            (r"method must be one of discriminant, findings.* got 'amp'", {"method": "amp"}),
            (r"transform must be fitted on the set config was", {"public_hash": "0" * 64}),
            (r"bits is no option, those are l2_reg", {"options": {"bits": 3}}),
            (r"components must be in \[1, .* got 99", {"options": {"components": 99}}),
            (r"prior must have the classes", {"options": {"prior": {"cat": 0.5, "dog": 0.5}}}),
            (r"prior must hold shares of sum 1", {"options": {"prior": {"0": 0.5, "1": 0.6}}}),
            (r"config must be .*prior", {"options": {"prior": "p.json"}}),
            (r"noise_by must be 'users' with", {"privacy": PROMISE | {"noise_by": "servers"}}),
        )
    ),
    (f"{INIT} a --port 0", r"port must be in \[1, 65535\], got 0"),
    (
        "federation init --folder old --hosts localhost --parties a",
        r"output directory must not exist, got old",
    ),
    ("federation init --folder fed --parties a", r"hosts must be given, got none"),
    ("federation status --folder private", r"must|private"),
    ("federation start --folder private", r"must|private"),
    # heads
    (f"{FIT} 1.5", r"data must hold a readable embeddings\.npy, got"),
    (f"{FIT} .5", r"clip_norm|norm.* got", head()),
    (f"{FIT} 1.5", r"finite", head(x=np.full((4, 1), np.nan))),
    (f"{FIT} 1.5", r"y must lie in \[0, 2\), got 2", head(y=np.array([0, 1, 2, 1]))),
    (f"{FIT} 1.5", r"labels\.npy must hold integers, got float64", head(y=np.ones(4))),
    (f"{FIT} -1", r"clip_norm must be .* got -1", head()),
    (
        "heads fit --data rows --out old --num-classes 2 --l2-reg 1 --clip-norm 2",
        r"out must not exist, got old",
        head(),
    ),
    *(
        (f"{FIT} 2 {option}", says, head())
        for option, says in (
            ("--l2-reg 0", r"l2_reg must be finite and > 0, got 0"),
            ("--radius 1", r"head must have radius None for an exact solution, got 1"),
            ("--solver sgd --epochs 0", r"epochs must be >= 1, got 0"),
            ("--method forest", r"forest"),
            ("--l2-reg much", r"much"),
        )
    ),
    (f"{FIT} 2", r"\(n,\), got \(4, 1\) and \(3,\)", head(y=np.zeros(3, int))),
    (f"{FIT} 2", r"data must hold a readable labels\.npy", head(y=np.array([{}] * 4, object))),
    (f"{FIT} 2 --noise-multiplier 0", r"noise_multiplier must be finite and > 0, got 0", head()),
    (f"{FIT} 2 --data unlabelled", r"must have labels to learn from, got unlabelled"),
    (f"{FIT} 2", r"must .* got|n must be", head(x=np.zeros((0, 1)), y=np.zeros(0, int))),
)
