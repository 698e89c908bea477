"""Commands and options that have left, and what to do instead: refused in one line."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Retired:
    """An option that has left some commands; one without a name: the commands themselves."""

    commands: tuple[str, ...]  # in full, such as "federation init"
    option: str  # such as "--alpha", "--method class-sums" for a value, or ""
    instead: str  # what to do

    def typed(self, command: str, arguments: Sequence[str]) -> bool:
        """Whether it is among the words that follow the command."""
        if command not in self.commands:
            return False
        name, _, value = self.option.partition(" ")
        words = [word for each in arguments for word in _split(each)]
        if value:  # or its kind, as in open_clip:NAME
            return any(n == name and v.partition(":")[0] == value for n, v in pairwise(words))
        return not name or name in words

    def line(self, command: str) -> str:
        """What is said when it is typed."""
        return f"{f'{command} {self.option}'.strip()} has been retired: {self.instead}"


EMBEDS = ("embed run", "pretrain probe", "predict", "export", "federation join")
METHODS = ("run", "audit", "federation init")  # commands that run a method
CONFIGURED = ("audit", "federation init")  # of these, those that have its options from a file
OF_METHODS = [
    "--l2-reg",
    "--radius",
    "--solver",
    "--epochs",
    "--batch-size",
    "--bound",
    "--prior",
    "--sums",
    "--components",
    "--user-clip",
    "--rounds",
    "--learning-rate",
    "--eps-frac",
    "--eps-out-frac",
    "--rho",
    "--eta",
    "--iterations",
    "--graph",
    "--half-width",
    "--gradient-clip",
    "--cut-rounds",
    "--bits",
    "--constants",
]
FITTED = ("run", "embed fit-transform")  # commands that fit a transform to public rows
BY_RULE = "leave it out, as a public rule decides"
MAPPED = "leave it out, as directions and their lengths follow from public rows and the noise"
COMPILED = "leave it out, as a GPU compiles for 100,000 images or more"
BY_CONFIG = "write it into a file for --config, of three lines as in docs/methods.md"
SIZED = "leave it out; audit --method all has other sizes, users that drop out and more releases"
RAW = "leave it out, as a transform has raw coordinates and run maps them"
RIVALS = (
    *("dp-fl", "output-perturbation", "gradient-perturbation", "dp-svm-smo", "amp"),
    *("centralised-softmax", "centralised-svm", "admm-dual", "admm-primal"),
    *("charter", "charter-sum", "non-private-softmax", "non-private-svm"),
)
OF_RIVALS = (
    *("learning-rate", "eps-frac", "eps-out-frac", "rho", "eta", "iterations", "graph", "edges"),
    *("half-width", "gradient-clip", "cut-rounds", "bits", "constants"),
)
READS = ("embed run", "predict", "evaluate")  # commands that read pictures in any layout
AFTER = "write it after the encoder's name, as in"
FURTHER = (  # settings of `protect`
    *("components", "rows", "test_rows", "batch", "step", "models", "steps", "victims"),
    *("threshold", "half_width", "key_bits", "servers", "noise_levels", "variance_models"),
)
RETIRED = (
    Retired(
        ("embed exclude",), "--private", "give the private set as --embeddings; it alone is changed"
    ),
    Retired(EMBEDS, "--encoder open_clip", "name the same tower as timm:NAME or hf:NAME"),
    Retired(("run", "embed fit-transform"), "--text-encoder open_clip", "take a folder of hf:NAME"),
    Retired(("federation adder",), "", "type federation aggregator"),
    Retired(("federation window",), "--adders", "type --aggregators"),
    Retired(("federation start",), "--superlink", "type --operator"),
    Retired(("export",), "--format sklearn", "take onnx, or train_distributed.Release in Python"),
    Retired(("select",), "", "type rehearse; settings are by a public rule, it predicts accuracy"),
    Retired(("run", "audit"), "--method class-sums", "take --method discriminant"),
    Retired(("run", "audit"), "--method least-squares", "take --method discriminant"),
    Retired(METHODS, "--alpha", BY_RULE),
    Retired(METHODS, "--class-code", "leave it out, as class sums are sent as they are"),
    Retired(METHODS, "--ridge", BY_RULE),
    Retired(METHODS, "--public-share", BY_RULE),
    Retired(METHODS, "--shrinkage", BY_RULE),
    Retired(METHODS, "--moments", "leave it out; second moments are sent unless users are clipped"),
    Retired(("run",), "--prior empirical", "type --prior private"),
    Retired(METHODS, "--centre", "take sums 2 for a private centre, sums 1 for the public one"),
    Retired(METHODS, "--keep", MAPPED),
    Retired(
        METHODS, "--descent-above", "leave it out, as two sums are two sums whatever they show"
    ),
    *(
        Retired(("run",), f"--method {name}", f"type rival {name} in the place of run")
        for name in RIVALS
    ),
    *(
        Retired(METHODS, f"--{name}", "type rival NAME: it is an option of rivals alone")
        for name in OF_RIVALS
    ),
    Retired(("run",), "--scheme", "type simulate --scheme, as run has the users of the set"),
    Retired(
        ("run",), "--users", "type simulate --users, or embed run --one-user for one owner's set"
    ),
    Retired(("run",), "--concentration", "type simulate --concentration"),
    Retired(("run",), "--noise", "type simulate --noise; what run releases has discrete noise"),
    Retired(("run",), "--min-survivors", "leave it out, as all users of a set are there"),
    Retired(("run",), "--transform", "give the file as --public"),
    Retired(("run",), "--encoder-weights", "give them to --with-encoder"),
    Retired(
        ("run",),
        "--vouch-for-transform",
        "fit the transform again, or call train_distributed.release",
    ),
    Retired(("run",), "--most-bytes", "take --components, which bounds the bytes a user sends"),
    Retired(FITTED, "--directions", MAPPED),
    Retired(FITTED, "--leading", MAPPED),
    Retired(FITTED, "--discriminants", MAPPED),
    Retired(FITTED, "--whiten", RAW),
    Retired(FITTED, "--no-whiten", RAW),
    Retired(("embed run",), "--compiled", COMPILED),
    Retired(("embed run",), "--no-compiled", COMPILED),
    Retired(("embed fit-transform",), "--shrinkage", RAW),
    Retired(("embed fit-transform",), "--clip-norm", "leave it out, as features have length 1"),
    Retired(("run",), "--clip-quantile", "give it to embed fit-transform, its file to --public"),
    Retired(("run",), "--constant", "give it to embed fit-transform, its file to --public"),
    Retired(FITTED, "--alike", "take --examples, or --text-encoder for names"),
    Retired(
        FITTED, "--classifier", "take --text-encoder; the encoder's own classes join the names"
    ),
    Retired(("demo",), "--components", MAPPED),
    *(Retired(CONFIGURED, option, BY_CONFIG) for option in OF_METHODS),
    Retired(CONFIGURED, "--edges", "leave it out; take graph regular, ring or star by --config"),
    Retired(("federation init",), "--method", BY_CONFIG),
    Retired(("federation init",), "--noise-by", "leave it out, as the protocol decides"),
    Retired(("audit",), "--noise-by", "take --method servers, or a promise by --config"),
    Retired(("audit",), "--honest-fraction", BY_CONFIG),
    Retired(("audit",), "--group-size", BY_CONFIG),
    Retired(("audit",), "--features", SIZED),
    Retired(("audit",), "--num-classes", SIZED),
    Retired(("audit",), "--min-survivors", SIZED),
    Retired(("audit",), "--releases", SIZED),
    *(
        Retired(READS, f"--{part}-column", f"type --columns {part}=NAME, several joined by commas")
        for part in ("path", "label", "user", "split")
    ),
    Retired(("embed run",), "--split-by", "type --test-share user:0.2 or image:0.2"),
    Retired(("embed run",), "--limit", "give a smaller set as --data"),
    Retired(("embed run",), "--shard", "set RANK=i WORLD_SIZE=n for it, as torchrun does"),
    Retired(("embed run",), "--shard-rows", "leave it out, as shards have 2,048 rows"),
    Retired(
        ("embed run",),
        "--engine",
        "leave it out, as the fastest that agrees with torch is taken (ExtractOptions in Python)",
    ),
    Retired(
        ("embed run",),
        "--compute",
        "leave it out, as the processor decides (ExtractOptions in Python)",
    ),
    Retired(("embed run", "pretrain probe"), "--image-size", f"{AFTER} --encoder NAME@224"),
    Retired(("embed run",), "--crop", f"{AFTER} --encoder NAME@224,crop=0.875"),
    Retired(("embed run",), "--invert", f"{AFTER} --encoder NAME@invert"),
    Retired(("embed run",), "--no-invert", "leave it out, as pictures are embedded as they are"),
    *(
        Retired(
            ("protect",), f"--{name.replace('_', '-')}", f"give {name} in the file of --settings"
        )
        for name in FURTHER
    ),
    Retired(("audit",), "--pipeline", "leave it out, as tests compare neighbours through commands"),
)


def refuse_retired(command: str, arguments: Sequence[str]) -> None:
    """Ends with exit code 2 and one line if the command or one of its options has been retired."""
    for each in RETIRED:
        if each.typed(command, arguments):
            print(each.line(command), file=sys.stderr)
            raise SystemExit(2)


def _split(word: str) -> list[str]:
    """An argument as typed, its name in the spelling of the help and its value apart."""
    if not word.startswith("--"):
        return [word]
    name, equals, value = word.partition("=")
    return [name.replace("_", "-"), *([value] if equals else [])]
