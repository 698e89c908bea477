"""No picture decides about rows of others: engine, precision, place, company, products."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embed import PublicTransform, engines
from embed.clip import ROWS, in_blocks, product
from embed.engines import choose, refusal, trial_pictures
from pretrain import build_encoder
from pretrain.datasets import ImageSet
from pretrain.preprocess import Preprocess
from tests.embed.conftest import Mean, embed
from tests.embedding_sets import clusters
from tests.kernels import ByPlace

CPU = torch.device("cpu")


class Dazzled(Mean):
    """Turns bright pictures round in bfloat16, as no engine should and some may."""

    def forward(self, images: Tensor) -> Tensor:
        rows = super().forward(images)
        bright = images.mean((1, 2, 3)) > 0.9
        turned = bright & torch.is_autocast_enabled("cpu")
        return torch.where(turned[:, None], -rows, rows)


def a_set(pixels: np.ndarray) -> ImageSet:
    return ImageSet(
        name="set",
        labels=np.zeros(len(pixels), np.int64),
        split=np.zeros(len(pixels), np.uint8),
        class_names=("a", "b"),
        read=lambda rows: pixels[rows],
    )


def test_no_private_picture_chooses_the_precision(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "choose_dtype", lambda device: torch.bfloat16)
    monkeypatch.setattr(engines, "FEW", 0)
    pixels = np.random.default_rng(0).integers(0, 200, (40, 8, 8, 3), np.uint8)
    neighbour = pixels.copy()
    neighbour[0] = 255
    first, second = (
        embed(a_set(each), Dazzled(), tmp_path / name, engine="torch", batch_size=4)
        for name, each in (("first", pixels), ("second", neighbour))
    )
    assert first.meta["compute"] == second.meta["compute"] == "bfloat16"
    assert np.array_equal(first.embeddings[1:], second.embeddings[1:])


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "by place": lambda x: x.mean((2, 3)) + torch.eye(len(x))[:, -1:] * 2**-20,  # the last one
    "by company": lambda x: x.mean((2, 3)) * (1 + x.mean() * 2**-10),
    "by number": lambda x: x.mean((2, 3)) + len(x) * 2.0**-20,
}


@pytest.mark.parametrize("name", ["by place", "by company"])
def test_an_engine_that_mixes_pictures_takes_them_one_by_one(monkeypatch, capsys, name) -> None:
    monkeypatch.setattr(engines, "fast_forward", lambda *_, **__: MIXING[name])
    pixels = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    found = choose(nn.Identity(), CPU, lambda: pixels, rows=8, batch_size=8)
    assert "must not depend on a picture's place in its batch" in capsys.readouterr().err
    order = torch.randperm(8)
    assert torch.equal(found.forward(pixels)[order], found.forward(pixels[order]))
    assert torch.equal(found.forward(pixels)[2:3], found.forward(pixels[2:3]))


def test_a_row_does_not_show_how_many_others_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "fast_forward", lambda *_, **__: MIXING["by number"])
    pixels = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    forward = choose(nn.Identity(), CPU, lambda: pixels, rows=20, batch_size=8).forward
    for count in range(1, 8):
        assert torch.equal(forward(pixels[:count]), forward(pixels)[:count])


def test_generated_pictures_are_the_same_for_everybody_and_differ() -> None:
    pictures = trial_pictures(8, 24, 32)
    assert (pictures.shape, pictures.dtype) == ((8, 3, 24, 32), torch.uint8)
    assert torch.equal(pictures, trial_pictures(8, 24, 32))
    assert len(pictures.flatten(1).unique(dim=0)) == 8
    assert pictures.float().std((1, 2, 3)).min() > 40


def rows_at_any_place(forward: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """The same for pictures that are moved or fewer."""
    rows, batch = forward(pixels), len(pixels)
    for shift in (1, 2, 7, batch // 2):
        assert torch.equal(forward(pixels.roll(shift, 0)).roll(-shift, 0), rows)
    for count in (1, 2, 5, batch - 1):
        assert torch.equal(forward(pixels[:count]), rows[:count])
    return rows


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize("batch", [32, 7])
def test_rows_of_a_real_encoder_stay_the_same_bits_wherever_they_are(engine, batch) -> None:
    if engine == "openvino" and (why := refusal("float32")):
        pytest.skip(why)
    encoder = build_encoder("simclr-small").eval()
    given = [
        Preprocess()(trial_pictures(batch, 32, 32)),
        torch.rand(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
    ]
    found = choose(encoder, CPU, lambda: given[0], rows=5_000, batch_size=batch, engine=engine)
    rows = rows_at_any_place(found.forward, given[1])
    half = torch.cat([given[0][: batch // 2], given[1][batch // 2 :]])
    assert torch.equal(found.forward(half)[batch // 2 :], rows[batch // 2 :])


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 2500])
def test_a_product_always_has_as_many_rows(rows: int) -> None:
    """Whatever this machine's kernels do: some sum alike for any number of rows."""
    x, seen = torch.randn(rows, 3), list[int]()

    def compute(block: torch.Tensor, start: int) -> torch.Tensor:
        seen.append(len(block))
        return 2 * block

    assert torch.equal(in_blocks(x, compute, torch.empty(rows, 3)), 2 * x)
    assert seen == [ROWS] * -(-rows // ROWS)


@pytest.mark.parametrize("name", ["simclr-small", "concat:timm:resnet10t@32+simclr-small@16"])
def test_an_embedding_set_of_other_rows_before_it_ends_in_the_same_rows(tmp_path, name) -> None:
    """As where a picture gets another class, and all after it move up."""
    pixels = np.random.default_rng(0).integers(0, 256, (33, 32, 32, 3), np.uint8)
    encoder = build_encoder(name, weights="random" if "timm" in name else None)
    first, moved = (
        embed(a_set(np.roll(pixels, by, 0)), encoder, tmp_path / f"{by}", shard_rows=20)
        for by in (0, 1)
    )
    assert np.array_equal(np.roll(first.embeddings, 1, 0), moved.embeddings)


@pytest.mark.gpu
@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["simclr-small", "timm:resnet50", "timm:vit_tiny_patch16_224"])
def test_rows_of_a_gpu_stay_the_same_bits_wherever_they_are(name: str, compute: str) -> None:
    device, batch = torch.device("cuda"), 64
    encoder = build_encoder(name, weights="random" if name.startswith("timm") else None).eval()
    trial = encoder.preprocess(trial_pictures(batch, 32, 32).to(device))
    found = choose(encoder, device, lambda: trial, rows=5_000, batch_size=batch, compute=compute)
    pixels = torch.rand(trial.shape, generator=torch.Generator().manual_seed(0)).to(device)
    rows_at_any_place(found.forward, pixels)


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
    x[0] = 3e38  # whose products overflow
    order = torch.randperm(len(x), generator=draw)
    chosen = (replace(found, length=2.0**-20), replace(found, directions=twins))
    places = [order, torch.arange(3, 2500), torch.tensor([8]), torch.tensor([2, 1, 0])]
    places += [torch.arange(count) for count in (1, 5, 50, 1023, 1024, 1025)]
    for each in (found.raw, found, *chosen):
        for processor in (ByPlace(), nullcontext()):
            with processor:
                made = each(x)
                assert all(torch.equal(each(x[rows]), made[rows]) for rows in places)
