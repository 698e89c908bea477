"""The normalised temperature-scaled cross entropy of SimCLR (Chen et al. 2020, Algorithm 1)."""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional


def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Mean over all 2n views of -log softmax(similarity to the other view of the same image).

    Under `torch.distributed` the views of all processes are the negatives of each; the mean of
    the processes' losses, and of their gradients as DistributedDataParallel takes it, equals
    the loss of one process that holds all images.

    Args:
        z1: (n, k) projections of the first views; need not be normalised.
        z2: (n, k) projections of the second views.
        temperature: tau > 0.

    Returns:
        Scalar loss.
    """
    if z1.shape != z2.shape or z1.ndim != 2 or not len(z1):
        raise ValueError(f"z1 and z2 must both be (n, k), got {z1.shape} and {z2.shape}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    n, rank = len(z1), 0
    z1, z2 = functional.normalize(z1.float(), dim=1), functional.normalize(z2.float(), dim=1)
    all1, all2 = z1, z2
    if distributed.is_available() and distributed.is_initialized():
        rank = distributed.get_rank()
        all1, all2 = gather(z1), gather(z2)
    total = len(all1)
    logits = torch.cat([z1, z2]) @ torch.cat([all1, all2]).T / temperature
    own = torch.arange(n, device=z1.device) + rank * n
    logits[torch.arange(2 * n, device=z1.device), torch.cat([own, own + total])] = -torch.inf
    return functional.cross_entropy(logits, torch.cat([own + total, own]))


def gather(x: Tensor) -> Tensor:
    """Rows of all processes in the order of their ranks, with gradients; sizes must agree."""
    return _Gather.apply(x)  # pyright: ignore[reportReturnType]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        distributed.all_reduce(total)  # every process's loss depends on these rows
        return total.chunk(distributed.get_world_size())[distributed.get_rank()]
