"""Public side of a run: its transform, fitted or loaded, with guesses of the classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embed.knowledge import Knowledge
from embed.transform_options import TransformOptions
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
    most_bytes: int | None

    def prepared(
        self,
        private: "EmbeddingSet",
        settings: RunConfig,
        known: "PublicFacts",
        counted: int | None = None,
    ) -> "tuple[RunConfig, PublicTransform]":
        """Settings, filled in by the public rule, and the transform that they describe.

        Where it turns out that nothing is known, as the names say nothing of these classes, both
        are as if nothing had been given.

        Args:
            private: of whose declared classes something may be known.
            settings: as given.
            known: of the run.
            counted: K, for classes that are known by their numbers.

        Raises:
            ValueError: neither a public set nor a transform, or options that do not serve.
        """
        from embed import EmbeddingSet, PublicTransform
        from embed.encoding import refuse_other
        from embed.fit import refuse_leak
        from embed.guesses import added_to, examples_of
        from train_distributed.one_shot.report import class_names

        check.exactly_one(public=self.public, transform=self.transform)
        names = private.declared_classes or tuple(map(str, range(counted or 0)))
        words = class_names(private.declared_classes, known.num_classes)
        if self.transform is not None:
            check.left_out("with transform", most_bytes=self.most_bytes, **self.knowledge.given())
            if settings.transform_options != TransformOptions():
                raise ValueError(
                    f"options of the transform must be left out with transform, which has its own, "
                    f"got {settings.transform_options}"
                )
            loaded = PublicTransform.load(self.transform)
            return settings.filled_in(known, words, width=None), loaded
        assert self.public is not None
        public = EmbeddingSet.open(self.public)
        refuse_other(settings.encoding, public.encoding, ("config", "public"))
        if settings.public_hash not in (None, public.content_hash()):
            raise ValueError(f"public must be the set config was chosen on, got {self.public}")
        refuse_leak(public, private)

        def fitted(knowing: bool) -> "tuple[RunConfig, PublicTransform]":
            filled = settings.filled_in(
                known, words, width=public.dim, knowing=knowing, most_bytes=self.most_bytes
            )
            return filled, filled.transform_options.fit(public)

        turned_up = self.knowledge.examples is None and examples_of(public, names) is not None
        if settings.method == STARTS and (self.knowledge.guesses or turned_up):
            filled, transform = fitted(knowing=True)
            transform = added_to(self.knowledge, transform, public, names)
            if transform.known is not None:
                return filled, transform
        return fitted(knowing=False)
