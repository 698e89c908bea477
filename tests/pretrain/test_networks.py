"""SimCLRv2 stage by stage as the original computes it; small convolutions as torch does."""

import copy
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pretrain import build_encoder, resnet
from pretrain.resnet import convolve
from pretrain.simclr_v2 import build_simclr_v2, from_variables, variable_map

# Under the rule's weights the third group of r101 mixes its two streams with logits near 1e6:
# for the first image float32 and float64 of one and the same network differ by 40 % there. So do
# TensorFlow's own float32 kernels: 2.21 in graph mode with oneDNN gives the golden values bit for
# bit, eagerly or without oneDNN values 17 to 35 % away. All else is compared.
ILL_CONDITIONED = {
    ("r101_1x_sk1", stage, 0) for stage in ("block_group3", "block_group4", "final_avg_pool")
}
SLOW = [pytest.param(arch, marks=pytest.mark.slow) for arch in ("r50_2x_sk1", "r101_1x_sk1")]
SHAPES = [(1, 1, 1), (1, 4, 1), (2, 3, 1), (3, 3, 1), (4, 4, 1), (6, 6, 2), (5, 7, 2), (8, 8, 2)]


def variable_shapes(arch: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes, height-width-in-out for kernels, of the variables that `arch` needs."""
    with torch.device("meta"):
        network = build_simclr_v2(arch)
    tensors = network.state_dict()
    shapes = {tf: tuple(tensors[own].shape) for tf, own in variable_map(network).items()}
    return {tf: tuple(s[a] for a in (2, 3, 1, 0)) if len(s) == 4 else s for tf, s in shapes.items()}


def rule_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The weights under which the original TensorFlow networks were evaluated."""
    rules: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "kernel": lambda z: z * np.sqrt(2 / np.prod(z.shape[:-1])),
        "gamma": lambda z: 1 + 0.1 * z,
        "moving_variance": lambda z: np.exp(0.3 * z),
    }
    weights = {}
    for name, shape in shapes.items():
        z = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        rule = rules.get(name.rpartition("/")[2], lambda z: 0.1 * z)
        weights[name] = rule(z).astype(np.float32)
    return weights


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def run_stages(network: nn.Module, pixels: np.ndarray, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """NHWC outputs per stage."""
    x = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).to(dtype)
    with torch.inference_mode():
        stages = dict(network.to(dtype).stages(x))  # pyright: ignore[reportCallIssue]
    return {k: (v.permute(0, 2, 3, 1) if v.ndim == 4 else v).numpy() for k, v in stages.items()}


@pytest.mark.parametrize("arch", ["r50_1x_sk1", "r50_1x_sk0", *SLOW])
def test_every_stage_equals_the_original(reference_data: Path, arch: str) -> None:
    golden = np.load(reference_data / "golden" / "simclr_v2.npz")
    size = int(golden[f"{arch}/input_size"])
    pixels = np.random.default_rng(7).random((2, size, size, 3)).astype(np.float32)
    network = from_variables(arch, rule_weights(variable_shapes(arch)))
    single, double = (run_stages(network, pixels, t) for t in (torch.float32, torch.float64))
    for stage, output in double.items():
        pooled = stage == "final_avg_pool"
        expected = golden[f"{arch}/{stage}" if pooled else f"{arch}/{stage}/corner"]
        found = output if pooled else output[:, :2, :2, :8]
        stable = [(arch, stage, image) not in ILL_CONDITIONED for image in range(2)]
        for image in range(2):
            rounding = relative(single[stage][image], output[image])
            assert (rounding < 2e-4) == stable[image]
            if stable[image]:
                assert relative(found[image], expected[image]) < 1e-4
        if all(stable) and not pooled:
            moments = np.array([output.mean(), output.std()])
            assert relative(moments, golden[f"{arch}/{stage}/mean_std"]) < 1e-4


@pytest.mark.parametrize(
    "arch", ["r50_1x_sk1", "r50_1x_sk0", "r50_2x_sk1", "r101_1x_sk1", "r152_3x_sk1", "r152_1x_sk0"]
)
def test_every_original_variable_is_mapped_exactly_once(reference_data: Path, arch: str) -> None:
    golden = np.load(reference_data / "golden" / "simclr_v2.npz")
    expected = {
        str(name): tuple(json.loads(str(shape)))
        for name, shape in zip(golden[f"{arch}/names"], golden[f"{arch}/shapes"], strict=True)
    }
    assert variable_shapes(arch) == expected
    with torch.device("meta"):
        network = build_simclr_v2(arch)
    targets = list(variable_map(network).values())
    kept = [name for name in network.state_dict() if "num_batches" not in name]
    assert sorted(targets) == sorted(kept)


