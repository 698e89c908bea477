"""A federation's `task` where a released model is evaluated, read without trust."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from train_distributed.flower.documents import terms
from train_distributed.flower.documents.document import Document
from train_distributed.privacy.promise import Privacy
from train_distributed.released.evaluation_bounds import MOST_BINS

KIND = "evaluation"
MODEL, TRANSFORM = "model.safetensors", "transform.safetensors"
_REQUIRED = (
    *("kind", "model", "bins", "num_classes", "class_names"),
    *("epsilon", "delta", "unit", "group_size"),
)


@dataclass(frozen=True, kw_only=True)
class EvaluationTerms:
    """Agreed terms of an evaluation."""

    model: str  # SHA-256 of the released model's file, hexadecimal
    bins: int  # of confidence
    class_names: tuple[str, ...]  # of the model
    sizes: dict[int, int]  # user -> evaluation rows; empty where a roll states them
    privacy: Privacy
    method: Literal["confusion-matrix"] = "confusion-matrix"

    @property
    def num_classes(self) -> int:
        """The number K of classes."""
        return len(self.class_names)

    def as_task(self) -> dict[str, Any]:
        """JSON-ready task of a federation."""
        return {
            "kind": KIND,
            "model": self.model,
            "bins": self.bins,
            "num_classes": self.num_classes,
            "class_names": list(self.class_names),
            **terms.sizes_field(self.sizes),
            **terms.privacy_fields(self.privacy, len(self.sizes)),
        }

    @staticmethod
    def read(task: dict[str, Any], users: set[int], path: Path) -> "EvaluationTerms":
        """Reads what `as_task` made; as `Terms.read`.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document = Document(path, task, "task.")
        document.only(_REQUIRED, [*terms.ASSUMED, terms.SIZES])
        document.text("kind", re.compile(KIND), f'"{KIND}"')
        names = terms.read_class_names(
            document, document.whole("num_classes", 2, terms.MOST_CLASSES)
        )
        return EvaluationTerms(
            model=document.text("model", terms.HASH, "a SHA-256 in hexadecimal"),
            bins=document.whole("bins", 0, MOST_BINS),
            class_names=names,
            sizes=terms.read_sizes(document, users),
            privacy=terms.read_privacy(document),
        )


def read_terms(task: dict[str, Any], users: set[int], path: Path) -> terms.Terms | EvaluationTerms:
    """Terms of a federation, of either kind.

    Raises:
        ValueError: naming file, field, rule and value.
    """
    kind = EvaluationTerms if "kind" in task else terms.Terms
    return kind.read(task, users, path)


def agreed_file(task: dict[str, Any]) -> str:
    """The name of the one file that a task needs, in the operator's folder and invitation."""
    return MODEL if "kind" in task else TRANSFORM
