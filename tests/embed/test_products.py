"""Products of private rows: the same bits at any place, and none but those of `clip.product`."""

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embed import PublicTransform
from embed.clip import product
from tests.embedding_sets import clusters
from tests.kernels import ByPlace

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("embed", "train_distributed/one_shot", "train_distributed/released")
PRODUCTS = {
    *("matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "einsum", "tensordot"),
    *("dot", "vdot", "inner", "linear", "chain_matmul", "multi_dot", "bilinear", "cdist"),
}
PUBLIC, NOISED, EXPORTED = "public rows or names", "noised sums", "of a model that is exported"
# Factors of products elsewhere. Where a file sees private rows, too, its products are counted.
ALLOWED: dict[str, str | dict[str, int]] = {
    "embed/guesses.py": PUBLIC,
    "embed/clip.py": {"product": 1},
    "embed/public_scatter.py": PUBLIC,
    "embed/transform.py": {"PublicTransform.fit": 1, "PublicTransform.mapped": 1, "_trace": 1}
    | {"PublicTransform.guesses": 3},
    "embed/water_filling.py": "public rows, and a noised mean",
    # noised sums
    "train_distributed/one_shot/blind_averaging.py": {"AveragedHeads.fit": 1}
    | {"AveragedHeads.taught_by.loss": 2},
    "train_distributed/one_shot/class_gaussians.py": NOISED,
    "train_distributed/one_shot/class_posterior.py": NOISED,
    "train_distributed/one_shot/discriminant.py": {"class_counts": 1},
    # a sum over rows, whose rounding is charged; then noised sums
    "train_distributed/one_shot/extra_sums.py": {"ClippedGradient.submit": 1}
    | {"Descent._mean_of_last": 2, "Descent.advance": 2, "Descent.of": 3},
    "train_distributed/one_shot/findings.py": {"FindingMoments.submit": 1}
    | {"FindingDiscriminant.fit": 1},
    "train_distributed/released/evaluation_estimates.py": NOISED,
    "train_distributed/released/export.py": EXPORTED,
}


def products(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Qualified name of the function around each product."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        within = (*inside, node.name) if named else inside
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield ".".join(within)
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name.removesuffix("_") in PRODUCTS:
                yield ".".join(within)
        yield from products(node, within)


def test_no_private_row_is_a_factor_of_another_product() -> None:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            found, file = Counter(products(ast.parse(path.read_text()))), path.relative_to(ROOT)
            allowed = ALLOWED.get(file.as_posix(), {})
            assert isinstance(allowed, str) or found == allowed, file
    text = "def f(): a @ b @ c\nclass g:\n def h(s): s.mm(s)"
    assert Counter(products(ast.parse(text))) == {"f": 2, "g.h": 1}


SHAPES = [
    *[(p, q) for p in (1, 2, 3, 7, 33, 64, 129) for q in (1, 2, 3, 10, 15, 16, 17, 48, 62)],
    *[(p, 16 * m) for p in (12, 97, 512) for m in (1, 2, 4, 8)],
]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_at_every_place(threads: int) -> None:
    """In all layouts of its matrix; two threads meet each shape in one of them."""
    draw, before = torch.Generator().manual_seed(threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for number, (p, q) in enumerate(SHAPES):
            dtype = (torch.float64, torch.float32)[number % 2]
            strided = torch.randn(p, 2 * q, generator=draw, dtype=dtype)[:, ::2]
            plain = strided.contiguous()
            layouts = (strided, plain, plain.T.contiguous().T)
            x = torch.randn(1300, p, generator=draw, dtype=dtype)
            order = torch.randperm(len(x), generator=draw)
            for matrix in layouts if threads == 1 else (layouts[number % 5 % 3],):
                made = product(x, matrix)
                assert torch.equal(product(x[order], matrix), made[order])
                assert torch.equal(product(x.T.contiguous().T, matrix), made)
                for part in (slice(3, None), slice(7, 8), slice(5, 8), slice(1000, 1030)):
                    assert torch.equal(product(x[part], matrix), made[part])
                torch.testing.assert_close(made, x @ matrix)
                with ByPlace():
                    assert torch.equal(product(x[order], matrix), made[order])
    finally:
        torch.set_num_threads(before)


def test_the_largest_set_has_the_bits_of_each_row_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    x, matrix = torch.randn(100_003, 9, generator=draw), torch.randn(9, 3, generator=draw)
    made = product(x, matrix)
    assert torch.equal(product(x.roll(1, 0), matrix), made.roll(1, 0))
    for row in (0, 1, 50_000, 100_002):
        assert torch.equal(product(x[row : row + 1], matrix), made[row : row + 1])


def test_the_imagined_processor_rounds_by_place() -> None:
    x, matrix = torch.randn(1300, 9), torch.randn(9, 1).repeat(1, 2)
    with ByPlace():
        assert not torch.equal((x @ matrix).roll(1, 0), x.roll(1, 0) @ matrix)
        assert not torch.equal(*(x @ matrix).T)
        assert torch.equal(*product(x, matrix).T)


@pytest.mark.parametrize(("p", "q", "k"), [(9, 7, 3), (40, 33, 5), (64, 48, 16), (20, 12, 12)])
def test_transformed_rows_have_the_same_bits_at_every_place(p: int, q: int, k: int) -> None:
    """Also in directions and with a length that whoever made the transform has chosen."""
    draw = torch.Generator().manual_seed(p)
    public = clusters(400, 4, p, noise=1.0, seed=p)
    found = PublicTransform.fit(public, components=q).mapped(0.01, k)
    assert found.directions is not None
    k = found.directions.shape[1]
    twins = found.directions[:, :1].repeat(1, k).T.contiguous().T
    x = 3 * torch.randn(2500, p, generator=draw)
    order = torch.randperm(len(x), generator=draw)
    chosen = (replace(found, length=2.0**-20), replace(found, directions=twins))
    places = [order, torch.arange(3, 2500), torch.tensor([8]), torch.tensor([2, 1, 0])]
    places += [torch.arange(count) for count in (1, 5, 50, 1023, 1024, 1025)]
    for each in (found.raw, found, *chosen):
        for processor in (ByPlace(), nullcontext()):
            with processor:
                made = each(x)
                assert all(torch.equal(each(x[rows]), made[rows]) for rows in places)