@pytest.mark.parametrize(
    ("depth", "millions"),
    [(50, (24, 35, 94, 140)), (101, (43, 65, 170, 257)), (152, (58, 89, 233, 354, 795))],
)
def test_parameter_counts_are_those_published(depth: int, millions: tuple[int, ...]) -> None:
    kinds = ("1x_sk0", "1x_sk1", "2x_sk0", "2x_sk1", "3x_sk1")
    for kind, count in zip(kinds, millions, strict=False):  # of weights and running statistics
        shapes = variable_shapes(f"r{depth}_{kind}").values()
        assert round(sum(map(math.prod, shapes)) / 1e6) == count


def test_every_variable_must_be_there_and_fit() -> None:
    variables = rule_weights(variable_shapes("r50_1x_sk1"))
    kernel, beta = "base_model/conv2d_4/kernel", "base_model/batch_normalization_2/beta"
    turned, nan = variables[kernel].reshape(64, 64, 1, 1), variables[beta] * np.nan
    for arch, changed, rule in (
        ("r50_1x_sk1", {kernel: None}, rf"1 missing \['{kernel}'\]"),
        ("r50_1x_sk1", {"base_model/new": nan}, r"1 unknown \['base_model/new'\]"),
        ("r50_1x_sk1", {kernel: turned}, r"groups\S+weight must have shape \(64, 64, 1, 1\)"),
        ("r50_1x_sk1", {beta: nan}, r"bias must be finite"),
        ("r101_1x_sk1", {}, "variables must be exactly those of r101_1x_sk1"),
    ):
        given = {name: v for name, v in (variables | changed).items() if v is not None}
        with pytest.raises(ValueError, match=rule):
            from_variables(arch, given)
    for name in ("r18_1x_sk1", "r50_1x", "r50_0x_sk0", "resnet50"):
        with pytest.raises(ValueError, match="SimCLRv2 name must be"):
            build_encoder(f"simclrv2:{name}", weights="random")
    left_out = ["head_contrastive/nl_0/dense/kernel", "head_supervised/linear_layer/dense/bias"]
    left_out += ["base_model/conv2d/kernel/Momentum", "global_step"]
    network = from_variables("r50_1x_sk1", variables | dict.fromkeys(left_out, np.zeros(3)))
    for size in (32, 33, 64, 65):
        with torch.inference_mode():
            assert network(torch.rand(1, 3, size, size)).shape == (1, 2048)


def _pair(h: int, w: int, stride: int, dtype: torch.dtype) -> tuple[nn.Conv2d, torch.Tensor]:
    generator = torch.Generator().manual_seed(h * 100 + w * 10 + stride)
    layer = nn.Conv2d(5, 7, 3, stride, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    x = torch.randn(4, 5, h, w, dtype=dtype, generator=generator)
    return layer, x.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every convolution that is not torch's."""
    calls, parts = [], resnet._parts
    monkeypatch.setattr(resnet, "_parts", lambda *of: calls.append(1) or parts(*of))
    return calls


@pytest.mark.parametrize(("h", "w", "stride"), SHAPES)
def test_results_and_gradients_are_those_of_torch_and_autocast_s(h, w, stride, taken) -> None:
    layer, x = _pair(h, w, stride, torch.float64)
    expected, found = layer(x), convolve(x, layer)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous(memory_format=torch.channels_last)
    weights = torch.randn_like(expected)
    right = torch.autograd.grad((expected * weights).sum(), (x, layer.weight))
    gradients = torch.autograd.grad((found * weights).sum(), (x, layer.weight))
    torch.testing.assert_close(gradients, right, rtol=1e-12, atol=1e-12)
    assert len(taken) == 2

    layer, x = _pair(h, w, stride, torch.float32)
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolve(x, layer)
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()
    (right,) = torch.autograd.grad(exact.square().sum(), layer.weight)
    found.float().square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert (layer.weight.grad - right).abs().max() < 0.03 * right.abs().max()


def test_gradients_of_an_expanded_gradient_and_of_plain_memory() -> None:
    layer, x = _pair(3, 2, 1, torch.float64)
    plain = x.detach().contiguous().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: convolve(x, layer).mean((2, 3)), plain)


def test_large_maps_and_finished_encoders_are_torchs(taken: list[int]) -> None:
    layer, x = _pair(5, 4, 1, torch.float32)
    assert torch.equal(convolve(x, layer), layer(x))
    finished = copy.deepcopy(layer).eval()
    assert torch.equal(convolve(x[:, :, :2], finished), layer(x[:, :, :2]))
    assert not taken
