"""`python -m train_distributed protect`: choose a protection and its strength by measurement."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.choices import Cost

if TYPE_CHECKING:  # the command imports what it needs when it runs
    from train_distributed.research.protection.mechanisms import StudySettings
    from train_distributed.research.protection.study import AttackBenchmark, Preference, Study
    from train_distributed.research.protection.training import FederatedTraining

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
    docs/protection.md lists all."""
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
