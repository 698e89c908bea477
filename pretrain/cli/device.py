"""Where to compute when nobody says."""


def usual_device(given: str | None) -> str:
    """The device that was given, or "cuda" where there is one, or "cpu"."""
    if given is not None:
        return given
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
