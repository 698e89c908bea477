"""Can honest users have made this sum? If not, somebody sent what no pictures give.

A submission is no longer than all of its user's records together move it, ‖v_i‖ ≤ √C
`user_zero_out(n_i)`, and none of its entries is larger than `entry_bound(n_i)`; rounding moves an
entry by less than a step. The noise of m users, discrete Gaussians of standard deviation s, is
sub-Gaussian with m s² (Canonne, Kamath and Steinke 2020, Fact 16), so except with probability e^-t
it is no longer than s √m √(d + 2 √(d t) + 2 t) (Hsu, Kakade and Zhang 2012, Thm 2.1), and except
with probability e^-t no entry of it is larger than s √(2 m (t + ln 2d)). Both together raise a
false alarm once in `1 / FALSE_ALARM` sums. A liar that stays within these bounds is not found: it
moves the sum no further than other pictures of all users would have.
"""

import math

import numpy as np
import torch
from torch import Tensor

from train_distributed.privacy.guarantee import Submission
from train_distributed.privacy.mechanism import DiscreteGaussian

FALSE_ALARM = 2.0**-40  # prior: probability of one in a sum of honest users


def unreachable(
    total: Tensor, submission: Submission, mechanism: DiscreteGaussian, sizes: Tensor
) -> str | None:
    """Why honest users of (m,) sizes cannot have made the (D,) decoded sum; None: they can."""
    users, step = len(sizes), np.broadcast_to(mechanism.step, (len(total),))
    noise, d = mechanism.noise_std(users), len(total)
    t = -math.log(FALSE_ALARM / 2)  # of either test
    entry_tail = math.sqrt(2 * (t + math.log(2 * d)))
    length_tail = math.sqrt(d + 2 * math.sqrt(d * t) + 2 * t)
    bounds = [submission.entry_bound(int(n)) for n in sizes]
    largest = sum(bounds) + users * step.max() + noise * entry_tail
    reach = submission.norm_bounds(sizes).sum().item()
    longest = reach + users * math.sqrt((step**2).sum()) + noise * length_tail
    for what, found, most in (
        ("an entry of the sum", total.abs().max().item(), largest),
        ("the length of the sum", torch.linalg.vector_norm(total).item(), longest),
    ):
        if not found <= most:
            return f"{what} is {found:.3g}, and honest users and their noise reach {most:.3g}"
    return None
