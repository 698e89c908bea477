"""`python -m train_distributed audit`: is more learned from a release than it promises?"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.choices import MethodGroup, Noise, PrivateMethodName
from train_distributed.one_shot.method_options import MethodOptions
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.research.audit.attack import Finding
    from train_distributed.research.audit.target import Target

BROKEN = 1  # exit code
FLOAT = ("dp-fl", "amp", "admm-dual", "admm-primal", "charter")  # methods without discrete noise
CUTS = ("charter", "charter-sum")
# Methods without a sum of users' noise that is opened to the audit: it takes no user's noise away.
UNSHARED = ("centralised-softmax", "centralised-svm", "charter-sum", *FLOAT)
ROWS, ROWS_OF_CUTS = 3, 6  # of a user, where none are given; every cut takes some anew


@dataclass(frozen=True)
class Audit:
    """Attack releases with worst-case neighbours; exit code 1 if a promise is broken."""

    method: Literal["all", "evaluation"] | PrivateMethodName = "all"
    """Target: one method as configured below; `all`: a list of configurations of our own methods;
    `evaluation`: a private evaluation. For ADMM and Charter, the final model. Of the privacy
    options, `all` reads --noise-by alone: with `servers` the attacker knows one server's noise."""
    privacy: Privacy = field(default_factory=lambda: Privacy(3.0, 1e-5))
    options: MethodGroup = field(default_factory=MethodOptions)
    users: int = 2
    """Number of users; the attacker knows the noise of the dishonest ones."""
    rows: int | None = None
    """Number of rows of every user (default: 3; 6 for Charter)."""
    features: int = 2
    """Dimension of an embedding."""
    num_classes: int = 2
    """Number of classes K."""
    noise: Noise | None = None
    """Kind of noise (default: discrete where the method has it)."""
    min_survivors: int | None = None
    """Number of users whose sum is opened; the others drop out (default: all)."""
    releases: int = 1
    """Number of releases of the same data, the r-th with ε/r, whose promises compose."""
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

        out = output_directory(self.out, "audit", overwrite=self.overwrite)
        rows: list[dict[str, Any]] = []
        lines: list[str] = []
        for target in self._targets():
            many = numbers(target, self.trials, self.canaries, listed=self.method == "all")
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

    def _targets(self) -> "tuple[Target, ...]":
        from train_distributed.research.audit.target import Target, by_servers, standing
        from train_distributed.research.audit.worst_case import AnswersCase, WorstCase

        if self.method == "all":
            return by_servers() if self.privacy.noise_by == "servers" else standing()
        check.at_least(1, releases=self.releases)
        self.privacy.validate()
        rows = ROWS_OF_CUTS if self.method in CUTS else ROWS
        kind = AnswersCase if self.method == "evaluation" else WorstCase
        federation = kind(
            self.users,
            rows if self.rows is None else self.rows,
            self.features,
            self.num_classes,
            self._promise(),
            self.min_survivors,
        )
        noise = self.noise or ("float" if self.method in FLOAT else "discrete")
        return (Target(self.method, federation, noise, self.options.given(), self.releases),)

    def _promise(self) -> Privacy:
        """All users honest where nobody's noise is another's protection."""
        if self.method not in UNSHARED:
            return self.privacy
        if self.privacy.honest_fraction not in (None, 1):
            raise ValueError(
                f"honest_fraction must be left out or 1 for method {self.method!r}, whose attacker "
                f"knows no noise of users, got {self.privacy.honest_fraction}"
            )
        return replace(self.privacy, honest_fraction=1.0)


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
