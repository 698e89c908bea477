"""Transforms of public rows are fitted once for many tasks, and rows test in turn."""

import numpy as np
import torch

from embed.compress import Compression
from embed.transform_options import TransformOptions
from tests.train_distributed.simulation.test_select import PROMISE, blobs
from train_distributed.simulation import rehearsal
from train_distributed.simulation.fits import Fits
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.rehearsal import FOLDS, Candidates, Sizes, rehearse

OPTIONS = {"two": TransformOptions(components=2), "three": TransformOptions(components=3)}
SIZES = Sizes(users=10, rows_per_user=8, num_classes=4)


def test_a_transform_is_that_of_its_options_and_the_same_each_time() -> None:
    public = blobs(200, 4, 0)
    fits = Fits(public, OPTIONS)
    (found,) = fits.transforms(["three"]).values()
    assert fits.transforms(OPTIONS)["three"] is found
    compression = Compression.fit(public, 3, exact=False)
    alone = compression.fit_transform(compression.apply(public), **OPTIONS["three"].arguments())
    rows = torch.from_numpy(fits.public.embeddings)
    assert torch.equal(found(rows), alone(rows))


def test_tasks_of_another_set_share_fits_and_end_as_without(monkeypatch) -> None:
    public, like = blobs(200, 4, 0), blobs(160, 5, 1)
    settings = tuple(MethodConfig("discriminant", "discriminant", name, {}) for name in OPTIONS)
    fitted, fit = [], Compression.fit_transform
    monkeypatch.setattr(
        Compression, "fit_transform", lambda *a, **more: fitted.append(more) or fit(*a, **more)
    )

    def played(**given):
        jobs = rehearse(
            public, [SIZES], [PROMISE], Candidates(settings, OPTIONS), seeds=1, like=like, **given
        )
        return [cell.as_dict() for _, cells in jobs for cell in cells]

    whole = Fits(public, OPTIONS)
    found = [cell for task in range(3) for cell in played(tasks=[task], whole=whole)]
    assert len(fitted) == len(OPTIONS)
    assert found == played(tasks=3)


def test_rows_like_the_private_ones_test_in_turn(monkeypatch) -> None:
    """Each row tests in one of as many tasks as there are folds, classes in proportion."""
    public, like = blobs(200, 4, 0), blobs(160, 4, 1)
    tested, run = [], rehearsal.run_trials

    def recorded(posed, *given, **more):
        held_out = posed.split == 1
        tested.append(posed.embeddings[held_out])
        assert np.bincount(posed.labels[held_out]).tolist() == [160 // FOLDS // 4] * 4
        return run(posed, *given, **more)

    monkeypatch.setattr(rehearsal, "run_trials", recorded)
    candidates = Candidates((MethodConfig("d", "discriminant", "two", {}),), OPTIONS)
    list(rehearse(public, [SIZES], [PROMISE], candidates, tasks=FOLDS, seeds=1, like=like))
    assert len(np.unique(np.concatenate(tested), axis=0)) == len(like)
