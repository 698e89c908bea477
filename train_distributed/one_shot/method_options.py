"""Options of all methods, for the command line."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class MethodOptions:
    """Settings of a method; each is left to the method's default unless given."""

    l2_reg: float | None = None
    """L2 regularisation Λ of the layer that each user trains with softmax, svm or logistic, called
    a head (default: by a public rule)."""
    radius: float | None = None
    """Radius R of the ball that head weights are projected to."""
    solver: Literal["exact", "sgd"] | None = None
    """Solver of a head: certified minimiser, or projected SGD."""
    epochs: int | None = None
    """Epochs of SGD (heads, DP-FL)."""
    batch_size: int | None = None
    """Batch size of SGD; for DP-FL the expected one."""
    bound: Literal["tight", "paper"] | None = None
    """Bound on the sensitivity of a head; `paper` needs --radius."""
    prior: Literal["equal", "private"] | Path | None = None
    """Class frequencies where the model will be used, for which its answers are: equal, as in the
    private rows, or a JSON file of class and share (not for svm). Default: `equal`, which maximises
    balanced accuracy; `private` for softmax, svm and logistic with --user-clip. A model of
    `discriminant` can be had for any other later (`predict --prior`)."""
    sums: Literal[1, 2] | None = None
    """Number of secure sums. 2: a first one finds where the private rows lie, for 10 % of the
    privacy budget (of μ²), and so along which directions the second one shows most of their
    classes; 1: about the public mean. Default in `run`: 2, but 1 with --user-clip or --unit user
    without a clip of the first sum, and for methods that we compare with."""
    components: int | None = None
    """Most directions that are summed; they bound the bytes that a user sends (default: by a public
    rule, at most 256)."""
    user_clip: tuple[float, ...] | None = None
    """Public norm to which every user's vector is clipped, after subtracting what as many public
    rows would add; two numbers clip those of the first sum and of the second. It serves `--unit
    user`, where `rehearse` proposes values, and limits poisoned vectors: take about sqrt(n) times
    the rows' clip norm where users have n rows. With it, discriminant sends class sums alone."""
    rounds: int | None = None
    """Number of sums of gradients under the same promise: after those of discriminant, where one
    owner holds all rows (default: 16 where noise is small), or all of gradient-perturbation."""
    learning_rate: float | None = None
    """Learning rate of dp-fl."""
    eps_frac: float | None = None
    """amp: share of ε for the random linear term."""
    eps_out_frac: float | None = None
    """amp: share of ε for the inexact solution."""
    rho: float | None = None
    """admm: regulariser ρ of every node."""
    eta: float | None = None
    """admm: penalty η on disagreement of neighbours."""
    iterations: int | None = None
    """admm: number of iterations T."""
    graph: Literal["regular", "ring", "star"] | None = None
    """admm: graph of communicating nodes."""
    edges: Path | None = None
    """admm: file with one pair of users per line, instead of --graph."""
    half_width: float | None = None
    """charter: half the side of the cube that is searched."""
    gradient_clip: float | None = None
    """Clip norm of a record's gradient (dp-fl); gradient bound G0 over a row's norm (charter)."""
    cut_rounds: int | None = None
    """charter: number of cutting rounds."""
    bits: int | None = None
    """charter: bits per number that a client sends."""
    constants: Literal["tight", "paper"] | None = None
    """charter: constants of the noise, the smallest proven or the paper's."""

    def given(self) -> dict[str, Any]:
        """Those that were set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SettledOptions(MethodOptions):
    """Settings with those that a public rule fills in and nobody types."""

    class_noise: float | None = None
    """Noise in a class mean, for which directions and their lengths are chosen; see `defaults`."""
