"""Convolutions of maps of a few pixels as plain matrix products, for training on a CPU.

On the border of a 3 x 3 map 4 of 9 weights meet padding on average; libraries multiply by it, and
choose slow kernels for few pixels. Here a pixel of the result is a sum of at most three products:
up to three neighbouring pixels of one row, contiguous in memory, times their weights.
For 320 channels of 3 x 3, forward and backward take 0.4 of oneDNN's time in float32, 0.2 in
bfloat16.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

MOST_PIXELS = 16  # of the result; beyond, oneDNN is faster

Part = tuple[int, int, int, slice, int, slice]


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Applies `layer` to x, up to rounding; faster in training on a CPU.

    Args:
        x: (n, inputs, h, w).
        layer: 3 x 3, padding 1, neither bias, groups nor dilation; strides equal.

    Returns:
        (n, outputs, ceil(h / stride), ceil(w / stride)).
    """
    stride = layer.stride[0]
    pixels = -(-x.shape[2] // stride) * -(-x.shape[3] // stride)
    if layer.training and x.device.type == "cpu" and pixels <= MOST_PIXELS:
        return _Convolution.apply(x, layer.weight, stride)  # pyright: ignore[reportReturnType]
    return layer(x)


class _Convolution(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)  # under autocast only
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        x, weight = (of.permute(0, 2, 3, 1).contiguous() for of in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        n, h, w, _ = x.shape
        y = x.new_zeros(n, -(-h // stride), -(-w // stride), len(weight))
        for a, b, row, columns, i, j in _parts(h, w, stride):
            near = x[:, row, columns].flatten(1)
            y[:, a, b].addmm_(near, weight[:, i, j].flatten(1).T)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = grad.permute(0, 2, 3, 1).contiguous()
        to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for a, b, row, columns, i, j in _parts(x.shape[1], x.shape[2], ctx.stride):
            here, near = grad[:, a, b], x[:, row, columns].flatten(1)
            to_x[:, row, columns].flatten(1).addmm_(here, weight[:, i, j].flatten(1))
            to_weight[:, i, j].flatten(1).addmm_(here.T, near)
        return to_x.permute(0, 3, 1, 2), to_weight.permute(0, 3, 1, 2), None


def _parts(h: int, w: int, stride: int) -> Iterator[Part]:
    """Per pixel (a, b) of the result: a row of x, columns there, and the weights that they meet."""
    for a in range(0, h, stride):
        for b in range(0, w, stride):
            left, right = max(b - 1, 0), min(b + 2, w)
            for row in range(max(a - 1, 0), min(a + 2, h)):
                meets = slice(left - b + 1, right - b + 1)
                yield a // stride, b // stride, row, slice(left, right), row - a + 1, meets
