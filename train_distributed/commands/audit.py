"""`python -m train_distributed audit`: is more learned from a release than it promises?"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.choices import Noise, PrivateMethodName
from train_distributed.commands.configuration import RunConfig
from train_distributed.privacy.promise import Privacy, Unit

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.research.audit.attack import Finding
    from train_distributed.research.audit.target import Target

BROKEN = 1  # exit code
FLOAT = ("dp-fl", "amp", "admm-dual", "admm-primal", "charter")  # methods without discrete noise
CUTS = ("charter", "charter-sum")
# Methods without a sum of users' noise that is opened to the audit: it takes no user's noise away.
UNSHARED = ("centralised-softmax", "centralised-svm", "charter-sum", *FLOAT)
ROWS, ROWS_OF_CUTS = 3, 6  # of a user, where none are given; every cut takes some anew
USERS = 2  # where none are given: one of them dishonest
PROMISE = Privacy(3.0, 1e-5)
# Two neighbours differ in one record: its features before and after lie in a plane, its labels are
# two. More dimensions or classes hold noise alone, from which an attacker learns nothing.
FEATURES, CLASSES = 2, 2
LISTS = ("all", "servers")


@dataclass(frozen=True)
class Audit:
    """Attack releases with worst-case neighbours; exit code 1 if a promise is broken."""

    method: Literal["all", "servers", "evaluation"] | PrivateMethodName | None = None
    """Method to attack, of ADMM and Charter the final model; `evaluation`: a private evaluation;
    `all`: a list of configurations of our own methods; `servers`: the same list where two servers
    add the noise and the attacker is one of them (default: as in --config, otherwise all)."""
    epsilon: float | None = None
    """Privacy loss epsilon > 0 that is promised (default: as in --config, otherwise 3)."""
    delta: float | None = None
    """Failure probability delta in (0, 1) (default: as in --config, otherwise 1e-5)."""
    unit: Unit | None = None
    """Unit of protection: one record, or all records of one `user` (default: as in --config,
    otherwise record)."""
    users: int | None = None
    """Number of users; the attacker knows the noise of the dishonest ones (default: 2)."""
    rows: int | None = None
    """Number of rows of every user (default: 3; 6 for Charter)."""
    noise: Noise | None = None
    """Kind of noise (default: discrete where the method has it)."""
    config: Path | None = None
    """Options of the method and of the promise: configuration.json of `rehearse`, or a file of
    three lines as in docs/methods.md (default: the method's own; for rivals, their papers')."""
    canaries: int | None = None
    """Number of records or users with random signs in one release, whose sum bounds epsilon in
    seconds if its noise is Gaussian; 0 for --trials alone (default: 16384, or 1024 where each needs
    a user of its own; none for SGD, further rounds, evaluations and rivals)."""
    trials: int | None = None
    """Number of releases of each neighbour, a bound without that assumption; three times as many
    for float noise in `all` (default: 2000 where there are no canaries, none where there are)."""
    confidence: float = 0.9999
    """Confidence of each lower bound: a method that keeps its promise is found to break it with a
    chance of at most 1 - confidence."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> "Audited":
        """Prints a line per attack, writes audit.json and table.txt.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        from train_distributed.research.audit.attack import attack, numbers

        out = output_directory(self.out, "audit", self.config, overwrite=self.overwrite)
        rows: list[dict[str, Any]] = []
        lines: list[str] = []
        settings = RunConfig.settled(
            self.config,
            RunConfig("all", {}, PROMISE),
            method=self.method,
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
        )
        listed = settings.method in LISTS
        for target in self._list(settings.method) if listed else (self._target(settings),):
            many = numbers(target, self.trials, self.canaries, listed=listed)
            finding = attack(target, **many, confidence=self.confidence)
            for line in (() if rows else (HEADINGS,)) + (_line(target, finding),):
                print(line, flush=True)
                lines.append(line)
            rows.append(_described(target) | finding.as_dict())
        broken = sum(row["broken"] for row in rows)
        confidence = f"{100 * self.confidence:g} % confidence each"
        lines.append(f"{broken} of {len(rows)} promises broken at {confidence}")
        with new_directory(out, overwrite=self.overwrite) as partial:
            write_json(partial / "audit.json", provenance() | {"broken": broken, "audits": rows})
            (partial / "table.txt").write_text("\n".join(lines) + "\n", "utf-8")
        print(f"{lines[-1]}; written: {out}")
        return Audited(out, broken)

    def _list(self, name: str) -> "tuple[Target, ...]":
        from train_distributed.research.audit.target import by_servers, standing

        check.not_set(
            f"for method {name}, whose list states its own",
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            users=self.users,
            rows=self.rows,
            noise=self.noise,
            config=self.config,
        )
        return by_servers() if name == "servers" else standing()

    def _target(self, settings: RunConfig) -> "Target":
        """One method, or an evaluation, in a federation that is hardest to protect."""
        from train_distributed.one_shot.class_prior import with_shares
        from train_distributed.one_shot.registry import clips
        from train_distributed.research.audit.target import TWO, Target
        from train_distributed.research.audit.worst_case import AnswersCase, WorstCase

        method = settings.method
        check.one_of(("evaluation", *get_args(PrivateMethodName)), method=method)
        options = with_shares(settings.options, tuple(map(str, range(CLASSES))))
        if options.get("sums") == 2 or clips(options.get("user_clip"))[0] is not None:
            options = TWO | options
        if method == "evaluation":
            check.not_set("for an evaluation", options=tuple(options))
        settings.privacy.validate()
        rows = ROWS_OF_CUTS if method in CUTS else ROWS
        kind = AnswersCase if method == "evaluation" else WorstCase
        federation = kind(
            USERS if self.users is None else self.users,
            rows if self.rows is None else self.rows,
            FEATURES,
            CLASSES,
            _promise(method, settings.privacy),
        )
        noise = self.noise or ("float" if method in FLOAT else "discrete")
        return Target(method, federation, noise, options)


def _promise(method: str, privacy: Privacy) -> Privacy:
    """All users honest where nobody's noise is another's protection."""
    if method not in UNSHARED:
        return privacy
    if privacy.honest_fraction not in (None, 1):
        raise ValueError(
            f"honest_fraction must be left out or 1 for method {method!r}, whose attacker "
            f"knows no noise of users, got {privacy.honest_fraction}"
        )
    return replace(privacy, honest_fraction=1.0)


@dataclass(frozen=True)
class Audited:
    """Directory that an audit wrote, and how many promises it found broken."""

    directory: Path
    broken: int

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return BROKEN if self.broken else 0


HEADINGS = (
    f"{'method':20} {'noise':8} {'users':>5} {'K':>2} {'promised (eps, delta)':>22}  "
    f"{'eps at least':>12} {'by one run':>10} {'by frequency':>12} {'by curve':>8}  worst pair"
)


def _line(target: "Target", finding: "Finding") -> str:
    federation, claim = target.federation, finding.claim
    once, frequency, curve = (
        "-" if bound is None else f"{bound:.3f}"
        for bound in (finding.one_run, finding.clopper_pearson, finding.gaussian)
    )
    promised = f"({claim.epsilon:.4g}, {claim.delta:g})"
    verdict = "  BROKEN" if finding.broken else ""
    return (
        f"{target.method:20} {target.noise:8} {federation.users:5} {federation.num_classes:2} "
        f"{promised:>22}  {finding.epsilon:12.3f} {once:>10} {frequency:>12} {curve:>8}  "
        f"{finding.pair or f'{finding.canaries} canaries'}{verdict}"
    )


def _described(target: "Target") -> dict[str, Any]:
    described = asdict(target)
    described["federation"]["privacy"] = asdict(target.federation.privacy)
    return described
