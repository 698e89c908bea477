"""What a command can say about a method."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class MethodOptions:
    """Settings of a method; what is left out takes the method's default."""

    l2_reg: float | None = None
    """Λ of a head; by a public rule if left out."""
    radius: float | None = None
    """R: heads are projected to this norm."""
    solver: Literal["exact", "sgd"] | None = None
    """How a head is trained: certified minimiser, or projected SGD."""
    epochs: int | None = None
    """Passes of SGD, of heads and of DP-FL."""
    batch_size: int | None = None
    """Nominal batch size of SGD; of DP-FL the expected one."""
    bound: Literal["tight", "paper"] | None = None
    """Sensitivity of a head; `paper` needs a radius."""
    alpha: float | None = None
    """Weight of the second moments in least squares."""
    ridge: float | None = None
    """Regulariser of least squares, added to the sum over all rows."""
    public_share: float | None = None
    """Share of the public covariance in least squares."""
    moments: Literal["all", "none"] | None = None
    """What the discriminant sends beside class sums; `none` where bytes are dear."""
    prior: Literal["empirical", "equal"] | Path | None = None
    """Shares of the classes where the model is used: as in the private rows, equal, or a JSON file
    of class and share. `equal` maximises balanced accuracy. Heads: softmax and logistic."""
    shrinkage: float | None = None
    """Of the public covariance in class sums."""
    user_clip: float | None = None
    """Norm to which every user's submission is clipped, with `--unit user`: public, as `select`
    proposes it."""
    rounds: int | None = None
    """Sums of gradients: further ones after the discriminant's sum (0 if left out), each a step of
    the softmax loss, all under one promise; all sums of gradient perturbation."""
    learning_rate: float | None = None
    """Of DP-FL."""
    eps_frac: float | None = None
    """Of AMP: share of ε for the random linear term."""
    eps_out_frac: float | None = None
    """Of AMP: share of ε for the inexact solution."""
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
    """Norm to which DP-FL clips every record's gradient; G0 of Charter, over the norm of a row."""
    cut_rounds: int | None = None
    """K of Charter."""
    bits: int | None = None
    """Per number that a Charter client sends."""
    constants: Literal["tight", "paper"] | None = None
    """Charter's noise: the least that is proven, or the paper's."""

    def given(self) -> dict[str, Any]:
        """Those that were set."""
        return {name: value for name, value in asdict(self).items() if value is not None}
