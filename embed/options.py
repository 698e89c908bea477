"""Options of commands: images, their extraction, and public knowledge of their classes."""

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pretrain import check
from pretrain.intake.reading import (
    PictureOptions,
    UnreadableOption,
    named_columns,
    without_column,
)

if TYPE_CHECKING:  # what works is imported by the command that runs
    from pretrain.datasets import ImageSet
    from pretrain.preprocess import Size

Dtype = Literal["float32", "float16"]
EngineName = Literal["auto", "openvino", "torch"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
UNITS = ("user", "image")  # of what is held out for testing
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

    one_user: bool = False
    """All rows are one owner's, whoever is in the pictures: the set has one user (default: users as
    the data names them, or none)."""
    test_share: float | str | None = None
    """Share of the training rows to test on. 0.2 or user:0.2: a fifth of the users, chosen by a
    hash of their names. image:0.2: a fifth of the images, drawn by the operating system, so that a
    user may have images in train and in test."""
    allow_users_in_both_splits: bool = False
    """Accept data whose own split has users in train and test. The accuracy then holds for users
    that the model knows."""
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
        import numpy as np

        from pretrain.datasets import (
            check_test_share,
            count_of_tests,
            declared_classes,
            hold_out_users,
            refuse_users_in_both,
        )
        from pretrain.intake.reading import canonical_name, warn_of_case_twins
        from pretrain.sources import open_images

        names = tuple(map(canonical_name, self.class_names))
        classes = declared_classes(self.num_classes, names)
        unit, share = self._divided
        images = open_images(self.data, self._named().reading(classes), size=size)
        if self.one_user:
            images = replace(images, users=np.zeros(len(images), np.int64), user_names=())
        if share is not None and unit == "user":
            images = hold_out_users(images, share)
        elif share is None and not (
            self.one_user or self.allow_users_in_both_splits or self.data.startswith(BY_DESIGN)
        ):
            refuse_users_in_both(images)
        warn_of_case_twins(images.name, images.user_names)
        if self.image_share is not None:
            check_test_share(images, self.image_share)
            count_of_tests(len(images), self.image_share, "images")
        return images

    def _named(self) -> "ImageOptions":
        """These options, with no column of users where there is one user."""
        if not self.one_user:
            return self
        named = named_columns(self.columns).get("user")
        check.not_set("with one_user", **{"user= of columns": named})
        return replace(self, columns=without_column(self.columns, "user"))

    @property
    def image_share(self) -> float | None:
        """Share of the training images that `embed.extract` draws for testing at its end."""
        unit, share = self._divided
        return share if unit == "image" else None

    @property
    def _divided(self) -> tuple[str, float | None]:
        """Unit and share of --test-share."""
        if self.test_share is None:
            return "", None
        unit, colon, share = str(self.test_share).rpartition(":")
        with contextlib.suppress(ValueError):
            if unit in UNITS or not colon:
                return unit or "user", float(share)
        raise ValueError(
            f"test_share must be a share such as 0.2, user:0.2 or image:0.2, got {self.test_share}"
        )


@dataclass(frozen=True, kw_only=True)
class StoreOptions(UnreadableOption):
    """Options of computing and storing embeddings that no rule can choose."""

    dtype: Dtype = "float32"
    """Precision of the stored rows; float16 takes half the disk."""
    batch_size: int | None = None
    """Images per forward pass (default: 32 on a CPU, 512 on a GPU); fewer take less memory."""
    device: str | None = None
    """Device to compute on: cpu, cuda or cuda:N (default: cuda if there is one, else cpu)."""
    overwrite: bool = False
    """Replace a finished directory of another extraction."""


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(StoreOptions):
    """Options of `embed.extract`: those of the command, and what is chosen where it is left out.

    Raises:
        ValueError: at construction, for a value out of range.
    """

    engine: EngineName = "auto"
    """Library that runs the network on a CPU. auto: the fastest that is installed and agrees with
    torch on generated pictures; torch for fewer than 1,000 images and on a GPU."""
    compute: Precision = "auto"
    """Precision of the network. auto on a CPU: bfloat16 where the CPU has it and it agrees."""
    shard_rows: int = 2048
    """Rows per shard; an interrupted run continues after the last finished shard."""
    shard: str | None = None
    """i/n: compute only every n-th shard, starting with the i-th (default: all, or the share of
    this process as torchrun says it, by RANK and WORLD_SIZE)."""

    def __post_init__(self) -> None:
        for name, choices in {"dtype": Dtype, "engine": EngineName, "compute": Precision}.items():
            check.one_of(get_args(choices), **{name: getattr(self, name)})
        check.at_least(1, shard_rows=self.shard_rows, **check.drop_none(batch_size=self.batch_size))
        _ = self.share

    @property
    def share(self) -> tuple[int, int]:
        """(i, n) of this process, from `shard` or from torchrun's environment."""
        rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        given, called = (
            (f"{rank}/{size}", "RANK/WORLD_SIZE") if self.shard is None else (self.shard, "shard")
        )
        index, _, count = given.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"{called} must be i/n with 0 <= i < n, got {given}")
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
    classes, or `none` (default: --public, if it has them)."""

    @property
    def guesses(self) -> bool:
        """Whether something is known of the classes beside public ones of the same names."""
        return bool(self.text_encoder or self.examples not in (None, NONE))
