"""Commands, options and names that have left, and what to do instead: one line each."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Retired:
    """An option that has left some commands; one without a name: the commands themselves."""

    commands: tuple[str, ...]  # in full, such as "federation init"
    option: str  # such as "--alpha", "--method class-sums", "trusted" as the first word, or ""
    instead: str  # what to do

    def typed(self, command: str, arguments: Sequence[str]) -> bool:
        """Whether it is among the words that follow the command."""
        if command not in self.commands:
            return False
        name, _, value = self.option.partition(" ")
        if name and not name.startswith("--"):
            return arguments[:1] == [name]
        words = [word for each in arguments for word in _split(each)]
        if value:  # or its kind, as in open_clip:NAME
            return any(n == name and v.partition(":")[0] == value for n, v in pairwise(words))
        return not name or name in words

    def line(self, command: str) -> str:
        """Error message for a retired command or option: its name, and what to type instead."""
        return f"{f'{command} {self.option}'.strip()} has been retired: {self.instead}"


EMBEDS = ("embed run", "pretrain probe", "predict", "export", "federation join")
METHODS = ("run", "audit", "federation init")  # commands that run a method
CONFIGURED = ("audit", "federation init")  # of these, those that have its options from a file
FITTED = ("run", "embed fit-transform")  # commands that fit a transform to public rows
READS = ("embed run", "predict", "evaluate")  # commands that read pictures in any layout
BY_RULE = "leave it out, as a public rule decides"
MAPPED = "leave it out, as directions and their lengths follow from public rows and the noise"
COMPILED = "leave it out, as a GPU compiles for 100,000 images or more"
BY_CONFIG = "write it into a file for --config, of three lines as in docs/methods.md"
SIZED = "leave it out; audit --method all has other sizes, users that drop out and more releases"
RAW = "leave it out, as a transform has raw coordinates and run maps them"
FITS = "give it to embed fit-transform, its file to --public"
AFTER = "write it after the encoder's name, as in"
RIVALS = (
    *("dp-fl", "output-perturbation", "gradient-perturbation", "dp-svm-smo", "amp"),
    *("centralised-softmax", "centralised-svm", "admm-dual", "admm-primal"),
    *("charter", "charter-sum", "non-private-softmax", "non-private-svm"),
)
OF_RIVALS = (
    *("learning-rate", "eps-frac", "eps-out-frac", "rho", "eta", "iterations", "graph", "edges"),
    *("half-width", "gradient-clip", "cut-rounds", "bits", "constants"),
)
OF_METHODS = (
    *("l2-reg", "radius", "solver", "epochs", "batch-size", "bound"),
    *("prior", "sums", "components", "user-clip", "rounds"),
)
FURTHER = (  # settings of `protect`
    *("components", "rows", "test_rows", "batch", "step", "models", "steps", "victims"),
    *("threshold", "half_width", "key_bits", "servers", "noise_levels", "variance_models"),
)
TABLE: dict[tuple[str, ...], dict[str, str]] = {
    ("embed exclude",): {
        "--private": "give the private set as --embeddings; it alone is changed",
    },
    EMBEDS: {"--encoder open_clip": "name the same tower as timm:NAME or hf:NAME"},
    FITTED: {
        "--text-encoder open_clip": "take a folder of hf:NAME",
        "--directions": MAPPED,
        "--leading": MAPPED,
        "--discriminants": MAPPED,
        "--whiten": RAW,
        "--no-whiten": RAW,
        "--alike": "take --examples, or --text-encoder for names",
        "--classifier": "take --text-encoder; the encoder's own classes join the names",
    },
    ("federation adder",): {"": "type federation aggregator"},
    ("federation renew",): {"": "certificates are valid for five years; then type federation init"},
    ("federation window",): {"--adders": "type --aggregators"},
    ("federation start",): {
        "--superlink": "type --operator",
        "--timeout": "type federation init --deadlines come=SECONDS answer=SECONDS",
    },
    ("federation aggregator",): {
        "--tls": "leave it out, as join or init has made the certificate in FOLDER/tls",
    },
    ("federation aggregator", "federation report", "federation collect"): {
        "--ca": "leave it out, as certificates are agreed on; of a proxy see init --behind-proxy",
    },
    ("embed import-reference",): {"": "make an EmbeddingSet of the arrays and save it"},
    ("embed plot",): {"": "draw the rows of embeddings.npy by scikit-learn's PCA or TSNE"},
    ("export",): {"--format sklearn": "take onnx, or train_distributed.Release in Python"},
    ("select",): {"": "type rehearse; settings are by a public rule, it predicts accuracy"},
    ("run", "audit"): {
        "--method class-sums": "take --method discriminant",
        "--method least-squares": "take --method discriminant",
    },
    ("run",): {
        **{f"--method {name}": f"type rival {name} in the place of run" for name in RIVALS},
        "--prior empirical": "type --prior private",
        "--scheme": "type simulate --scheme, as run has the users of the set",
        "--users": "type simulate --users, or embed run --one-user for one owner's set",
        "--concentration": "type simulate --concentration",
        "--noise": "type simulate --noise; what run releases has discrete noise",
        "--min-survivors": "leave it out, as all users of a set are there",
        "--transform": "give the file as --public",
        "--encoder-weights": "give them to --with-encoder",
        "--vouch-for-transform": "fit the transform again, or call train_distributed.release",
        "--most-bytes": "take --components, which bounds the bytes a user sends",
        "--clip-quantile": FITS,
        "--constant": FITS,
    },
    METHODS: {
        "--alpha": BY_RULE,
        "--class-code": "leave it out, as class sums are sent as they are",
        "--ridge": BY_RULE,
        "--public-share": BY_RULE,
        "--shrinkage": BY_RULE,
        "--moments": "leave it out; second moments are sent unless users are clipped",
        "--centre": "take sums 2 for a private centre, sums 1 for the public one",
        "--keep": MAPPED,
        "--descent-above": "leave it out, as two sums are two sums whatever they show",
        **{f"--{n}": "type rival NAME: it is an option of rivals alone" for n in OF_RIVALS},
    },
    ("embed run",): {
        "--compiled": COMPILED,
        "--no-compiled": COMPILED,
        "--split-by": "type --test-share user:0.2 or image:0.2",
        "--limit": "give a smaller set as --data",
        "--shard": "set RANK=i WORLD_SIZE=n for it, as torchrun does",
        "--shard-rows": "leave it out, as shards have 2,048 rows",
        "--engine": "leave it out, as the fastest that agrees with torch is taken",
        "--compute": "leave it out, as the processor decides (ExtractOptions in Python)",
        "--crop": f"{AFTER} --encoder NAME@224,crop=0.875",
        "--invert": f"{AFTER} --encoder NAME@invert",
        "--no-invert": "leave it out, as pictures are embedded as they are",
    },
    ("embed fit-transform",): {
        "--apply-to": "leave it out, as run maps and compares rows; classes are named by --names",
        "--i-know-this-leaks": "leave it out, as no private rows are given here",
        "--shrinkage": RAW,
        "--clip-norm": "leave it out, as features have length 1",
    },
    ("demo",): {"--components": MAPPED},
    CONFIGURED: {
        **{f"--{name}": BY_CONFIG for name in OF_METHODS},
    },
    ("federation init",): {
        "--places": "leave it out, as up to 1,000 users have a file each, and more fetch it",
        "--bins": "leave it out, as an evaluation has 10 bins of confidence",
        "--method": BY_CONFIG,
        "--noise-by": "leave it out, as the protocol decides",
    },
    ("audit",): {
        "--noise-by": "take --method servers, or a promise by --config",
        "--honest-fraction": BY_CONFIG,
        "--group-size": BY_CONFIG,
        "--features": SIZED,
        "--num-classes": SIZED,
        "--min-survivors": SIZED,
        "--releases": SIZED,
        "--pipeline": "leave it out, as tests compare neighbours through commands",
    },
    READS: {
        **{
            f"--{part}-column": f"type --columns {part}=NAME, several joined by commas"
            for part in ("path", "label", "user", "split")
        },
    },
    ("embed run", "pretrain probe"): {"--image-size": f"{AFTER} --encoder NAME@224"},
    ("pretrain simclr",): {
        "--checkpoint-steps": "leave it out, as each epoch and 200 steps end with a checkpoint",
        "--new-horizon": "begin another run, with all its epochs",
        "--config.accumulate": "take a smaller --config.batch-size",
        "--config.optimizer": "leave it out, as AdamW is taken",
    },
    ("pretrain probe",): {
        "--baselines": "leave it out; another encoder is measured by a probe of its own",
        "--no-baselines": "leave it out, as there are none",
        "--l2-reg": "leave it out, as a tenth of the training rows chooses it",
    },
    ("protect",): {
        **{
            f"--{name.replace('_', '-')}": f"give {name} in the file of --settings"
            for name in FURTHER
        },
    },
    ("sweep",): {
        "accuracy": "type sweep frontier",
        "central": "type sweep users --users 1",
        "groups": "type simulate --group-size, once for each size",
        "rounds": "type simulate --users 1 --rounds, as further rounds are one owner's",
        "selection": "type rehearse, which predicts what run reaches",
        "trusted": "type simulate and rival centralised-softmax",
        "user-level": "type simulate --unit user, once for each epsilon",
        "cost": "leave it out, as reports of run have bytes and seconds",
        "unequal": "type sweep non-iid",
        "--lineup": "leave it out, as every experiment has its own methods",
        "--tasks": "leave it out, as settings are by a public rule",
        "--rounds": "type simulate --users 1 --rounds",
        "--text-encoder": "type simulate --text-encoder",
        "--examples": "type simulate --examples",
    },
}
RETIRED = tuple(
    Retired(commands, option, instead)
    for commands, options in TABLE.items()
    for option, instead in options.items()
)
# Names that a package had in 0.2, and where they are: told for one version.
MOVED = {
    "train_distributed": {
        **{
            name: f"train_distributed.commands.{name}"
            for name in (
                *("account", "audit", "card", "demo", "evaluate", "export", "predict", "protect"),
                *("rehearse", "rival", "run", "simulate", "sweep"),
            )
        },
        "collect_window": "train_distributed.commands.federation_collect",
        "fit_head": "heads.fit_exact, or heads.fit_sgd",
        "init_federation": "train_distributed.commands.federation_init",
        "join_federation": "train_distributed.commands.federation_join",
        "limit_epsilon": "train_distributed.commands.ledger_limit",
        "make_window": "train_distributed.commands.federation_window",
        "merge_ledgers": "train_distributed.commands.ledger_merge",
        "plot_sweep": "train_distributed.commands.plot",
        "report_to_window": "train_distributed.commands.federation_report",
        "reserve_epsilon": "train_distributed.commands.ledger_reserve",
        "run_aggregator": "train_distributed.commands.federation_aggregator",
        "serve_invitation": "train_distributed.commands.federation_invite",
        "show_federation": "train_distributed.commands.federation_status",
        "show_ledger": "train_distributed.commands.ledger_show",
        "spend_epsilon": "train_distributed.commands.ledger_spend",
        "start_federation": "train_distributed.commands.federation_start",
    },
    "embed": {
        "add_constant_and_clip": "embed.clip.add_constant_and_clip",
        "concat_sets": "embed.commands.concat",
        "exclude_public": "embed.commands.exclude",
        "hold_out_rows": "embed.commands.hold_out",
        "import_reference": "embed.EmbeddingSet, made of the arrays and saved",
        "plot_embeddings": "sklearn.manifold.TSNE, of the rows of an EmbeddingSet",
    },
    "pretrain": {
        "convert_checkpoint": "pretrain.commands.convert",
        "probe_encoder": "pretrain.commands.probe",
    },
}


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
