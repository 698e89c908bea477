"""`python -m train_distributed run`: one private model from a directory of embeddings."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from embed import EmbeddingSet, PublicTransform
from embed.fit import refuse_leak
from embed.store import TRAIN
from pretrain.output import default_directory, new_directory, refuse_existing
from train_distributed import rounds
from train_distributed.methods import build_method
from train_distributed.partition import Partition, split
from train_distributed.plot import draw_release
from train_distributed.privacy import Privacy
from train_distributed.release import Noise, Release, release
from train_distributed.rounds.figure import draw_rounds
from train_distributed.users import own_partition

Scheme = Literal["own", "iid", "one-class", "dirichlet"]
DISCRETE_NUMBERS = 1 << 22  # users x length of a submission: about a minute of exact sampling


@dataclass(frozen=True)
class TransformOptions:
    """How the public transform is fitted; see `embed.PublicTransform.fit`."""

    components: int | None = None
    """Principal directions of the public embeddings that are kept; all if left out."""
    whiten: bool = True
    """Divide each direction by its (shrunk) public standard deviation."""
    clip_quantile: float = 0.1
    """Features are divided by this quantile of the public norms, then clipped to length 1."""
    constant: float = 0.5
    """The constant column; the clip norm is sqrt(1 + constant²)."""

    def fit(self, public: EmbeddingSet) -> PublicTransform:
        """The transform of a public set."""
        return PublicTransform.fit(
            public,
            components=self.components,
            whiten=self.whiten,
            clip_quantile=self.clip_quantile,
            clip_norm=math.sqrt(1 + self.constant**2),
            constant=self.constant,
        )


@dataclass(frozen=True)
class MethodOptions:
    """Settings of a method; what is left out takes the method's default."""

    l2_reg: float | None = None
    """Λ of a head."""
    radius: float | None = None
    """R: heads are projected to this norm."""
    solver: Literal["exact", "sgd"] | None = None
    """How a head is trained: certified minimiser, or projected SGD."""
    epochs: int | None = None
    """Passes of SGD."""
    batch_size: int | None = None
    """Nominal batch size of SGD."""
    bound: Literal["tight", "paper"] | None = None
    """Sensitivity of a head; `paper` needs a radius."""
    alpha: float | None = None
    """Weight of the second moments in least squares."""
    ridge: float | None = None
    """Regulariser of least squares, added to the sum over all rows."""
    public_share: float | None = None
    """Share of the public covariance in least squares."""
    shrinkage: float | None = None
    """Of the public covariance in class sums."""
    rho: float | None = None
    """ρ of ADMM: regulariser of every node."""
    eta: float | None = None
    """η of ADMM: how strongly neighbours agree."""
    iterations: int | None = None
    """T of ADMM."""
    graph: Literal["regular", "ring", "star"] | None = None
    """Who talks to whom in ADMM."""
    edges: Path | None = None
    """File of pairs of users, one pair a line, instead of a graph by name."""
    half_width: float | None = None
    """Half the side of the cube that Charter searches."""
    gradient_clip: float | None = None
    """G0 of Charter, over the norm of a row."""
    cut_rounds: int | None = None
    """K of Charter."""
    bits: int | None = None
    """Per number that a Charter client sends."""
    constants: Literal["tight", "paper"] | None = None
    """Charter's noise: the least that is proven, or the paper's."""

    def given(self) -> dict[str, Any]:
        """Those that were set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Run:
    """Train one differentially private classifier from all users' embeddings."""

    embeddings: Path
    """Directory of an embedding set: rows of split 0 are private, of split 1 for testing."""
    method: Literal[
        "class-sums",
        "least-squares",
        "softmax",
        "svm",
        "logistic",
        "admm-dual",
        "admm-primal",
        "charter",
        "charter-sum",
    ] = "least-squares"
    """What every user submits once; or, with admm and charter, sends in every round."""
    privacy: Privacy = field(default_factory=lambda: Privacy(1.0, 1e-5))
    public: Path | None = None
    """Embedding set that is nobody's secret: the transform is fitted on all its rows."""
    transform: Path | None = None
    """A transform fitted before (`python -m embed fit-transform`), instead of `public`."""
    transform_options: TransformOptions = field(default_factory=TransformOptions)
    options: MethodOptions = field(default_factory=MethodOptions)
    num_classes: int | None = None
    """K, where the embedding set names no classes."""
    scheme: Scheme = "own"
    """Who holds which rows: as the set says, or a simulated partition."""
    users: int | None = None
    """Number of simulated users."""
    concentration: float | None = None
    """Of a dirichlet partition."""
    noise: Noise | None = None
    """`discrete` is for release and the default; `float` is for simulations."""
    seed: int | None = None
    """Makes a run reproducible, its noise float, and its model unsuitable for release."""
    min_survivors: int | None = None
    """Fewest users that a sum is opened for; all if left out."""
    out: Path | None = None
    """Directory to write; a new one under runs/ if left out."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> None:
        """Trains, writes model.safetensors, report.json and privacy.png, prints the report.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        self.privacy.validate()
        if self.method in rounds.METHODS and self.min_survivors is not None:
            raise ValueError(
                f"min_survivors must be left out for method {self.method!r}, where all users stay, "
                f"got {self.min_survivors}"
            )
        out = default_directory("run") if self.out is None else self.out
        refuse_existing(out, overwrite=self.overwrite)
        private = EmbeddingSet.open(self.embeddings)
        transform = self._transform(private)
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        partition = self._partition(private, generator)
        released = self._release(private, transform, partition, generator)
        released.report["configuration"] = _jsonable(asdict(self))
        self._write(released, out)

    def _release(
        self,
        private: EmbeddingSet,
        transform: PublicTransform,
        partition: Partition,
        generator: torch.Generator | None,
    ) -> Release:
        if self.method in rounds.METHODS:
            return rounds.learn(
                private,
                self.method,
                self.privacy,
                transform=transform,
                num_classes=self.num_classes,
                partition=partition,
                noise=self.noise,
                generator=generator,
                **self.options.given(),
            )
        return release(
            private,
            self.method,
            self.privacy,
            transform=transform,
            num_classes=self.num_classes,
            partition=partition,
            noise=self._noise(private, transform, partition.users),
            generator=generator,
            min_survivors=self.min_survivors,
            **self.options.given(),
        )

    def _transform(self, private: EmbeddingSet) -> PublicTransform:
        if (self.public is None) == (self.transform is None):
            given = "neither" if self.public is None else "both"
            raise ValueError(f"exactly one of public and transform must be given, got {given}")
        if self.transform is None:
            assert self.public is not None
            public = EmbeddingSet.open(self.public)
            refuse_leak(public, private)
            return self.transform_options.fit(public)
        transform = PublicTransform.load(self.transform)
        if transform.fitted_on == private.content_hash():
            raise ValueError(
                f"transform must not be fitted on the private embeddings, got {self.transform}"
            )
        return transform

    def _partition(self, private: EmbeddingSet, generator: torch.Generator | None) -> Partition:
        if self.scheme == "own":
            for name in ("users", "concentration"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} must be left out for scheme 'own', got {getattr(self, name)}"
                    )
            return own_partition(private)
        labels = torch.from_numpy(private.labels[private.split == TRAIN])
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        return split(
            labels,
            self.users,
            self.scheme,
            concentration=self.concentration,
            generator=generator,
        )

    def _noise(self, private: EmbeddingSet, transform: PublicTransform, users: int) -> Noise:
        if self.noise is not None:
            return self.noise
        if self.seed is not None:
            return "float"
        classes = self.num_classes or max(2, len(private.meta.get("class_names", ())))
        method = build_method(self.method, transform, classes, self.options.given())
        if users * method.dimension > DISCRETE_NUMBERS:
            raise ValueError(
                f"noise must be chosen for more than {DISCRETE_NUMBERS} numbers: 'discrete', for "
                f"release, takes about 16 microseconds each, 'float' is a simulation; "
                f"got {users} users x {method.dimension}"
            )
        return "discrete"

    def _write(self, released: Release, out: Path) -> None:
        with new_directory(out, overwrite=self.overwrite) as partial:
            released.write(partial)
            draw = draw_rounds if self.method in rounds.METHODS else draw_release
            draw(released.report, partial / "privacy.png")
        shown = ("epsilon", "delta", "neighbouring", "noise", "suitable_for_release")
        costs = ("epsilon_per_iteration", "rounds", "bits_per_user", "bits_per_edge")
        for name in (*shown, "unsuitable_because", "users", "rows", *costs, "test_accuracy"):
            if name in released.report:
                print(f"{name:22} {released.report[name]}")
        print(f"{'written':22} {out}")


def _jsonable(value: Any) -> Any:
    """Nested settings with paths and infinities as words."""
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return str(value) if isinstance(value, Path) else value
