import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pretrain import build_encoder
from pretrain.simclr_v2 import build_simclr_v2, from_variables, variable_map


def variable_shapes(arch: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes, height-width-in-out for kernels, of the variables that `arch` needs."""
    with torch.device("meta"):
        network = build_simclr_v2(arch)
    tensors = network.state_dict()
    shapes = {tf: tuple(tensors[own].shape) for tf, own in variable_map(network).items()}
    return {tf: tuple(s[a] for a in (2, 3, 1, 0)) if len(s) == 4 else s for tf, s in shapes.items()}


def rule_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The weights under which the original TensorFlow networks were evaluated."""
    weights = {}
    for name, shape in shapes.items():
        z = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if name.endswith("kernel"):
            z = z * np.sqrt(2 / np.prod(shape[:-1]))
        elif name.endswith("gamma"):
            z = 1 + 0.1 * z
        elif name.endswith("moving_variance"):
            z = np.exp(0.3 * z)
        else:
            z = 0.1 * z
        weights[name] = z.astype(np.float32)
    return weights


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def run_stages(network: nn.Module, pixels: np.ndarray, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """NHWC outputs per stage."""
    x = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).to(dtype)
    with torch.inference_mode():
        stages = dict(network.to(dtype).stages(x))  # pyright: ignore[reportCallIssue]
    return {k: (v.permute(0, 2, 3, 1) if v.ndim == 4 else v).numpy() for k, v in stages.items()}


# Under the rule's weights the third group of r101 mixes its two streams with logits near 1e6:
# for the first image float32 and float64 of one and the same network differ by 40 % there. So do
# TensorFlow's own float32 kernels: 2.21 in graph mode with oneDNN gives the golden values bit for
# bit, eagerly or without oneDNN values 17 to 35 % away. All else is compared.
ILL_CONDITIONED = {
    ("r101_1x_sk1", stage, 0) for stage in ("block_group3", "block_group4", "final_avg_pool")
}


@pytest.mark.parametrize(
    "arch",
    [
        "r50_1x_sk1",
        "r50_1x_sk0",
        pytest.param("r50_2x_sk1", marks=pytest.mark.slow),
        pytest.param("r101_1x_sk1", marks=pytest.mark.slow),
    ],
)
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
    "arch",
    ["r50_1x_sk1", "r50_1x_sk0", "r50_2x_sk1", "r101_1x_sk1", "r152_3x_sk1", "r152_1x_sk0"],
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
    [(50, (24, 35, 94, 140)), (101, (43, 65, 170, 257)), (152, (58, 89, 233, 354))],
)
def test_parameter_counts_are_those_published(depth: int, millions: tuple[int, ...]) -> None:
    names = [f"r{depth}_{width}x_sk{sk}" for width in (1, 2) for sk in (0, 1)]
    assert [count(name) for name in names] == list(millions)
    assert depth < 152 or count("r152_3x_sk1") == 795


def count(name: str) -> int:
    with torch.device("meta"):
        network = build_simclr_v2(name)
    state = network.state_dict()
    tensors = [state[own] for own in variable_map(network).values()]
    return round(sum(t.numel() for t in tensors) / 1e6)  # the published counts include statistics


@pytest.mark.parametrize("name", ["r18_1x_sk1", "r50_1x", "r50_0x_sk0", "resnet50"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ValueError, match="SimCLRv2 name must be"):
        build_encoder(f"simclrv2:{name}", weights="random")


LEFT_OUT = (
    *("head_contrastive/nl_0/dense/kernel", "head_supervised/linear_layer/dense/bias"),
    *("base_model/conv2d/kernel/Momentum", "global_step"),
)


def test_every_variable_must_be_there_and_fit() -> None:
    variables = rule_weights(variable_shapes("r50_1x_sk1"))
    kernel, beta = "base_model/conv2d_4/kernel", "base_model/batch_normalization_2/beta"
    for changed, rule in (
        ({kernel: None}, rf"1 missing \['{kernel}'\]"),
        ({"base_model/dense/kernel": np.zeros(1)}, r"1 unknown \['base_model/dense/kernel'\]"),
        (
            {kernel: variables[kernel].reshape(64, 64, 1, 1)},
            r"groups\S+weight must have shape \(64, 64, 1, 1\)",
        ),
        ({beta: variables[beta] * np.nan}, r"bias must be finite"),
    ):
        given = {name: v for name, v in (variables | changed).items() if v is not None}
        with pytest.raises(ValueError, match=rule):
            from_variables("r50_1x_sk1", given)
    with pytest.raises(ValueError, match="variables must be exactly those of r101_1x_sk1"):
        from_variables("r101_1x_sk1", variables)
    network = from_variables("r50_1x_sk1", variables | {name: np.zeros(3) for name in LEFT_OUT})
    for size in (32, 33, 64, 65):
        with torch.inference_mode():
            assert network(torch.rand(1, 3, size, size)).shape == (1, 2048)
