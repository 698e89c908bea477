"""Settings of a study, and the numbers that its formulas use."""

from dataclasses import dataclass

from pretrain import check


@dataclass(frozen=True)
class StudySettings:
    """Budget, and what is deployed and measured for it."""

    budget: float
    half_width: float  # δ
    key_bits: int
    servers: int
    noise_levels: int
    variance_models: int


@dataclass(frozen=True)
class Facts:
    """Numbers of the attacked model that the formulas use.

    Raises:
        ValueError: m < 1, or a number that is not finite and positive.
    """

    parameters: int  # m
    half_width: float = 1.0  # δ of the box that a plaintext lies in
    inverse_variances: float = 1.0  # A = √(Σ_i 1/s_i⁴), s_i: standard deviation of parameter i

    def __post_init__(self) -> None:
        check.at_least(1, parameters=self.parameters)
        check.positive(half_width=self.half_width, inverse_variances=self.inverse_variances)
