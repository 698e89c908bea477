"""Public side of a release: its transform, fitted or loaded, with guesses of the classes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from embed.options import Knowledge
from pretrain import check
from train_distributed.commands.configuration import RunConfig

if TYPE_CHECKING:  # what works is imported by the command that runs
    from embed import EmbeddingSet, PublicTransform

STARTS = "discriminant"  # the method that starts from what is known of the classes


@dataclass(frozen=True, kw_only=True)
class PublicRows:
    """What is public: other data, and what it says of the private classes."""

    public: Path
    """Public embedding set, on which the transform is
    fitted; or the file of `embed fit-transform`."""


@dataclass(frozen=True, kw_only=True)
class PublicSide(Knowledge, PublicRows):
    """What is public, of which the transform is made."""

    def transform(
        self, private: "EmbeddingSet", settings: RunConfig, names: Sequence[str]
    ) -> "PublicTransform":
        """The transform that makes the rows.

        Args:
            private: of whose declared classes something may be known.
            settings: method, and what a configuration says of the public set.
            names: of the classes.

        Raises:
            ValueError: no public set, another one than config was chosen on, or options that do not
                serve.
        """
        from embed import EmbeddingSet, PublicTransform
        from embed.encoding import refuse_other
        from embed.guesses import added_to, examples_of
        from embed.identity import refuse_leak

        if self.public.is_file():
            known = {each.name: getattr(self, each.name) for each in fields(Knowledge)}
            check.not_set("with public a transform", **known)
            return PublicTransform.load(self.public)
        public = EmbeddingSet.open(self.public)
        refuse_other(settings.encoding, public.encoding, ("config", "public"))
        if settings.public_hash not in (None, public.content_hash()):
            raise ValueError(f"public must be the set config was chosen on, got {self.public}")
        refuse_leak(public, private)
        transform = PublicTransform.fit(public)
        turned_up = self.examples is None and examples_of(public, names) is not None
        if settings.method == STARTS and (self.guesses or turned_up):
            return added_to(self, transform, public, names)
        return transform
