"""Small convolutions agree with torch's, forward and backward, and are taken in training only."""

import copy

import pytest
import torch
from torch import nn

from pretrain import resnet
from pretrain.resnet import convolve

SHAPES = [(1, 1, 1), (1, 4, 1), (2, 3, 1), (3, 3, 1), (4, 4, 1), (6, 6, 2), (5, 7, 2), (8, 8, 2)]


def _pair(h: int, w: int, stride: int, dtype: torch.dtype) -> tuple[nn.Conv2d, torch.Tensor]:
    generator = torch.Generator().manual_seed(h * 100 + w * 10 + stride)
    layer = nn.Conv2d(5, 7, 3, stride, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    x = torch.randn(4, 5, h, w, dtype=dtype, generator=generator)
    return layer, x.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every convolution that is not torch's."""
    calls, parts = [], resnet._parts
    monkeypatch.setattr(resnet, "_parts", lambda *of: calls.append(1) or parts(*of))
    return calls


@pytest.mark.parametrize(("h", "w", "stride"), SHAPES)
def test_results_and_gradients_are_those_of_torch(h, w, stride, taken) -> None:
    layer, x = _pair(h, w, stride, torch.float64)
    expected, found = layer(x), convolve(x, layer)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous(memory_format=torch.channels_last)
    weights = torch.randn_like(expected)
    right = torch.autograd.grad((expected * weights).sum(), (x, layer.weight))
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), (x, layer.weight)), right, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert len(taken) == 2


def test_gradients_of_an_expanded_gradient_and_of_plain_memory() -> None:
    layer, x = _pair(3, 2, 1, torch.float64)
    plain = x.detach().contiguous().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: convolve(x, layer).mean((2, 3)), plain)


@pytest.mark.parametrize(("h", "w", "stride"), SHAPES)
def test_autocast_computes_in_bfloat16_and_leaves_gradients_in_float32(h, w, stride) -> None:
    layer, x = _pair(h, w, stride, torch.float32)
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolve(x, layer)
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()
    (right,) = torch.autograd.grad(exact.square().sum(), layer.weight)
    found.float().square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert (layer.weight.grad - right).abs().max() < 0.03 * right.abs().max()


def test_large_maps_and_finished_encoders_are_torchs(taken: list[int]) -> None:
    layer, x = _pair(5, 4, 1, torch.float32)
    assert torch.equal(convolve(x, layer), layer(x))
    finished = copy.deepcopy(layer).eval()
    assert torch.equal(convolve(x[:, :, :2], finished), layer(x[:, :, :2]))
    assert not taken
