"""A released model as one file for other programs: ONNX, torch.export, scikit-learn."""

from typing import Any

from train_distributed.one_shot.model import UNKNOWN, Release


def facts(released: Release) -> dict[str, Any]:
    """Class names, promise, encoder and how to read probabilities, ready for JSON."""
    report = released.report
    kept = ("epsilon", "delta", "neighbouring", "unit", "suitable_for_release")
    kept += ("prior", "class_prior")
    return {
        "class_names": list(released.class_names),
        "method": released.method,
        **{name: report[name] for name in kept if name in report},
        "encoding": None if released.encoding is None else released.encoding.to_json(),
        "probabilities": report.probabilities or UNKNOWN,
    }
