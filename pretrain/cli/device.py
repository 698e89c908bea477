"""Where to compute when nobody says."""


def usual_device(given: str | None) -> str:
    """The device that was given, or "cuda" where there is one, or "cpu".

    Raises:
        ValueError: no such device, or not here.
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
