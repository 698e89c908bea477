"""A public transform about a centre that a noised sum has found, in fewer directions or others."""

from dataclasses import replace

import torch
from torch import Tensor

from embed.centre import length_about
from embed.transform import PublicTransform
from pretrain import check

# Bounds of the share of the public rows' squared length in the directions that are taken, since
# anybody may have made the moments that say it. The least one makes a length of 2⁻¹⁸ or more
# (`length_about`), of which float32's rounding of a row, 2⁻²⁴, is 2⁻⁶ at most.
LEAST_SHARE, LARGEST_SHARE = 2.0**-30, 2.0**20


def recentred(
    transform: PublicTransform,
    centre: Tensor,
    keep: int | None = None,
    mean_square: float = 1.0,
    *,
    discriminants: bool = False,
) -> PublicTransform:
    """The transform whose rows are taken about a centre, which is at most r long.

    Public rows are as long as before.

    Args:
        transform: of q features, without a centre.
        centre: (q,) mean of rows, features alone.
        keep: the first so many features are taken; None: all.
        mean_square: mean squared length of the rows that will be taken about it, over r².
        discriminants: project features onto the transform's discriminant directions instead.

    Raises:
        ValueError: another shape or number, a transform that has no such directions, or public
            rows that hardly have, that has a centre already, or guesses of classes, which say where
            classes are without it.
    """
    q = transform.dim - 1
    taken = transform.discriminants if discriminants else (q if keep is None else keep)
    check.shape((q,), centre=centre)
    check.given(discriminants=taken)
    check.within("[0, 1]", mean_square=mean_square)
    if transform.placed:
        raise ValueError("transform must have neither a centre nor guesses of classes, has one")
    assert taken is not None
    along, common = isinstance(taken, Tensor), float(centre.double().square().sum())
    statistics, share = _along(transform, taken), share_of(transform, taken)
    longer = torch.full((len(statistics["row_mean"]),), share**-0.5, dtype=torch.float64)
    longer[0] = 1.0
    units = {"row_mean": longer, "second_moment": torch.outer(longer, longer)}
    return replace(
        transform,
        centre=centre.double() @ taken if along else centre.double()[:taken],
        length=length_about(common / transform.reach**2, mean_square, share),
        discriminants=taken if along else None,
        **{n: values * units.get(n, longer[1:].square()) for n, values in statistics.items()},
    )


def share_of(transform: PublicTransform, taken: Tensor | int) -> float:
    """Part of the public rows' squared length in the first so many features, or in Dᵀx.

    Raises ValueError for one outside [`LEAST_SHARE`, `LARGEST_SHARE`].
    """
    moments = transform.second_moment[1:, 1:]
    if isinstance(taken, int):
        kept = moments.diagonal()[:taken].sum()
    else:
        kept = (taken * (moments @ taken)).sum()
    share = float(kept / moments.diagonal().sum())
    allowed = f"[{LEAST_SHARE}, {LARGEST_SHARE}]"
    check.within(allowed, second_moment_share_of_directions=share)
    return share


def first(transform: PublicTransform, keep: int) -> PublicTransform:
    """The transform to the first `keep` of its directions alone, before it has a centre."""
    basis, scale = transform.basis[:, :keep].contiguous(), transform.scale[:keep]
    found = _along(transform, keep)
    return replace(transform, basis=basis, scale=scale, discriminants=None, **found)


def _along(transform: PublicTransform, taken: Tensor | int) -> dict[str, Tensor]:
    """Public statistics of rows [a, x] with the first so many features alone, or [a, Dᵀx]."""
    mean, moments, scatter = transform.row_mean, transform.second_moment, transform.scatter
    if isinstance(taken, int):
        check.within(f"[1, {transform.dim - 1}]", keep=taken)
        rows = slice(taken + 1)
        scatter = {name: values[:taken, :taken] for name, values in scatter.items()}
        return {"row_mean": mean[rows], "second_moment": moments[rows, rows], **scatter}
    along = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), taken)
    scatter = {name: taken.T @ values @ taken for name, values in scatter.items()}
    return {"row_mean": mean @ along, "second_moment": along.T @ moments @ along, **scatter}
