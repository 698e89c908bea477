"""`python -m train_distributed protect`: which protection, how strong, and what that is worth."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.cli.output import default_directory, new_directory, refuse_existing, refuse_inputs
from pretrain.cli.provenance import provenance
from train_distributed.commands.choices import Cost

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.research.protection.measure import Laboratory
    from train_distributed.research.protection.recommend import Preference
    from train_distributed.research.protection.study import Study, StudySettings
    from train_distributed.research.protection.training import FederatedTraining

COMPONENTS, DIGITS_COMPONENTS = 768, 32
HEAD_DEFAULTS = {"step": 2.0, "rounds": 500, "models": 12, "attacks": 4, "steps": 20}
IMAGE_DEFAULTS = {"step": 0.1, "rounds": 500, "models": 3, "attacks": 4, "steps": 0}


@dataclass(frozen=True)
class Protect:
    """Choose a protection: leakage by attack, accuracy and cost by measurement, for a budget.

    Without data the head is learned and attacked on 5,000 digits that a dependency ships.
    """

    budget: float = 0.4
    """Largest leakage, in √JS of natural logarithms: 0 nothing, .833 everything."""
    prefer_utility: float | None = None
    """η_u, per unit of accuracy lost (1 is all of it)."""
    prefer_efficiency: float | None = None
    """η_e, per extra megabit or second; without either the Pareto front is shown."""
    cost: Cost = "megabits"
    """What efficiency means: extra megabits per client and message, or extra CPU seconds."""
    embeddings: Path | None = None
    """Embedding set: the attacked model is a softmax head."""
    public: Path | None = None
    """Embedding set that is nobody's secret, for the transform and the blind attacker."""
    images: str | None = None
    """Image set with writers: the attacked model is a small convolutional network."""
    components: int | None = None
    """Principal directions of the public embeddings; 768 if left out, 32 without data."""
    clients: int = 10
    """Clients whose models are summed."""
    rows: int = 500
    """Most records of one client."""
    test_rows: int = 2000
    """Test images that measure accuracy."""
    batch: int = 1
    """S: records behind one client's update."""
    step: float | None = None
    """Of the clients' gradient step; 2 for a head, .1 for the network if left out."""
    rounds: int | None = None
    """Of training, for the accuracy; 500 if left out."""
    models: int | None = None
    """M: models that are attacked; 12 or 3 if left out."""
    steps: int | None = None
    """R: rounds of training before a model is attacked; 20 or 0 if left out."""
    attacks: int | None = None
    """T: attacks on each model; 4 if left out."""
    victims: int | None = None
    """Clients that are attacked; all if left out."""
    threshold: float = 0.9
    """Similarity above which a record counts as recovered, in (0, 1)."""
    half_width: float = 1e-3
    """δ of the formulas: half-width of the box that a plaintext lies in."""
    key_bits: int = 2048
    """Least Paillier key that is deployed."""
    servers: int = 3
    """J: servers of secret sharing."""
    noise_levels: int = 5
    """Noise levels that are measured beside the optimum."""
    variance_models: int = 32
    """Models from which the parameters' standard deviations are estimated."""
    seeds: int = 3
    """Repetitions of the training."""
    seed: int = 0
    """Of everything: this command simulates, it protects nobody's data."""
    out: Path | None = None
    """Directory to write; a new one under runs/ if left out."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> None:
        """Prints the table, writes report.json, table.txt and pictures.

        Raises:
            ValueError: a setting out of range, or a budget that no mechanism reaches.
            FileExistsError: the directory exists.
        """
        from train_distributed.research.protection.measure import Laboratory
        from train_distributed.research.protection.report import table
        from train_distributed.research.protection.similarity import Similarity
        from train_distributed.research.protection.study import run_study

        out = default_directory("protect") if self.out is None else self.out
        refuse_inputs(out, (self.embeddings, self.public))
        refuse_existing(out, overwrite=self.overwrite)
        refuse_inputs(out, (self.embeddings, self.public, self.images))
        preference, settings = self._preference(), self._settings()
        similarity = Similarity("ssim" if self.images else "cosine", self.threshold)
        federation = self._federation()
        laboratory = Laboratory(
            federation,
            similarity,
            tuple(federation.models(self._or("models"), self._or("steps"), self.seed)),
            self._or("attacks"),
            self.clients if self.victims is None else self.victims,
            self.seeds,
            self.seed,
        )
        study = run_study(laboratory, settings, self._or("steps"))
        text = table(study, self.budget, preference, self.cost)
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._write(partial, laboratory, study, preference, text)
        print(f"{text}\n\nwritten: {out}")

    def _preference(self) -> "Preference | None":
        from train_distributed.research.protection.recommend import Preference

        given = (self.prefer_utility, self.prefer_efficiency)
        if given == (None, None):
            return None
        return Preference(*(value or 0.0 for value in given), cost=self.cost)

    def _settings(self) -> "StudySettings":
        from train_distributed.research.protection.study import StudySettings

        settings = StudySettings(
            self.budget,
            self.half_width,
            self.key_bits,
            self.servers,
            self.noise_levels,
            self.variance_models,
        )
        if self.clients < 1:
            raise ValueError(f"clients must be >= 1, got {self.clients}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2^32), got {self.seed}")
        settings.validate(self.clients)
        for name, least in (("models", 1), ("attacks", 1), ("steps", 0), ("seeds", 1)):
            value = self.seeds if name == "seeds" else self._or(name)
            if value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        return settings

    def _or(self, name: str) -> int:
        given = getattr(self, name)
        return int(self._default(name)) if given is None else given

    def _default(self, name: str) -> float:
        return (HEAD_DEFAULTS if self.images is None else IMAGE_DEFAULTS)[name]

    def _federation(self) -> "FederatedTraining":
        from embed import EmbeddingSet
        from embed.fit import refuse_leak
        from embed.transform_options import TransformOptions
        from pretrain.sources import open_images
        from train_distributed.research.protection.data import head_federation, image_federation
        from train_distributed.simulation.digits import pixel_digits

        step = self._default("step") if self.step is None else self.step
        common = {"batch": self.batch, "step": step, "rounds": self._or("rounds")}
        common |= {"clients": self.clients, "rows": self.rows, "seed": self.seed}
        if self.images is not None:
            if self.embeddings is not None:
                raise ValueError("only one of images and embeddings must be given, got both")
            return image_federation(open_images(self.images), test_rows=self.test_rows, **common)
        if (self.embeddings is None) != (self.public is None):
            raise ValueError("embeddings and public must be given together, got one")
        widest = DIGITS_COMPONENTS if self.embeddings is None else COMPONENTS
        if self.embeddings is None or self.public is None:
            public, private = pixel_digits()
        else:
            private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
            refuse_leak(public, private)
        components = min(widest, public.dim) if self.components is None else self.components
        transform = TransformOptions(components=components).fit(public)
        return head_federation(private, public, transform, **common)

    def _write(
        self,
        partial: Path,
        laboratory: "Laboratory",
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
            "configuration": settings | resolved | {"step": laboratory.federation.step},
            "parameters": laboratory.federation.surface.parameters,
            "paillier_arithmetic": arithmetic(),
            "simulation": True,
            "suitable_for_release": False,
            **as_json(study, self.budget, preference, self.cost),
        }
        (partial / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        (partial / "table.txt").write_text(text + "\n")
        title = f"{self.clients} clients, batch {self.batch}, threshold {self.threshold:g}"
        draw_tradeoff(study, self.budget, self.cost, partial / "tradeoff.png", title)
        if self.images is not None:
            draw_reconstructions(laboratory, partial / "reconstructions.png")
