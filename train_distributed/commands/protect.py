"""`python -m train_distributed protect`: choose a protection and its strength by measurement."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.choices import Cost

if TYPE_CHECKING:  # the command imports what it needs when it runs
    from train_distributed.research.protection.measure import AttackBenchmark
    from train_distributed.research.protection.mechanisms import StudySettings
    from train_distributed.research.protection.study import Preference, Study
    from train_distributed.research.protection.training import FederatedTraining

COMPONENTS, DIGITS_COMPONENTS = 768, 32
LEAST = {"models": 1, "attacks": 1, "steps": 0, "rounds": 1}
HEAD_DEFAULTS = {"step": 2.0, "rounds": 500, "models": 12, "attacks": 4, "steps": 20}
IMAGE_DEFAULTS = {"step": 0.1, "rounds": 500, "models": 3, "attacks": 4, "steps": 0}


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
    components: int | None = None
    """Principal components of the public embeddings to keep; without it 768, or 32 without data."""
    clients: int = 10
    """Number of clients whose models are summed."""
    rows: int = 500
    """Largest number of records of one client."""
    test_rows: int = 2000
    """Number of test images for --images."""
    batch: int = 1
    """Batch size S of one client's update."""
    step: float | None = None
    """Learning rate of a client's gradient step; without it 2 for a head, .1 for the network."""
    rounds: int | None = None
    """Training rounds before accuracy is measured; without it 500."""
    models: int | None = None
    """Number M of models to attack; without it 12 heads or 3 networks."""
    steps: int | None = None
    """Training rounds R before a model is attacked; without it 20 for a head, 0 for the network."""
    attacks: int | None = None
    """Number T of attacks on each model; without it 4."""
    victims: int | None = None
    """Number of clients to attack; without it all are attacked."""
    threshold: float = 0.9
    """Similarity above which a record counts as recovered, in (0, 1)."""
    half_width: float = 1e-3
    """Half-width δ of the box that a plaintext lies in; used by the formulas only."""
    key_bits: int = 2048
    """Shortest Paillier key to deploy, in bits."""
    servers: int = 3
    """Number J of servers for secret sharing."""
    noise_levels: int = 5
    """Number of noise levels to measure in addition to the formula's optimum."""
    variance_models: int = 32
    """Number of models from which the parameters' standard deviations are estimated."""
    seeds: int = 3
    """Number of training runs per mechanism."""
    seed: int = 0
    """Seed of all randomness; the command is a simulation and protects no data."""
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
        from train_distributed.research.protection.measure import AttackBenchmark
        from train_distributed.research.protection.report import table
        from train_distributed.research.protection.study import run_study

        given = (self.embeddings, self.public, self.images)
        out = output_directory(self.out, "protect", *given, overwrite=self.overwrite)
        preference, settings = self._preference(), self._settings()
        federation = self._federation()
        models = federation.models(self._or("models"), self._or("steps"), self.seed)
        victims = self.clients if self.victims is None else self.victims
        counts = (self._or("attacks"), victims, self.seeds)
        benchmark = AttackBenchmark(federation, self.threshold, tuple(models), *counts, self.seed)
        study = run_study(benchmark, settings, self._or("steps"))
        text = table(study, self.budget, preference, self.cost)
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._write(partial, benchmark, study, preference, text)
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

        options = (self.key_bits, self.servers, self.noise_levels, self.variance_models)
        settings = StudySettings(self.budget, self.half_width, *options)
        check.at_least(1, clients=self.clients, seeds=self.seeds)
        check.within("[0, 2^32)", seed=self.seed)
        check.within("(0, 1)", threshold=self.threshold)
        check_settings(settings, self.clients)
        for name, least in LEAST.items():
            check.at_least(least, **{name: self._or(name)})
        return settings

    def _or(self, name: str) -> int:
        given = getattr(self, name)
        return int(self._default(name)) if given is None else given

    def _default(self, name: str) -> float:
        return (HEAD_DEFAULTS if self.images is None else IMAGE_DEFAULTS)[name]

    def _federation(self) -> "FederatedTraining":
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
            rows=self.rows,
            batch=self.batch,
            step=self._default("step") if self.step is None else self.step,
            rounds=self._or("rounds"),
            seed=self.seed,
        )
        if self.images is not None:
            check.left_out("with images", embeddings=self.embeddings)
            return image_federation(open_images(self.images), options, test_rows=self.test_rows)
        if (self.embeddings is None) != (self.public is None):
            raise ValueError("embeddings and public must be given together, got one")
        widest = DIGITS_COMPONENTS if self.embeddings is None else COMPONENTS
        if self.embeddings is None or self.public is None:
            public, private = pixel_digits()
        else:
            private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
            refuse_leak(public, private)
        components = min(widest, public.dim) if self.components is None else self.components
        transform = PublicTransform.fit(public, components=components)
        return head_federation(private, public, transform, options)

    def _write(
        self,
        partial: Path,
        benchmark: "AttackBenchmark",
        study: "Study",
        preference: "Preference | None",
        text: str,
    ) -> None:
        from train_distributed.research.protection.paillier import arithmetic
        from train_distributed.research.protection.report import (
            as_json,
            draw_reconstructions,
            draw_tradeoff,
        )

        settings = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}
        for name in ("embeddings", "public", "images", "out"):
            settings[name] = None if settings[name] is None else Path(settings[name]).name
        resolved = {n: self._or(n) for n in ("models", "steps", "attacks", "rounds")}
        report = {
            **provenance(),
            "configuration": settings | resolved | {"step": benchmark.federation.options.step},
            "parameters": benchmark.federation.target.parameters,
            "paillier_arithmetic": arithmetic(),
            "simulation": True,
            "suitable_for_release": False,
            **as_json(study, self.budget, preference, self.cost),
        }
        write_json(partial / "report.json", report)
        (partial / "table.txt").write_text(text + "\n", "utf-8")
        title = f"{self.clients} clients, batch {self.batch}, threshold {self.threshold:g}"
        draw_tradeoff(study, self.budget, self.cost, partial / "tradeoff.png", title)
        if self.images is not None:
            draw_reconstructions(benchmark, partial / "reconstructions.png")
