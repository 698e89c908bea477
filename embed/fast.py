"""Running an encoder in torch, as fast as the device allows."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
COMPILE_FROM = 100_000  # size: images below which compiling costs more time than it saves
CPU_BATCH, GPU_BATCH = 32, 512  # size: on a CPU small batches keep feature maps in the cache


def choose_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return torch.bfloat16 if native else torch.float32


def choose_batch_size(device: torch.device | str) -> int:
    """Images per forward pass."""
    return CPU_BATCH if torch.device(device).type == "cpu" else GPU_BATCH


def fast_forward(
    encoder: nn.Module, device: torch.device, dtype: torch.dtype, *, compiled: bool
) -> Callable[[Tensor], Tensor]:
    """A function from (n, 3, h, w) float32 pixels to (n, p) float32 embeddings on the CPU.

    Channels last, in `dtype` under autocast, optionally compiled. The function raises ValueError
    where the network refuses a batch.
    """
    model = encoder.eval().to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    run = torch.compile(model) if compiled else model

    def forward(images: Tensor) -> Tensor:
        pixels = images.contiguous(memory_format=torch.channels_last)
        reduced = dtype != torch.float32
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=reduced):
            try:
                return run(pixels).float().cpu()
            except (RuntimeError, AssertionError, ValueError) as error:
                raise ValueError(_refusal(error, tuple(pixels.shape))) from error

    return forward


def filled_up(forward: Callable[[Tensor], Tensor], batch: int) -> Callable[[Tensor], Tensor]:
    """Function of up to `batch` pictures, which are filled up to `batch` with black ones.

    Kernels sum in another order for another number of pictures, so a row would depend on the number
    of others in its batch.
    """

    def full(images: Tensor) -> Tensor:
        if len(images) == batch:
            return forward(images)
        black = images.new_zeros(batch - len(images), *images.shape[1:])
        return forward(torch.cat([images, black]))[: len(images)]

    return full


def _refusal(error: Exception, shape: tuple[int, ...]) -> str:
    """Reason why a network refused a batch: too little memory, or a wrong shape."""
    words = " ".join(str(error).split())[:200]
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in words:
        return f"batch_size must be lower for inputs {shape[1:]}, got {shape[0]}: {words}"
    return f"encoder must take inputs {shape[1:]} (see image_size), got: {words}"
