"""All users: partition, accounting, noise, one secure sum, release."""

from train_distributed.privacy import Privacy
from train_distributed.release import Release, release

__all__ = ["Privacy", "Release", "release"]
