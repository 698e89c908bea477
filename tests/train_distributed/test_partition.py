"""Partitions: every row once, purity, sizes, determinism, streaming."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from train_distributed.partition import Partition, split

seeds = st.integers(0, 2**31)
label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_split(labels, users, scheme, seed):
    options = {
        "dirichlet": {"concentration": 0.3},
        "by-writer": {"writers": (torch.arange(len(labels)) * 7) % users},
    }
    return split(labels, users, scheme, generator=generator(seed), **options.get(scheme, {}))


@pytest.mark.parametrize("scheme", ["iid", "one-class", "dirichlet", "by-writer"])
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data(), values=label_lists, seed=seeds)
def test_every_row_has_one_user_and_every_user_a_row(scheme, data, values, seed):
    labels = torch.tensor(values)
    users = data.draw(st.integers(len(set(values)) if scheme == "one-class" else 1, len(values)))
    if scheme == "by-writer":
        assume(users % 7)  # else i·7 mod users is not onto
    partition = random_split(labels, users, scheme, seed)
    assert torch.equal(partition.order.sort().values, torch.arange(len(labels)))
    assert partition.users == users
    assert partition.counts.min() >= 1
    assert partition.counts.sum() == len(labels)
    assert scheme != "iid" or partition.counts.max() - partition.counts.min() <= 1
    again = random_split(labels, users, scheme, seed)
    assert torch.equal(again.order, partition.order)
    assert torch.equal(again.offsets, partition.offsets)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data(), values=label_lists, seed=seeds)
def test_one_class_users_are_pure_and_proportional(data, values, seed):
    labels = torch.tensor(values)
    users = data.draw(st.integers(len(set(values)), len(values)))
    partition = random_split(labels, users, "one-class", seed)
    sizes = {}
    for user in range(users):
        held = labels[partition.rows(user)].unique()
        assert len(held) == 1
        sizes.setdefault(int(held), []).append(int(partition.counts[user]))
    for held, counts in sizes.items():
        assert max(counts) - min(counts) <= 1
        rows = values.count(held)
        spread = (rows - 1) / max(1, len(values) - len(sizes))
        assert abs(len(counts) - 1 - spread * (users - len(sizes))) < 1


@settings(derandomize=True, max_examples=50, deadline=None)
@given(rows=st.integers(1, 200), data=st.data(), seed=seeds)
def test_iid_takes_unequal_sizes(rows, data, seed):
    users = data.draw(st.integers(1, rows))
    ends = torch.randperm(rows - 1, generator=generator(seed))[: users - 1].sort().values + 1
    sizes = torch.cat([torch.tensor([0]), ends, torch.tensor([rows])]).diff()
    partition = split(torch.zeros(rows).long(), users, sizes=sizes, generator=generator(seed))
    assert sizes.min() >= 1
    assert torch.equal(partition.counts, sizes)
    assert torch.equal(partition.order.sort().values, torch.arange(rows))


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0, 1e6])
def test_dirichlet_variance_is_that_of_its_concentration(concentration):
    # Dirichlet-multinomial: Var = p(1-p)/n · (n + α)/(1 + α); the last users are forced, so 400.
    p, n, labels = 0.1, 50, torch.arange(25_000) % 10
    expected = p * (1 - p) / n * (n + concentration) / (1 + concentration)
    partition = split(labels, 500, "dirichlet", concentration=concentration, generator=generator(3))
    held = torch.nn.functional.one_hot(labels[partition.order].view(500, n), 10).double()
    drawn = (held.mean(1)[:400] - p).square().mean()
    assert drawn == pytest.approx(expected, rel=0.15)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    chunk_rows=st.integers(1, 100),
    seed=seeds,
)
def test_buckets_visit_every_user_once_within_the_chunk(sizes, chunk_rows, seed):
    counts = torch.tensor(sizes)
    rows = int(counts.sum())
    partition = split(torch.zeros(rows).long(), len(sizes), sizes=counts, generator=generator(seed))
    seen = {}
    for bucket in partition.buckets(chunk_rows):
        assert bucket.rows.numel() <= chunk_rows or len(bucket.users) == 1
        assert bucket.rows.shape[1] == bucket.counts.max() <= 1.25 * bucket.counts.min()
        for user, held, mask in zip(bucket.users, bucket.rows, bucket.mask, strict=True):
            assert (held[~mask] == held[0]).all()
            assert int(user) not in seen
            seen[int(user)] = held[mask]
    assert len(seen) == len(sizes)
    assert all(torch.equal(partition.rows(user), held) for user, held in seen.items())


def test_order_is_kept_without_a_generator_and_writers_are_grouped_by_their_number():
    kept = split(torch.zeros(7).long(), 3)
    assert [kept.rows(user).tolist() for user in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    writers = torch.tensor([30, 10, 30, 20, 10, 30])
    grouped = split(torch.zeros(6).long(), None, "by-writer", writers=writers)
    assert [grouped.rows(user).tolist() for user in range(3)] == [[1, 4], [3], [0, 2, 5]]


GOOD = {"labels": torch.tensor([0, 1, 2, 0, 1, 2]), "users": 3}
DIRICHLET = {"scheme": "dirichlet", "concentration": 1.0}
BY_WRITER = {"scheme": "by-writer"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"users": 7}, r"users must be in \[1, 6\], the number of rows, got 7"),
        ({"users": 0}, r"users must be in \[1, 6\], the number of rows, got 0"),
        ({"users": None}, "users must be in .* got None"),
        ({"scheme": "sorted"}, "scheme must be one of iid, .* got 'sorted'"),
        ({"num_classes": 2}, r"labels must be in \[0, 2\), got 2"),
        ({"labels": torch.tensor([0, -1])}, r"labels must be in \[0, 1\), got -1"),
        ({"labels": torch.zeros(0).long()}, "labels must be a non-empty integer vector"),
        ({"labels": torch.zeros(3)}, "labels must be a non-empty .* got torch.float32"),
        ({"users": 2, "scheme": "one-class"}, "users must be >= 3, one per class present, got 2"),
        ({"sizes": torch.tensor([1, 2, 4])}, "sizes must sum to the 6 rows, got 7"),
        ({"sizes": torch.tensor([3, 3])}, "sizes must be 3 integers"),
        ({"sizes": torch.tensor([3, 3, 0])}, "users must each hold a row, got 0 for user 2"),
        ({"sizes": torch.tensor([5, 2, -1])}, "users must each hold a row, got -1 for user 2"),
        ({"concentration": 1.0}, "concentration must be None for scheme 'iid', got 1.0"),
        ({"scheme": "dirichlet"}, "concentration must be given for scheme 'dirichlet'"),
        (DIRICHLET, "generator must be given for scheme 'dirichlet'"),
        (DIRICHLET | {"concentration": 0.0, "generator": generator()}, "must be finite and > 0"),
        (BY_WRITER, "writers must be given for scheme 'by-writer'"),
        (BY_WRITER | {"writers": torch.zeros(6).long()}, "users must be 1, .* or None, got 3"),
        (BY_WRITER | {"writers": torch.zeros(5)}, r"writers must be \(6\)"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        split(**(GOOD | given))


def test_bad_sizes_and_buckets_are_refused():
    with pytest.raises(ValueError, match="chunk_rows must be >= 1, got 0"):
        split(torch.zeros(4).long(), 2).buckets(0)
    with pytest.raises(ValueError, match="offsets must run from 0 to 4"):
        Partition(torch.arange(4), torch.tensor([0, 2]))
