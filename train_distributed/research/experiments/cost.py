"""Cost of one release: seconds of users and server, memory, bytes, rounds."""

import time
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import IO, Any

import torch
from matplotlib.figure import Figure

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from embed.transform_options import TransformOptions
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import NoisedSum
from train_distributed.one_shot.summation import IntegerSum
from train_distributed.privacy.discrete_gaussian import add_noise
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.checkpoint import Rows
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.summary import text_table
from train_distributed.research.experiments.work import Work
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.scenario import Scenario
from train_distributed.simulation.shared_training import RowsInMemory

MIB = 1 << 20
COLUMNS = {
    "seconds_training_all_users": "training, all users / s",
    "seconds_noise_per_user": "exact noise, one user / s",
    "seconds_server": "server / s",
    "peak_extra_mib": "peak memory of training / MiB",
    "bytes_per_user": "sent by each user / bytes",
}
COST_SETTINGS = (
    MethodConfig("discriminant, PCA-128", "discriminant", "pca-128"),
    MethodConfig("softmax, PCA-128, minimiser", "softmax", "pca-128", {"l2_reg": 0.1}),
    MethodConfig("softmax, PCA-128, SGD", "softmax", "pca-128", {"l2_reg": 0.1, "solver": "sgd"}),
    MethodConfig("SVM, PCA-128, minimiser", "svm", "pca-128", {"l2_reg": 0.1}),
)


def cost_work(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Seconds, memory and bytes of one release by each method, for each number of users."""

    @cache
    def training() -> tuple[PublicTransform, torch.Tensor, torch.Tensor]:
        transform = TransformOptions(components=min(128, public.dim)).fit(public)
        train = private.split == TRAIN
        return transform, transform(private.embeddings[train]), torch.tensor(private.labels[train])

    def job(setting: MethodConfig, users: int) -> Rows:
        transform, x, y = training()
        rows, partition = Scenario(users=users).place(y, None, torch.Generator().manual_seed(0))
        held = RowsInMemory(x[rows], y[rows], partition)
        classes = len(private.meta["class_names"])
        method = build_method(setting.method, transform, classes, setting.options)
        return [measure(setting, held, method, conditions.promises[-1])]

    return Work.of(
        {
            f"cost of {setting.label}, users={users}": partial(job, setting, users)
            for setting, users in product(COST_SETTINGS, conditions.users)
        }
    )


def measure(
    setting: MethodConfig, held: RowsInMemory, method: Method, promise: Privacy
) -> dict[str, object]:
    """One release's cost; all users' training runs in one process, here and now.

    The noise is one user's, exact and from the operating system. Memory is what the training adds
    at its peak to what the process held before, rows excluded; None where the system does not say.
    """
    sizes, statistic = held.sizes, method.statistic
    guarantee = Guarantee.of(sizes, statistic, promise)
    summation = IntegerSum.of(statistic, guarantee, sizes)
    before = _memory("VmRSS") if _reset_peak() else None
    started = time.perf_counter()
    total = torch.zeros(statistic.dimension, dtype=torch.float64)
    for chunk in held.chunks():
        total += statistic.submit(chunk).sum(0)
    trained = time.perf_counter()
    peak = _memory("VmHWM") if before is not None else None
    add_noise(
        torch.zeros(statistic.dimension).numpy().astype("uint64"), summation.plan.stds_in_steps
    )
    noised = time.perf_counter()
    std = guarantee.float_sum_std
    method.fit(NoisedSum(total, int(sizes.sum()), std))
    ended = time.perf_counter()
    return {
        "label": setting.label,
        "method": setting.method,
        "options": dict(setting.options),
        "users": len(sizes),
        "rows": int(sizes.sum()),
        "rounds": 1,
        "numbers_per_user": statistic.dimension,
        "bytes_per_user": 8 * statistic.dimension,
        "seconds_training_all_users": trained - started,
        "seconds_noise_per_user": noised - trained,
        "seconds_server": ended - noised,
        "peak_extra_mib": None if before is None or peak is None else (peak - before) / MIB,
    }


def _reset_peak() -> bool:
    """Starts a new measurement of this process's peak memory, where Linux lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _memory(name: str) -> int | None:
    """Bytes by their name in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    return None


def draw(rows: Sequence[dict[str, Any]], file: IO[bytes]) -> None:
    """A panel per quantity, a bar per method and number of users."""
    shown = [name for name in COLUMNS if any(row[name] for row in rows)]
    figure = Figure(figsize=(3.4 * len(shown) + 2, 0.35 * len(rows) + 1.6), layout="constrained")
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    names = [f"{row['label']}, {row['users']} users" for row in rows]
    for axis, name in zip(axes, shown, strict=True):
        axis.barh(names, [row[name] or 0 for row in rows])
        axis.set(xscale="log", xlabel=COLUMNS[name])
        axis.grid(alpha=0.3)
    axes[0].invert_yaxis()
    figure.suptitle(f"cost of one release, {rows[0]['rows']:,} rows, one round")
    figure.savefig(file, dpi=150)


def tell(rows: Sequence[dict[str, Any]]) -> str:
    """A line per method and number of users."""
    return text_table(
        [
            {"method": row["label"], "users": str(row["users"])}
            | {
                title: "-" if row[name] is None else f"{row[name]:.4g}"
                for name, title in COLUMNS.items()
            }
            for row in rows
        ]
    )
