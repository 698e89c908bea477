"""Options of commands: images, their extraction, and public knowledge of their classes."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pretrain import check
from pretrain.intake.reading import PictureOptions, UnreadableOption

if TYPE_CHECKING:  # what works is imported by the command that runs
    from pretrain.datasets import ImageSet
    from pretrain.preprocess import Size

Dtype = Literal["float32", "float16"]
EngineName = Literal["auto", "openvino", "torch"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
NONE = Path("none")
BY_DESIGN = "fed-emnist:"  # its published split is within every writer


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Source of images; a base of its own, so that the help names it first."""

    data: str
    """An npz file, a folder, csv:FILE, parquet:FILES, hf:DIR, wds:SHARDS, cifar10:DIR,
    cifar100:DIR, emnist:DIR or fed-emnist:PATH."""


@dataclass(frozen=True, kw_only=True)
class ImageOptions(PictureOptions, ImageSource):
    """Options of an image set: its source, labels, users and splits."""

    test_share: float | None = None
    """Share of the users that become test users, chosen by a hash of their names."""
    split_by: Literal["user", "record"] = "user"
    """Unit of --test-share. `record`: the operating system draws records, so a user may have
    records in train and in test."""
    allow_users_in_both_splits: bool = False
    """Accept data whose own split has users in train and test. The accuracy then holds for users
    that the model knows."""
    limit: int | None = None
    """Read only the first images, this many."""
    num_classes: int | None = None
    """Number K of classes, where the data does not name them: labels are 0 to K - 1. K is public.
    Without it classes are counted from the labels, which serves simulations only."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in the order of their labels, instead of --num-classes. Class folders
    may be missing if their classes are named here."""

    def images(self, size: "Size | None" = None) -> "ImageSet":
        """Opens the images.

        Args:
            size: to which pictures are brought, in place of `resize`.

        Raises:
            ValueError: an invalid source or option, or users in train and test both.
        """
        check.at_least(1, **check.present(limit=self.limit))
        from pretrain.datasets import declared_classes
        from pretrain.intake.names import canonical_name, warn_of_case_twins
        from pretrain.intake.splits import (
            check_test_share,
            count_of_tests,
            hold_out_users,
            refuse_users_in_both,
        )
        from pretrain.sources import open_images

        names = tuple(map(canonical_name, self.class_names))
        classes = declared_classes(self.num_classes, names)
        images = open_images(self.data, self.reading(classes), size=size)
        if self.test_share is not None and self.split_by == "user":
            images = hold_out_users(images, self.test_share)
        elif self.test_share is None and not (
            self.allow_users_in_both_splits or self.data.startswith(BY_DESIGN)
        ):
            refuse_users_in_both(images)
        warn_of_case_twins(images.name, images.user_names)
        images = images.take(slice(0, self.limit))
        if self.record_share is not None:
            check_test_share(images, self.record_share)
            count_of_tests(len(images), self.record_share, "records")
        return images

    @property
    def record_share(self) -> float | None:
        """Share of the training records that `embed.extract` draws for testing at its end."""
        return self.test_share if self.split_by == "record" else None


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(UnreadableOption):
    """Options of computing and storing embeddings.

    Raises:
        ValueError: at construction, for a value out of range.
    """

    dtype: Dtype = "float32"
    """Precision of the stored rows."""
    engine: EngineName = "auto"
    """Library that runs the network on a CPU. auto: the fastest that is installed and agrees with
    torch on generated pictures; torch for fewer than 1,000 images and on a GPU."""
    compute: Precision = "auto"
    """Precision of the network. auto on a CPU: bfloat16 where the CPU has it and it agrees."""
    batch_size: int | None = None
    """Images per forward pass (default: 32 on a CPU, 512 on a GPU)."""
    shard_rows: int = 2048
    """Rows per shard; an interrupted run continues after the last finished shard."""
    shard: str | None = None
    """i/n: compute only every n-th shard, starting with the i-th (default: all, or under torchrun
    the share of this process)."""
    device: str | None = None
    """Device to compute on: cpu, cuda or cuda:N (default: cuda if there is one, else cpu)."""
    overwrite: bool = False
    """Replace a finished directory of another extraction."""

    def __post_init__(self) -> None:
        for name, choices in {"dtype": Dtype, "engine": EngineName, "compute": Precision}.items():
            check.one_of(get_args(choices), **{name: getattr(self, name)})
        check.at_least(1, shard_rows=self.shard_rows, **check.present(batch_size=self.batch_size))
        index, count = self.share
        if not 0 <= index < count:
            raise ValueError(f"shard i/n must have 0 <= i < n, got {index}/{count}")

    @property
    def share(self) -> tuple[int, int]:
        """(i, n) of this process, from `shard` or from torchrun's environment."""
        if self.shard is None:
            return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        index, slash, count = self.shard.partition("/")
        if not (slash and index.isdigit() and count.isdigit()):
            raise ValueError(f"shard must be i/n, got {self.shard}")
        return int(index), int(count)


@dataclass(frozen=True)
class Knowledge:
    """Public knowledge of the private classes; a model of few users starts from it."""

    names: tuple[str, ...] | None = None
    """Words for the classes, for --text-encoder
    (default: the names that the private set has)."""
    text_encoder: str | None = None
    """Guess the classes from their names: `package` (extra
    `names`), or a folder that transformers can load
    (default: names are not used)."""
    examples: Path | None = None
    """Public embedding set with labels named as the private
    classes (default: --public, where it has them; none)."""

    @property
    def guesses(self) -> bool:
        """Whether something is known of the classes beside public ones of the same names."""
        return bool(self.text_encoder or self.examples not in (None, NONE))
