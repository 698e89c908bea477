"""Choice of the device to compute on, and of how many pictures at once."""

CPU_BATCH, GPU_BATCH = 32, 512  # size: on a CPU small batches keep feature maps in the cache


def usual_device(given: str | None) -> str:
    """The given device, else "cuda" if there is one, else "cpu".

    Raises:
        ValueError: an unknown or missing device.
    """
    import torch

    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(given)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {given}") from error
    try:
        torch.zeros(1, device=given).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise ValueError(
            f"device must be one that is here ({', '.join(here)}), got {given}"
        ) from error
    return given


def usual_batch(device: str) -> int:
    """Pictures per forward pass on a device."""
    return CPU_BATCH if device.startswith("cpu") else GPU_BATCH
