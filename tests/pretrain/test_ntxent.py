import math
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn

from pretrain.simclr import nt_xent


def naive_loss(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Algorithm 1 of Chen et al. 2020, line by line; rows 2k-1 and 2k are a pair."""
    n = len(z1)
    z = torch.stack([z1, z2], dim=1).reshape(2 * n, -1)
    s = [[z[i] @ z[j] / (z[i].norm() * z[j].norm()) for j in range(2 * n)] for i in range(2 * n)]

    def pair_loss(i: int, j: int) -> Tensor:
        others = sum(torch.exp(s[i][k] / temperature) for k in range(2 * n) if k != i)
        return -torch.log(torch.exp(s[i][j] / temperature) / others)

    total = torch.zeros((), dtype=z.dtype)
    for k in range(n):
        total = total + pair_loss(2 * k, 2 * k + 1) + pair_loss(2 * k + 1, 2 * k)
    return total / (2 * n)


def views(n: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, dim, generator=generator),
        torch.randn(n, dim, generator=generator) * 3,
    )


@pytest.mark.parametrize("n", [1, 2, 7, 16])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
def test_equals_algorithm_1(n: int, temperature: float) -> None:
    z1, z2 = views(n, 5)
    z2[0] = z1[0] * 2  # a perfect pair
    z2[-1] = -z1[-1]  # and an antipodal one
    expected = naive_loss(z1.double(), z2.double(), temperature)
    assert abs(float(nt_xent(z1, z2, temperature)) - float(expected)) < 1e-6 * max(
        1, float(expected)
    )


def test_gradient_equals_that_of_algorithm_1() -> None:
    z1, z2 = (z.requires_grad_() for z in views(6, 4))
    grads = torch.autograd.grad(nt_xent(z1, z2, 0.3), [z1, z2])
    expected = torch.autograd.grad(naive_loss(z1.double(), z2.double(), 0.3), [z1, z2])
    for found, wanted in zip(grads, expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


def test_identical_views_of_orthogonal_images() -> None:
    z = torch.eye(3)
    expected = -math.log(math.e / (math.e + 4))
    assert float(nt_xent(z, z, 1.0)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_bad_temperatures(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be > 0"):
        nt_xent(*views(2, 2), temperature)


def test_bad_shapes() -> None:
    with pytest.raises(ValueError, match=r"must both be \(n, k\)"):
        nt_xent(torch.zeros(2, 3), torch.zeros(3, 3), 1.0)


def gathered(rank: int, port: int, directory: str) -> None:
    torch.set_num_threads(1)
    place = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    z1, z2 = (z.chunk(2)[rank].clone().requires_grad_() for z in views(8, 5))
    loss = nt_xent(z1, z2, 0.2)
    loss.backward()
    torch.save([loss.detach(), z1.grad, z2.grad], Path(directory) / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    other = spawn(gathered, (port, str(tmp_path)), nprocs=1, join=False)
    gathered(1, port, str(tmp_path))
    assert other is not None
    other.join()
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    z1, z2 = (z.requires_grad_() for z in views(8, 5))
    loss = nt_xent(z1, z2, 0.2)
    loss.backward()
    assert float(sum(part[0] for part in parts) / 2) == pytest.approx(
        float(loss.detach()), abs=1e-6
    )
    for index, z in ((1, z1), (2, z2)):  # DistributedDataParallel averages over processes
        assert z.grad is not None
        assert torch.allclose(torch.cat([p[index] for p in parts]) / 2, z.grad, atol=1e-6)
