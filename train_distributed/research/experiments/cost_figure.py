"""Cost of one release: bars and a table."""

from collections.abc import Sequence
from typing import IO, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLUMNS = {
    "seconds_training_all_users": "training, all users / s",
    "seconds_noise_per_user": "exact noise, one user / s",
    "seconds_server": "server / s",
    "peak_extra_mib": "peak memory of training / MiB",
    "bytes_per_user": "sent by each user / bytes",
}


def draw(rows: Sequence[dict[str, Any]], file: IO[bytes]) -> None:
    """A panel per quantity, a bar per method and number of users."""
    shown = [name for name in COLUMNS if any(row[name] for row in rows)]
    figure = Figure(figsize=(3.4 * len(shown) + 2, 0.35 * len(rows) + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
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
    width = max(len(row["label"]) for row in rows)
    lines = [f"{'method':{width}}  {'users':>7}" + "".join(f"  {c}" for c in COLUMNS.values())]
    for row in rows:
        values = (
            f"  {'-' if row[name] is None else f'{row[name]:.4g}':>{len(title)}}"
            for name, title in COLUMNS.items()
        )
        lines.append(f"{row['label']:{width}}  {row['users']:7}" + "".join(values))
    return "\n".join(lines)
