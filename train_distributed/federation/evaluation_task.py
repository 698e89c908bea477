"""Task of a federation that evaluates a released model on rows which users held out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from embed import EmbeddingSet
from embed.encoding import Encoding
from pretrain.cli.provenance import versions
from train_distributed.federation.documents.document import load_file
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.terms import KIND, EvaluationTerms, check_file
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.sum_task import SessionFacts, SumTask, plan_of
from train_distributed.ledger.entry import Kind
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import MADE_WITH, suitability
from train_distributed.one_shot.source import refuse_seeded_split
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import split
from train_distributed.released.evaluate import Sum, overlap_words
from train_distributed.released.evaluation import Evaluation, held_out, submissions
from train_distributed.secure_sum.opening import Opened

REPORT = "evaluation.json"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Answer:
    """Report of the evaluation."""

    report: dict[str, Any]

    def with_report(self, **more: Any) -> "Answer":
        """Answer whose report has these keys too."""
        return Answer(self.report | more)

    def write(self, directory: Path) -> None:
        """Writes evaluation.json into a directory that exists."""
        text = json.dumps(self.report, indent=1, allow_nan=False)
        (directory / REPORT).write_text(text + "\n")


@dataclass(frozen=True)
class EvaluationTask(SumTask[EvaluationTerms]):
    """The federation's `task`, made from public numbers and the released model alone."""

    federation: Federation
    terms: EvaluationTerms
    model: Release
    method: Evaluation
    plan: Plan
    kind: ClassVar[Kind] = "evaluation"
    part: ClassVar[str] = "evaluation"  # the rows that it is about

    @staticmethod
    def of(federation: Federation, model: Path) -> "EvaluationTask":
        """Reads the task.

        Args:
            federation: its `task` holds `EvaluationTerms`.
            model: the file of the released model.

        Raises:
            ValueError: a field missing or out of range, or another model than was agreed.
        """
        terms = EvaluationTerms.read(federation.task, set(federation.users), Path("federation"))
        check_file("model", model, terms.model)
        release = read_model(model)
        if release.class_names != terms.class_names:
            raise ValueError(f"class_names must be the model's {release.class_names}")
        method = Evaluation.of(release, terms.bins)
        if federation.dimension != method.dimension:
            raise ValueError(
                f"dimension must be the evaluation's {method.dimension}, got {federation.dimension}"
            )
        plan = plan_of(federation, method, terms)
        return EvaluationTask(federation, terms, release, method, plan)

    def encoded(self, identity: int, embeddings: EmbeddingSet) -> NDArray[np.uint64]:
        """A user's own counts: what it submits, (d,) uint64, before its noise.

        Raises:
            ValueError: not as many evaluation rows as the federation says, or what `held_out`
                refuses: training rows among them, rows that are not finite, another encoder.
        """
        agreed, rows = int(self.rows_of([identity])), held_out(embeddings, self.model)
        refuse_seeded_split(embeddings)
        if len(rows) != agreed:
            raise ValueError(f"evaluation rows must be {agreed} as agreed, got {len(rows)}")
        partition = split(torch.zeros(agreed, dtype=torch.int64), 1)
        grid = self._grid
        given = (self.method, [self.model], embeddings, rows, partition, grid)
        ((_, (sent,)),) = submissions(*given)
        return self.mechanism.encode(sent.numpy())

    @property
    def encoding(self) -> Encoding | None:
        """How pictures become the rows of every user; None: the model does not say it."""
        return self.model.encoding

    def released(self, opened: Opened, *, facts: SessionFacts) -> Answer:
        """Estimates with their intervals, from the sum of the survivors."""
        sizes, total = self.rows_of(opened.users), self.mechanism.decode(opened.total)
        report = self.plan.report() | {"rows": int(sizes.sum())}
        report |= {"model": self.terms.model, "method": self.terms.method}
        report |= {"with_the_training": overlap_words(self.terms.privacy)}
        report |= self._sum(opened, facts) | {"sampling": "rows"}
        noise_std = self.mechanism.noise_std(len(sizes))
        found = Sum([self.model], self.method, total, sizes, noise_std, self._grid, report)
        report |= found.read(CONFIDENCE, "rows")[1][0]
        odd = self._unreachable(opened)
        report |= suitability(self.guarantee.privacy, "discrete", seeded=False, others=odd)
        return Answer(report | {"versions": versions(*MADE_WITH)})

    @property
    def _grid(self) -> float:
        assert self.mechanism.grid is not None  # counts lie on one
        return self.mechanism.grid


def read_model(path: Path) -> Release:
    """Reads the file of a released model.

    Raises:
        ValueError: naming the file, whatever it holds.
    """
    return load_file(path, Release.load_file, "a released model")


def task_of(federation: Federation, agreed: Path) -> ModelTask | EvaluationTask:
    """The task of a federation, from the one file that it needs; see `agreed_file`.

    Raises:
        ValueError: as `ModelTask.of` and `EvaluationTask.of`.
    """
    if federation.task.get("kind") == KIND:
        return EvaluationTask.of(federation, agreed)
    return ModelTask.of(federation, agreed)
