"""Public side of a run: its transform, fitted or loaded, with guesses of the classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from embed.options import Knowledge
from pretrain import check
from train_distributed.commands.configuration import RunConfig

if TYPE_CHECKING:  # what works is imported by the command that runs
    from embed import EmbeddingSet, PublicTransform
    from train_distributed.one_shot.defaults import PublicFacts

STARTS = "discriminant"  # the method that starts from what is known of the classes


@dataclass(frozen=True)
class PublicSide:
    """Where the transform comes from, and public knowledge of the classes."""

    public: Path | None
    transform: Path | None
    knowledge: Knowledge

    def prepared(
        self,
        private: "EmbeddingSet",
        settings: RunConfig,
        known: "PublicFacts",
        counted: int | None = None,
    ) -> "tuple[RunConfig, PublicTransform]":
        """Settings, filled in by the public rule, and the transform that makes the rows.

        Args:
            private: of whose declared classes something may be known.
            settings: as given.
            known: of the run.
            counted: K, for classes that are known by their numbers.

        Raises:
            ValueError: neither a public set nor a transform, or options that do not serve.
        """
        from train_distributed.one_shot.class_prior import with_shares
        from train_distributed.one_shot.registry import METHODS
        from train_distributed.one_shot.report import class_names

        names = private.declared_classes or tuple(map(str, range(counted or 0)))
        transform = self._transform(private, settings, names)
        words = class_names(private.declared_classes, known.num_classes)
        options = with_shares(settings.options, words)
        if settings.method in METHODS:
            options = known.settings(settings.method, transform, options)
        else:
            transform, options = known.of_rival(settings.method, transform, options)
        return replace(settings, options=options), transform

    def _transform(
        self, private: "EmbeddingSet", settings: RunConfig, names: Sequence[str]
    ) -> "PublicTransform":
        from embed import EmbeddingSet, PublicTransform
        from embed.encoding import refuse_other
        from embed.guesses import added_to, examples_of
        from embed.identity import refuse_leak

        check.exactly_one(public=self.public, transform=self.transform)
        if self.transform is not None:
            check.left_out("with transform", **vars(self.knowledge))
            return PublicTransform.load(self.transform)
        assert self.public is not None
        public = EmbeddingSet.open(self.public)
        refuse_other(settings.encoding, public.encoding, ("config", "public"))
        if settings.public_hash not in (None, public.content_hash()):
            raise ValueError(f"public must be the set config was chosen on, got {self.public}")
        refuse_leak(public, private)
        transform = PublicTransform.fit(public)
        turned_up = self.knowledge.examples is None and examples_of(public, names) is not None
        if settings.method == STARTS and (self.knowledge.guesses or turned_up):
            return added_to(self.knowledge, transform, public, names)
        return transform
