"""Training beside its peers: heads (`heads`), and a step of SimCLR beside lightly's (`simclr`).

Every case of `heads` runs in a process of its own, so that peaks do not mix; best of three. The
plain loop runs on a few of the same users, with the same type and threads, and must find the same
weights. The roofline is max(Σ flops / rate, bytes / bandwidth) of the cheapest formulation known to
us, whatever the solver does. Rates are measured in the process that times the solver, each on
products of the shapes that the formulation has, with operands in the cache. Not counted, so that 1
is out of reach: the check of the rows' norms in float64, conversions, element-wise work but
exponentials, fresh memory. With n rows, d columns, K classes, and two flops for a multiplication
and an addition:

* Projected SGD of E epochs, n < d, in the Gram matrix: 2n²d for XXᵀ (half by symmetry, but BLAS's
  syrk takes as long as its gemm at this size), 2n²K and, for softmax, nK exponentials an epoch,
  2ndK for the weights; X and W once. (On the weights: 4ndK an epoch.)
* Minimiser, n < d, in the Gram matrix: 2n²d in float64, 2n²K and nK exponentials for each of 14
  gradients, as many as L-BFGS takes (accelerated gradient: 50), 2ndK; X and W once.
* Minimiser, n ≥ d: five gradients of all rows in float64, 4ndK each and half of that at zero, and
  between them four times 24 gradients of every 31st row in float32; X once a gradient. (On all
  rows L-BFGS takes 17 gradients, accelerated gradient 81: counted on 6,200 such rows.)
"""

import itertools
import math
import multiprocessing
import os
import platform
import resource
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from heads import Head, HuberSVMHead, SoftmaxHead, default_tolerance, fit_exact, fit_sgd
from pretrain.intake.archive import open_npz
from pretrain.recipes import SMALL
from pretrain.resnet import SmallResNet
from pretrain.simclr import _Run
from tests.benchmarks.common import Table, alone, command_line, save, show

REPEATS = 3
EQUAL = 1e-4  # relative Frobenius distance to the plain loop's weights
CLASSES = 10
CHECKED = 2000  # rows of the comparison with the plain loop


@dataclass(frozen=True)
class Case:
    """One head on data of one size."""

    head: Head
    users: int
    n: int
    dim: int
    epochs: int | None = None  # None: the certified solver

    @property
    def constant(self) -> float:
        """The constant column, inside the clip norm."""
        return min(1.0, self.head.clip_norm / 2)

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        if self.epochs is None:
            return fit_exact(self.head, x, y).weights
        return fit_sgd(self.head, x, y, epochs=self.epochs, batch_size=BATCH)

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        if self.epochs is None:
            return plain_exact(self.head, x, y, default_tolerance(self.head, self.n))
        return plain_sgd(self.head, x, y, self.epochs, BATCH)


PAPER = {"num_classes": CLASSES, "clip_norm": 34.854}
CASES = {
    "softmax": Case(SoftmaxHead(**PAPER, l2_reg=10, radius=0.6), 1000, 50, 6145, 150),
    "svm": Case(HuberSVMHead(**PAPER, l2_reg=100, radius=0.06), 1000, 50, 6145, 500),
    "exact": Case(SoftmaxHead(**PAPER, l2_reg=10), 1000, 50, 6145),
    "one user": Case(SoftmaxHead(num_classes=CLASSES, clip_norm=1, l2_reg=0.01), 1, 50_000, 1281),
}
MEMORY = 4.0  # GiB, bar
BATCH = 20
FAR = 1 << 27  # float32 numbers of an array far beyond the cache: 512 MiB
LOOK = 0.3  # seconds that a rate is looked for


def gradient(head: Head, weights: Tensor, x: Tensor, targets: Tensor, count: int) -> Tensor:
    loss = head.data_loss(x @ weights, targets).sum() / count
    loss = loss + head.l2_reg / 2 * weights.square().sum()
    return torch.autograd.grad(loss, weights)[0]


