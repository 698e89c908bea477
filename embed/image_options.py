"""What a command that reads images asks about them."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # what works is imported by the command that runs
    from pretrain.datasets import ImageSet

SHOWN = 5  # names of skipped files
BY_DESIGN = "fed-emnist:"  # its published split is within every writer


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Which images, and what their labels, users and splits are."""

    data: str
    """An npz file, a folder, csv:FILE, parquet:FILES, hf:DIR, wds:SHARDS, cifar10:DIR,
    cifar100:DIR, emnist:DIR or fed-emnist:PATH."""
    splits: tuple[str, ...] = ()
    """Of train, test, val, evaluation; all that are there by default."""
    path_column: str | None = None
    """Column of files, or of the images themselves; `path` or `image` if left out."""
    label_column: str | None = None
    """Column of classes; `label` if there is one, else the images are unlabelled."""
    user_column: str | None = None
    """Column that says whose image it is; `user` if there is one."""
    split_column: str | None = None
    """Column of train, test, val or evaluation; `split` if there is one, else all is train."""
    layout: Literal["auto", "class", "user-class", "flat"] = "auto"
    """Of a folder: class/image, user/class/image, or images without labels at any depth."""
    test_share: float | None = None
    """Share of the users that become test users, by a hash of their names."""
    split_by: Literal["user", "record"] = "user"
    """What test_share divides. `record`: the operating system draws records, and those of one user
    may then be in train and test."""
    allow_users_in_both_splits: bool = False
    """Take data whose own split has users in train and test; the accuracy is not that on new
    users."""
    skip_unreadable: bool = False
    """Leave out images that cannot be read; unreadable.txt names them, meta.json counts them."""
    max_pixels: int = 89_478_485
    """Most pixels of one picture; a larger one counts as unreadable."""
    limit: int | None = None
    """Only so many images, from the start."""
    num_classes: int | None = None
    """K, where the data names no classes: labels 0 to K - 1. It is public, so it is declared;
    counted from the labels that occur it serves simulations only."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in the order of their labels, instead of num_classes; of class folders
    those that there may be, present or not."""
    resize: int | None = None
    """Shorter side to which all pictures are brought, before the centre square is cut out."""
    download: bool = False
    """Let torchvision fetch a missing data set."""

    def images(self) -> "ImageSet":
        """The images; says on stderr which files were left out.

        Raises:
            ValueError: a source that is none, or users in train and test both.
        """
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be >= 1, got {self.limit}")
        from pretrain.datasets import declared_classes
        from pretrain.intake.reading import ColumnNames
        from pretrain.intake.splits import (
            check_test_share,
            count_of_tests,
            hold_out_users,
            refuse_users_in_both,
        )
        from pretrain.sources import open_images

        columns = ColumnNames(
            path=self.path_column,
            label=self.label_column,
            user=self.user_column,
            split=self.split_column,
        )
        images = open_images(
            self.data,
            splits=self.splits,
            download=self.download,
            resize=self.resize,
            classes=declared_classes(self.num_classes, self.class_names),
            max_pixels=self.max_pixels,
            layout=self.layout,
            columns=columns,
        )
        if self.test_share is not None and self.split_by == "user":
            images = hold_out_users(images, self.test_share)
        elif self.test_share is None and not (
            self.allow_users_in_both_splits or self.data.startswith(BY_DESIGN)
        ):
            refuse_users_in_both(images)
        if images.skipped:
            shown = ", ".join(images.skipped[:SHOWN]) + ", ..." * (len(images.skipped) > SHOWN)
            files = "1 file" if len(images.skipped) == 1 else f"{len(images.skipped)} files"
            print(f"{files} skipped: {shown}", file=sys.stderr)
        images = images.take(slice(0, self.limit))
        if self.test_share is not None and self.split_by == "record":  # drawn in the end
            check_test_share(images, self.test_share)
            count_of_tests(len(images), self.test_share, "records")
        return images
