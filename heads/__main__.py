"""`python -m heads fit`: one head on one user's data."""

import contextlib
import io
import json
import math
import os
import platform
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import TokenError
from types import FrameType
from typing import TYPE_CHECKING, Literal

import tyro

if TYPE_CHECKING:  # torch is imported by a command that runs
    import numpy as np
    from torch import Generator, Tensor

    from heads import Head

USAGE_ERROR, INTERRUPTED = 2, 130


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Trains one head on one user's embeddings; writes model.safetensors and report.json."""

    data: Path
    """Directory with embeddings.npy (n, d) float, constant column first, and labels.npy (n,)."""
    out: Path
    """Directory to create; it must not exist."""
    num_classes: int
    """Number of classes K; labels are 0 to K - 1."""
    l2_reg: float
    """Regularisation, Lambda > 0."""
    clip_norm: float
    """Bound c of every row's norm, constant column included. Longer rows are an error."""
    method: Literal["softmax", "svm", "logistic"] = "softmax"
    """Softmax regression, or one-vs-rest Huber SVM or logistic regression."""
    radius: float | None = None
    """Ball that SGD projects the weights onto (per class for one-vs-rest)."""
    solver: Literal["exact", "sgd"] = "exact"
    """Certified minimiser, or projected SGD in an order that the operating system draws."""
    epochs: int = 150
    """Passes over the data, SGD only."""
    batch_size: int = 20
    """Records per step, SGD only."""
    noise_multiplier: float | None = None
    """Noise std over the sensitivity; None adds no noise and the model is private data."""

    def run(self) -> None:
        """Checks, fits, writes.

        Raises:
            ValueError: an option or a file that does not fit; nothing is written.
        """
        from safetensors.torch import save_file

        from heads import HuberSVMHead, LogisticHead, SoftmaxHead

        if self.out.exists():
            raise ValueError(f"out must not exist, got {self.out}")
        noise = self.noise_multiplier
        if noise is not None and not 0 < noise < math.inf:
            raise ValueError(f"noise_multiplier must be finite and > 0, got {noise}")
        heads = {"softmax": SoftmaxHead, "svm": HuberSVMHead, "logistic": LogisticHead}
        head = heads[self.method](
            num_classes=self.num_classes,
            l2_reg=self.l2_reg,
            clip_norm=self.clip_norm,
            radius=self.radius,
        )
        x, y = _read(self.data)
        weights, sensitivity = self._fit(head, x, y)
        if noise is not None:
            weights = weights + (noise * sensitivity * _normal(weights)).to(weights.dtype)
        report = self._report(head, tuple(x.shape), sensitivity)
        with _new_directory(self.out) as directory:
            save_file({"weights": weights.contiguous()}, directory / "model.safetensors")
            text = json.dumps(report, indent=2, ensure_ascii=False)
            (directory / "report.json").write_text(text + "\n", encoding="utf-8")
        print(f"wrote {self.out}: {report['release']}")

    def _fit(self, head: "Head", x: "Tensor", y: "Tensor") -> tuple["Tensor", float]:
        import torch

        from heads import fit_exact, fit_sgd, sgd_sensitivity

        if self.solver == "exact":
            solution = fit_exact(head, x, y)
            return solution.weights, solution.sensitivity(len(y))
        order = torch.randperm(len(y), generator=_system_generator())  # files may follow the labels
        weights = fit_sgd(
            head, x[order].double(), y[order], epochs=self.epochs, batch_size=self.batch_size
        )
        sensitivity = sgd_sensitivity(
            head, *x.shape, epochs=self.epochs, batch_size=self.batch_size
        )
        return weights, sensitivity

    def _report(
        self, head: "Head", shape: tuple[int, ...], sensitivity: float
    ) -> dict[str, object]:
        import numpy as np
        import torch

        release = "no noise was added: the model is private data, not to be released"
        if self.noise_multiplier is not None:
            release = "floating-point noise: unsuitable for release"
        options = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}
        return {
            "release": release,
            "config": options,
            "records": shape[0],
            "dimensions": shape[1],
            "neighbouring": "replace one record",
            "sensitivity": sensitivity,
            "compositions": head.compositions,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        }


def _read(directory: Path) -> tuple["Tensor", "Tensor"]:
    """(n, d) rows in float32 or float64 and (n,) int64 labels."""
    import numpy as np
    import torch

    x, y = (_load(directory / name) for name in ("embeddings.npy", "labels.npy"))
    if x.dtype.kind != "f":
        raise ValueError(f"embeddings.npy must hold floats, got {x.dtype}")
    if y.dtype.kind not in "iu":
        raise ValueError(f"labels.npy must hold integers, got {y.dtype}")
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            "embeddings.npy must be (n, d) and labels.npy (n,), "
            f"got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if len(y) and (y == -1).all():
        raise ValueError(f"data must have labels to learn from, got {directory} without any")
    wide = np.float64 if x.dtype.itemsize > 4 else np.float32
    return torch.from_numpy(np.array(x, wide)), torch.from_numpy(np.array(y, np.int64))


def _load(path: Path) -> "np.ndarray":
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"data must hold a readable {path.name}, got {path} ({reason})") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"data must hold one array in {path.name}, got an archive at {path}")
    return array


def _normal(like: "Tensor") -> "Tensor":
    """Standard normal numbers from a generator that the operating system seeded, float64."""
    import torch

    return torch.randn(like.shape, generator=_system_generator(), dtype=torch.float64)


def _system_generator() -> "Generator":
    """A generator that the operating system seeded; the seed is kept nowhere."""
    import torch

    return torch.Generator().manual_seed(secrets.randbits(63))


@contextlib.contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """Yields an empty directory next to `path`, renamed to it only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _parse(arguments: list[str], prog: str) -> Fit:
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"usage: {prog} fit [options]; see {prog} fit --help")
        raise SystemExit(0)
    if arguments[:1] != ["fit"]:
        raise ValueError(f"command must be 'fit', got {' '.join(arguments[:1]) or 'nothing'}")
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(Fit, prog=f"{prog} fit", args=arguments[1:])
    except SystemExit as stop:
        if stop.code != USAGE_ERROR:
            raise
        plain = re.sub(r"\x1b\[[0-9;]*m|[\u2500-\u257f]+", " ", box.getvalue())
        raise ValueError(plain) from stop


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None, prog: str = "python -m heads") -> int:
    """Runs the command; a bad input becomes one `error:` line and exit code 2.

    Much of what all commands share is here a second time: this room imports no other.

    Args:
        arguments: what was typed after the program's name; that of `sys.argv` if left out.
        prog: that name, for usage lines.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack letters of a path
        sys.stdout.reconfigure(errors="backslashreplace")
    if "OMP_WAIT_POLICY" not in os.environ:  # threads that spin for long hinder those they wait for
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        _parse(sys.argv[1:] if arguments is None else arguments, prog).run()
    except (ValueError, OSError, ArithmeticError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