def plain_sgd(head: Head, x: Tensor, y: Tensor, epochs: int, b: int) -> Tensor:
    weights = torch.zeros(x.shape[1], CLASSES, requires_grad=True)
    targets, starts = head.targets(y, x.dtype), list(range(0, len(y), b))
    for m, start in enumerate(starts * epochs, 1):
        part = slice(start, start + b)
        step = gradient(head, weights, x[part], targets[part], b)
        with torch.no_grad():
            weights -= min(1 / head.smoothness, 1 / (head.l2_reg * m)) * step
            norm = torch.linalg.vector_norm(weights, dim=head.norm_dims, keepdim=True)
            weights *= torch.where(norm > head.radius, head.radius / norm, 1.0)
    return weights.detach()


def plain_exact(head: Head, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    weights = torch.zeros(x.shape[1], CLASSES, requires_grad=True)
    targets, previous = head.targets(y, x.dtype), weights.detach().clone()
    root = math.sqrt(head.smoothness / head.l2_reg)  # of the condition
    for _ in range(math.ceil(40 * root)):  # float32's floor
        step = gradient(head, weights, x, targets, len(y))
        if step.norm() <= tolerance:
            break
        with torch.no_grad():
            following = weights - step / head.smoothness
            weights.copy_(following + (root - 1) / (root + 1) * (following - previous))
            previous = following
    return weights.detach()


def embeddings(case: Case) -> tuple[Tensor, Tensor]:
    """Rows like a ReLU network's: non-negative, one shared direction, one per class; in place."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (case.users, case.n), generator=generator)
    shared = torch.rand(case.dim - 1, generator=generator)
    classes = 0.5 * torch.randn(CLASSES, case.dim - 1, generator=generator)
    x = torch.empty(case.users, case.n, case.dim)
    reach = math.sqrt(case.head.clip_norm**2 * (1 - 1e-5) - case.constant**2)
    flat, labels = x.view(-1, case.dim), y.view(-1)
    for start in range(0, len(flat), 500):
        rows = flat[start : start + 500]
        rows.normal_(generator=generator)
        rows[:, 1:] += shared + classes[labels[start : start + 500]]
        rows.relu_()
        rows[:, 1:] *= reach / torch.linalg.vector_norm(rows[:, 1:], dim=1, keepdim=True)
        rows[:, 0] = case.constant
    return x, y


def best(run: Callable[[], object], repeats: int = 1, seconds: float = 0.0) -> float:
    """Seconds of the fastest run of so many, or of all that begin within so many seconds."""
    found, end = math.inf, time.perf_counter() + seconds
    while repeats > 0 or time.perf_counter() < end:
        start, repeats = time.perf_counter(), repeats - 1
        run()
        found = min(found, time.perf_counter() - start)
    return found


def rate(work: float, run: Callable[[], object]) -> float:
    """Work per second."""
    return work / best(run, seconds=LOOK)


def least_seconds(case: Case) -> float:
    """The roofline, by this file's formulas."""
    n, d, k = case.n, case.dim, CLASSES
    if n >= d:
        sweep = 4 * n * d * k
        computing = 4.5 * sweep / gemm_rate(1, 100, d, k, torch.float64)
        computing += 4 * 24 * sweep / 31 / gemm_rate(1, 100, d, k)
        reading = 5 * n * d * 4
    else:
        exact, rounds = case.epochs is None, case.epochs or 14
        computing = 2 * n * n * d / gemm_rate(1, n, d, n, torch.float64 if exact else torch.float32)
        computing += rounds * 2 * n * n * k / gemm_rate(64, k, n if exact else BATCH, n)
        computing += 2 * n * d * k / gemm_rate(1, k, n, d)
        if isinstance(case.head, SoftmaxHead):
            computing += rounds * n * k / exponential_rate()
        reading = (n + k) * d * 4
    return case.users * max(computing, reading / bandwidth())


def gemm_rate(
    users: int, rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float32
) -> float:
    """Flops per second of (rows, inner) @ (inner, columns), as many at once as threads or users."""
    users *= torch.get_num_threads()
    a = torch.rand(users, rows, inner, dtype=dtype)
    b = a.mT if rows == columns else torch.rand(users, inner, columns, dtype=dtype)
    out = torch.empty(users, rows, columns, dtype=dtype)
    return rate(2 * users * rows * inner * columns, lambda: torch.bmm(a, b, out=out))


def exponential_rate() -> float:
    """Float32 exponentials per second."""
    values = torch.rand(torch.get_num_threads() << 16)
    out = torch.empty_like(values)
    return rate(len(values), lambda: torch.exp(values, out=out))


def bandwidth() -> float:
    """Bytes per second: the best of reading, copying and STREAM's triad."""
    a, b, c = (torch.rand(FAR) for _ in range(3))
    reading = rate(1, a.sum)
    copying = rate(2, lambda: a.copy_(b))
    triad = rate(3, lambda: torch.add(a, b, alpha=3, out=c))
    return FAR * a.itemsize * max(reading, copying, triad)


def distance(case: Case, x: Tensor, y: Tensor) -> float:
    """Distance of the plain loop's weights to ours, both solved far below the default tolerance.

    On so many rows that the plain loop, which needs thousands of steps for it, ends in seconds.
    """
    x, y = x[:CHECKED], y[:CHECKED]
    if case.epochs is None:
        tolerance = default_tolerance(case.head, len(y))
        ours = fit_exact(case.head, x, y, tolerance=tolerance / 100).weights
        plain = plain_exact(case.head, x, y, tolerance / 100)
    else:
        ours, plain = case.fit(x, y), case.plain(x, y)
    return ((ours - plain).norm() / plain.norm()).item()


def measure(name: str) -> dict[str, float | str]:
    """Runs one case in this process."""
    case = CASES[name]
    x, y = embeddings(case)
    plain = [best(lambda u=u: case.plain(x[u], y[u])) for u in range(min(3, case.users))]
    seconds = best(lambda: case.fit(x, y), REPEATS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    per_user, roofline = seconds / case.users, least_seconds(case)
    found = {"case": name, "seconds": seconds, "roofline_seconds": roofline}
    found |= {"roofline_ratio": seconds / roofline, "users_per_second": 1 / per_user}
    found |= {"peak_gib": peak, "plain_seconds_per_user": min(plain)}
    return found | {"ratio": min(plain) / per_user, "distance": distance(case, x[0], y[0])}


def heads(write: Path | None = None) -> int:
    """Seconds and peak memory of the solvers against a plain autograd loop and the roofline."""
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}, best of {REPEATS}")
    table = Table()
    for name in CASES:
        table.add(alone(measure, name))
    save(write, {"machine": machine, "cases": table.rows})
    return int(any(row["distance"] > EQUAL or row["peak_gib"] > MEMORY for row in table.rows))


BAR, ROUND = 2.2, 5  # times lightly's rate; steps between turns


class Views(Dataset[list[Tensor]]):
    """Set for lightly's loader: pictures, transformed one by one."""

    def __init__(self, images: Tensor, transform: Any) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.transform(Image.fromarray(self.images[index].permute(1, 2, 0).numpy()))


class Lightly:
    """The training step of lightly's SimCLR tutorial."""

    def __init__(self, images: Tensor, half: bool) -> None:
        warnings.simplefilter("ignore")
        from lightly.loss import NTXentLoss  # pyright: ignore[reportMissingImports]
        from lightly.models.modules import SimCLRProjectionHead  # pyright: ignore[reportMissingImports]
        from lightly.transforms.simclr_transform import SimCLRTransform  # pyright: ignore

        given: dict[str, Any] = {"input_size": SMALL.augment.size, "gaussian_blur": 0.0}
        given |= {"cj_strength": SMALL.augment.strength, "min_scale": SMALL.augment.min_area}
        transform = SimCLRTransform(**given)
        encoder = SmallResNet(SMALL.encoder, torch.Generator().manual_seed(0))
        head = SimCLRProjectionHead(encoder.embedding_dim, SMALL.hidden, SMALL.projected)
        self.model = nn.Sequential(encoder, head).train()
        self.half = half
        self.loss = NTXentLoss(temperature=SMALL.temperature)
        rate, decay = SMALL.learning_rate, SMALL.weight_decay
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=True)
        loading: dict[str, Any] = {"shuffle": True, "drop_last": True, "persistent_workers": True}
        loading |= {"batch_size": SMALL.batch_size, "num_workers": os.cpu_count() or 1}
        loader = DataLoader(Views(images, transform), **loading)
        self.batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def step(self) -> None:
        views = next(self.batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = self.loss(self.model(views[0]), self.model(views[1]))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class Ours:
    """The training step of `pretrain.simclr`."""

    def __init__(self, images: Tensor, half: bool) -> None:
        self.run = _Run.start(replace(SMALL, half=half), torch.Generator().manual_seed(0), "cpu")
        self.images, self.order = images, self.run.order(len(images), 0)

    def step(self) -> None:
        size = SMALL.batch_size
        start = (self.run.step * size) % (len(self.order) - size)
        self.run.train(self.images, self.order[start : start + size], total=10_000)


def signal_workers(number: signal.Signals) -> None:
    """Stops or continues lightly's workers, which otherwise load ahead while it is our turn."""
    for worker in multiprocessing.active_children():
        os.kill(worker.pid or 0, number)


def images_per_second(images: Tensor, steps: int, half: bool) -> dict[str, float]:
    """Measures both in turns."""
    sides = {"lightly": Lightly(images, half), "ours": Ours(images, half)}
    seconds = dict.fromkeys(sides, 0.0)
    for side in sides.values():
        side.step()  # warm
    for _ in range(0, steps, ROUND):
        for name, side in sides.items():
            signal_workers(signal.SIGSTOP if name == "ours" else signal.SIGCONT)
            begin = time.perf_counter()
            for _ in range(ROUND):
                side.step()
            seconds[name] += time.perf_counter() - begin
    signal_workers(signal.SIGCONT)
    count = -(-steps // ROUND) * ROUND * SMALL.batch_size
    return {name: round(count / s, 1) for name, s in seconds.items()}


def simclr(reference_data: Path, steps: int = 20, write: Path | None = None) -> int:
    """Images/s of our SimCLR step against lightly's, in one run, in float32 and in bfloat16.

    Tiny-ImageNet at 32 pixels, the recipe of the shipped encoder, same backbone and batch. lightly
    gets its own transform, loader (one worker per core), projection head and loss, and the same
    optimiser; both take turns, and lightly's workers are stopped while it is our turn. Exit code 1
    if the better of our rates is below 2.2 times the better of lightly's.
    """
    archive = open_npz(reference_data / "data" / "tinyimagenet32_jpeg_a.npz")
    images = torch.from_numpy(archive.images(slice(0, 10_000)))
    precisions = {"float32": False, "bfloat16": True}
    rates = {name: images_per_second(images, steps, half) for name, half in precisions.items()}
    ratios = {name: round(of["ours"] / of["lightly"], 2) for name, of in rates.items()}
    best = [max(of[side] for of in rates.values()) for side in ("ours", "lightly")]
    ratios["each in its best"] = round(best[0] / best[1], 2)
    result = {"images_per_second": rates, "ratio": ratios, "batch_size": SMALL.batch_size}
    result |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    result["machine"] = platform.machine()
    show(result)
    save(write, result)
    return int(best[0] < BAR * best[1])


if __name__ == "__main__":
    command_line(heads=heads, simclr=simclr)
