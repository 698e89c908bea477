"""Knowledge of private classes before a run, played through on public classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embed import EmbeddingSet, PublicTransform
from embed.class_sources import ClassMeans
from embed.encoding import refuse_other
from embed.guesses import Sources, examples_of, knowing
from embed.knowledge import NONE, Knowledge

HELD_BACK = 0.5  # of the rows of a task's class, at most, that are its examples


@dataclass(frozen=True)
class KnownBefore:
    """Sources of a run, for tasks whose classes are groups of public ones.

    A task's class has the names of its public classes, which the rule from names to class means
    does not know, and examples that are held back from its rows.
    """

    sources: Sources
    examples: int = 0  # of each class

    @classmethod
    def of(cls, knowledge: Knowledge, public: EmbeddingSet) -> "KnownBefore | None":
        """Knowledge that the options give; None: nothing that can be played through.

        Raises ValueError for options that do not serve.
        """
        number = 0
        if knowledge.examples not in (None, NONE):
            shown = EmbeddingSet.open(knowledge.examples)
            shown.need_labels("examples")
            refuse_other(public.encoding, shown.encoding, ("public", "examples"))
            number = int(np.median(np.unique(shown.labels, return_counts=True)[1]))
        elif knowledge.examples is None and examples_of(public, knowledge.names or ()) is not None:
            number = len(public)
        if knowledge.text_encoder is None and not number:
            return None
        return cls(Sources.of(knowledge, public), number)

    def held_back(self, labels: np.ndarray, task: int) -> np.ndarray:
        """(n,) bool mask of the rows of (n,) labels that are shown as examples."""
        order = np.random.default_rng([task, 1]).permutation(len(labels))
        shown = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            own = order[labels[order] == label]
            shown[own[: min(self.examples, int(HELD_BACK * len(own)))]] = True
        return shown

    def added_to(
        self,
        transform: PublicTransform,
        public: EmbeddingSet,
        groups: Sequence[Sequence[int]],
        shown: EmbeddingSet | None,
    ) -> PublicTransform:
        """The transform with guesses of a task's classes.

        Args:
            transform: in the coordinates of the sets and of `sources`.
            public: rows that it was fitted on.
            groups: public classes of each class of the task.
            shown: examples, labelled by the task's classes.
        """
        means = ClassMeans.of(public, transform, self.sources.classes)
        asked = [label for group in groups for label in group]
        rule, words = self.sources.rule(transform, means, without=asked)
        vectors = self.sources.public
        named = [] if vectors is None else [vectors[list(group)] for group in groups]
        own, found = range(len(groups)), None
        if shown is not None:
            found = ClassMeans.of(shown, transform, len(own), scattered=True)
        return knowing(transform, [*map(str, own)], rule, words, named, found)
