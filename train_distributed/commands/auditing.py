"""Attacks: `audit` on promises, `protect` on training without any."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from pretrain.public import function
from train_distributed.commands.options import Cost, Noise, PrivateMethodName, RunConfig
from train_distributed.privacy.promise import Privacy, Unit

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.research.audit.attack import Finding
    from train_distributed.research.audit.target import Target
    from train_distributed.research.protection.mechanisms import StudySettings
    from train_distributed.research.protection.study import AttackBenchmark, Preference, Study
    from train_distributed.research.protection.training import FederatedTraining

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
    """Method to attack (for ADMM and Charter the final model); `evaluation`: a private evaluation;
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
            (*LISTS, "evaluation", *get_args(PrivateMethodName)),
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


audit = function("audit", Audit)


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


COMPONENTS, DIGITS_COMPONENTS = 768, 32


@dataclass(frozen=True)
class Protect:
    """Recommend a protection for a leakage budget, by attacking and measuring each of them.

    Without --embeddings or --images, a softmax head on 5,000 handwritten digits is attacked.
    """

    budget: float = 0.4
    """Largest leakage allowed, in √JS of natural logarithms: 0 is nothing, .833 everything."""
    prefer_utility: float | None = None
    """Weight η_u of accuracy lost, as a fraction of 1."""
    prefer_efficiency: float | None = None
    """Weight η_e of an extra megabit or second; without both weights the Pareto front is shown."""
    cost: Cost = "megabits"
    """Unit of cost: extra megabits per client and message, or extra CPU seconds."""
    embeddings: Path | None = None
    """Embedding set with private rows; the attacked model is a softmax head."""
    public: Path | None = None
    """Public embedding set: fits the transform, and the blind attacker guesses from it."""
    images: str | None = None
    """Image set with writers; the attacked model is a small convolutional network."""
    clients: int = 10
    """Number of clients whose models are summed."""
    rounds: int = 500
    """Training rounds before accuracy is measured."""
    attacks: int = 4
    """Number T of attacks on each model."""
    seeds: int = 3
    """Number of training runs per mechanism."""
    seed: int = 0
    """Seed of all randomness; the command is a simulation and protects no data."""
    settings: Path | None = None
    """JSON file with further settings, such as {"models": 36, "noise_levels": 8};
    docs/research.md says which."""
    out: Path | None = None
    """Directory to write; without it a new one under runs/ is made."""
    overwrite: bool = False
    """Replace the output directory if it exists."""

    def run(self) -> Path:
        """Prints the table, writes report.json, table.txt and pictures.

        Raises:
            ValueError: a setting out of range, or a budget that no mechanism reaches.
            FileExistsError: the directory exists.
        """
        from train_distributed.research.protection.report import table
        from train_distributed.research.protection.study import AttackBenchmark, run_study

        given = (self.embeddings, self.public, self.images, self.settings)
        out = output_directory(self.out, "protect", *given, overwrite=self.overwrite)
        preference, settings = self._preference(), self._settings()
        federation = self._federation(settings)
        models = tuple(federation.models(settings.models, settings.steps, self.seed))
        victims = self.clients if settings.victims is None else settings.victims
        counts = (self.attacks, victims, self.seeds)
        benchmark = AttackBenchmark(federation, settings.threshold, models, *counts, self.seed)
        study = run_study(benchmark, self.budget, settings)
        text = table(study, self.budget, preference, self.cost)
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._write(partial, benchmark, study, settings, preference, text)
        print(f"{text}\n\nwritten: {out}")
        return out

    def _preference(self) -> "Preference | None":
        from train_distributed.research.protection.study import Preference

        given = (self.prefer_utility, self.prefer_efficiency)
        if given == (None, None):
            return None
        return Preference(*(value or 0.0 for value in given), cost=self.cost)

    def _settings(self) -> "StudySettings":
        from train_distributed.research.protection.mechanisms import StudySettings
        from train_distributed.research.protection.study import check_settings

        settings = StudySettings.read(self.settings, images=self.images is not None)
        check.at_least(1, clients=self.clients, seeds=self.seeds)
        check.within("[0, 2^32)", seed=self.seed)
        check.within("[0, inf)", budget=self.budget)
        check_settings(settings, self.clients)
        check.at_least(1, attacks=self.attacks, rounds=self.rounds)
        return settings

    def _federation(self, settings: "StudySettings") -> "FederatedTraining":
        from embed import EmbeddingSet, PublicTransform
        from embed.identity import refuse_leak
        from pretrain.sources import open_images
        from train_distributed.research.protection.training import (
            FederationOptions,
            head_federation,
            image_federation,
        )
        from train_distributed.simulation.digits import pixel_digits

        options = FederationOptions(
            clients=self.clients,
            rows=settings.rows,
            batch=settings.batch,
            step=settings.step,
            rounds=self.rounds,
            seed=self.seed,
        )
        if self.images is not None:
            check.not_set("with images", embeddings=self.embeddings)
            return image_federation(open_images(self.images), options, test_rows=settings.test_rows)
        if (self.embeddings is None) != (self.public is None):
            raise ValueError("embeddings and public must be given together, got one")
        widest = DIGITS_COMPONENTS if self.embeddings is None else COMPONENTS
        if self.embeddings is None or self.public is None:
            public, private = pixel_digits()
        else:
            private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
            refuse_leak(public, private)
        usual = min(widest, public.dim)
        components = usual if settings.components is None else settings.components
        transform = PublicTransform.fit(public, components=components)
        return head_federation(private, public, transform, options)

    def _write(
        self,
        partial: Path,
        benchmark: "AttackBenchmark",
        study: "Study",
        settings: "StudySettings",
        preference: "Preference | None",
        text: str,
    ) -> None:
        from train_distributed.research.protection.paillier import arithmetic
        from train_distributed.research.protection.report import (
            as_json,
            draw_reconstructions,
            draw_tradeoff,
        )

        options = asdict(self)
        for name in ("embeddings", "public", "images", "settings", "out"):
            options[name] = None if options[name] is None else Path(options[name]).name
        report = {
            **provenance(),
            "configuration": options | msgspec.structs.asdict(settings),
            "parameters": benchmark.federation.target.parameters,
            "paillier_arithmetic": arithmetic(),
            "simulation": True,
            "suitable_for_release": False,
            **as_json(study, self.budget, preference, self.cost),
        }
        write_json(partial / "report.json", report)
        (partial / "table.txt").write_text(text + "\n", "utf-8")
        title = f"{self.clients} clients, batch {settings.batch}, threshold {settings.threshold:g}"
        draw_tradeoff(study, self.budget, self.cost, partial / "tradeoff.png", title)
        if self.images is not None:
            draw_reconstructions(benchmark, partial / "reconstructions.png")


protect = function("protect", Protect)
