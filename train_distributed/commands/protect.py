"""`python -m train_distributed protect`: choose a protection and its strength by measurement."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pretrain import check
from pretrain.cli.json_text import read_object
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.choices import Cost

if TYPE_CHECKING:  # the command imports what it needs when it runs
    from train_distributed.research.protection.measure import AttackBenchmark
    from train_distributed.research.protection.mechanisms import StudySettings
    from train_distributed.research.protection.study import Preference, Study
    from train_distributed.research.protection.training import FederatedTraining

COMPONENTS, DIGITS_COMPONENTS = 768, 32
OF_IMAGES = {"step": 0.1, "models": 3, "steps": 0}  # defaults of a network instead of a head


class ProtectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a study that its file may give; docs/protection.md explains each."""

    components: int | None = None  # of the public embeddings; None: 768, or 32 without data
    rows: int = 500  # most records of one client
    test_rows: int = 2000  # for images
    batch: int = 1  # S, records in one client's update
    step: float = 2.0  # learning rate of a client's gradient step
    models: int = 12  # M, models to attack
    steps: int = 20  # training rounds R before a model is attacked
    victims: int | None = None  # clients to attack; None: all
    threshold: float = 0.9  # similarity above which a record counts as recovered
    half_width: float = 1e-3  # δ of the box that a plaintext lies in, of the formulas only
    key_bits: int = 2048  # of the shortest Paillier key to deploy
    servers: int = 3  # J of secret sharing
    noise_levels: int = 5  # to measure in addition to the formula's optimum
    variance_models: int = 32  # from which the parameters' deviations are estimated

    @classmethod
    def read(cls, path: Path | None, *, images: bool) -> "ProtectSettings":
        """Settings of a JSON file, defaults for the others; None: defaults alone.

        Args:
            path: the file.
            images: whether a network of images is attacked, which has defaults of its own.

        Raises:
            ValueError: unreadable, an unknown name or a value of another type; names the file.
        """
        given: dict[str, Any] = {} if path is None else read_object(path)
        if unknown := sorted(given.keys() - set(cls.__struct_fields__)):
            known = ", ".join(cls.__struct_fields__)
            raise ValueError(f"{path} must have names of {known}, got {', '.join(unknown)}")
        for name, value in given.items():  # one by one, so that the error names the setting
            try:
                msgspec.convert({name: value}, cls)
            except msgspec.ValidationError as error:
                rule = str(error).partition(" - at")[0]
                raise ValueError(f"{path}: {name}: {rule}, got {value!r:.80}") from error
        return msgspec.convert((OF_IMAGES if images else {}) | given, cls)


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
        from train_distributed.research.protection.measure import AttackBenchmark
        from train_distributed.research.protection.report import table
        from train_distributed.research.protection.study import run_study

        given = (self.embeddings, self.public, self.images, self.settings)
        out = output_directory(self.out, "protect", *given, overwrite=self.overwrite)
        further = self._further
        preference, settings = self._preference(), self._settings()
        federation = self._federation()
        models = tuple(federation.models(further.models, further.steps, self.seed))
        victims = self.clients if further.victims is None else further.victims
        counts = (self.attacks, victims, self.seeds)
        benchmark = AttackBenchmark(federation, further.threshold, models, *counts, self.seed)
        study = run_study(benchmark, settings, further.steps)
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

        further = self._further
        settings = StudySettings(
            budget=self.budget,
            half_width=further.half_width,
            key_bits=further.key_bits,
            servers=further.servers,
            noise_levels=further.noise_levels,
            variance_models=further.variance_models,
        )
        check.at_least(1, clients=self.clients, seeds=self.seeds)
        check.within("[0, 2^32)", seed=self.seed)
        check.within("(0, 1)", threshold=further.threshold)
        check_settings(settings, self.clients)
        check.at_least(1, models=further.models, attacks=self.attacks, rounds=self.rounds)
        check.at_least(0, steps=further.steps)
        return settings

    @cached_property
    def _further(self) -> ProtectSettings:
        return ProtectSettings.read(self.settings, images=self.images is not None)

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

        further = self._further
        options = FederationOptions(
            clients=self.clients,
            rows=further.rows,
            batch=further.batch,
            step=further.step,
            rounds=self.rounds,
            seed=self.seed,
        )
        if self.images is not None:
            check.not_set("with images", embeddings=self.embeddings)
            return image_federation(open_images(self.images), options, test_rows=further.test_rows)
        if (self.embeddings is None) != (self.public is None):
            raise ValueError("embeddings and public must be given together, got one")
        widest = DIGITS_COMPONENTS if self.embeddings is None else COMPONENTS
        if self.embeddings is None or self.public is None:
            public, private = pixel_digits()
        else:
            private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
            refuse_leak(public, private)
        usual = min(widest, public.dim)
        components = usual if further.components is None else further.components
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

        further, options = self._further, asdict(self)
        for name in ("embeddings", "public", "images", "settings", "out"):
            options[name] = None if options[name] is None else Path(options[name]).name
        report = {
            **provenance(),
            "configuration": options | msgspec.structs.asdict(further),
            "parameters": benchmark.federation.target.parameters,
            "paillier_arithmetic": arithmetic(),
            "simulation": True,
            "suitable_for_release": False,
            **as_json(study, self.budget, preference, self.cost),
        }
        write_json(partial / "report.json", report)
        (partial / "table.txt").write_text(text + "\n", "utf-8")
        title = f"{self.clients} clients, batch {further.batch}, threshold {further.threshold:g}"
        draw_tradeoff(study, self.budget, self.cost, partial / "tradeoff.png", title)
        if self.images is not None:
            draw_reconstructions(benchmark, partial / "reconstructions.png")
