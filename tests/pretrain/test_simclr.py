"""SimCLR: loss against the paper's pseudocode, views, a loop that resumes to the bit, commands."""

import dataclasses
import itertools
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn

from pretrain import build_encoder, simclr
from pretrain.commands import Convert, Probe, Simclr
from pretrain.preprocess import Preprocess
from pretrain.probe import embed_all, knn_accuracy, linear_accuracy
from pretrain.recipes import DIGITS, SMALL
from pretrain.resnet import ResNetConfig
from pretrain.simclr import AugmentConfig, SimCLRConfig, jitter_colours, nt_xent, pretrain
from pretrain.simclr_v2 import read_tensorflow
from tests.ports import free_port
from tests.pretrain.test_networks import variable_shapes

ROOT = Path(__file__).parents[2]
SIZES: dict[str, Any] = {"epochs": 3, "batch_size": 16, "hidden": 16, "projected": 8}
SIZES |= {"encoder": ResNetConfig((8, 16), (1, 1)), "augment": AugmentConfig(size=8)}
CONFIG = SimCLRConfig(**SIZES)
SHORT = dataclasses.replace(CONFIG, epochs=1)
PLAIN = AugmentConfig(size=8, min_area=1.0, strength=0.0, flip=False, greyscale=0.0)


def pictures(n: int = 64, side: int = 8) -> Tensor:
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=seeded(0))


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("steps", [1, 4, 11])
def test_a_resumed_run_has_the_same_weights(tmp_path: Path, monkeypatch, steps: int) -> None:
    whole, history = pretrain(pictures(), CONFIG, seeded())
    save = simclr._Run.save

    def save_and_die(run: simclr._Run, path: Path, images: Tensor) -> None:
        save(run, path, images)
        if run.step == steps:
            raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(simclr, "CHECKPOINT_STEPS", 1)
        patch.setattr(simclr._Run, "save", save_and_die)
        with pytest.raises(RuntimeError, match="killed"):
            pretrain(pictures(), CONFIG, seeded(), directory=tmp_path)
    resumed, again = pretrain(pictures(), CONFIG, seeded(), directory=tmp_path)
    assert again == history
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    pretrain(pictures(), SHORT, seeded(), directory=tmp_path)
    for images, config, seed, rule in (
        (pictures(), CONFIG, 5, "must be of the same run, got another epochs"),
        (pictures(), SHORT, 6, "another seed"),
        (pictures(32), SHORT, 5, "another images"),
        (pictures(), dataclasses.replace(SHORT, temperature=1.0), 5, "another temperature"),
        (pictures(), SHORT, 5, "must be a SimCLR checkpoint"),
    ):
        if "checkpoint" in rule:
            (tmp_path / simclr.CHECKPOINT).write_bytes(b"PK nothing")
        with pytest.raises(ValueError, match=rule):
            pretrain(images, config, seeded(seed), directory=tmp_path)


def test_the_loss_falls() -> None:
    config = dataclasses.replace(CONFIG, epochs=6, learning_rate=5e-3)
    shades = torch.randint(0, 256, (64, 3, 1, 1), dtype=torch.uint8, generator=seeded())
    images = (pictures() // 8 + shades // 2).expand(-1, -1, 8, 8).contiguous()
    _, history = pretrain(images, config, seeded())
    assert history[-1]["loss"] < history[0]["loss"]


def test_what_cannot_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, augment = SimCLRConfig, AugmentConfig
    for made, options, rule in (
        (recipe, {"learning_rate": 0.0}, "learning_rate must be finite and > 0, got 0.0"),
        (recipe, {"temperature": math.nan}, "temperature must be finite and > 0, got nan"),
        (recipe, {"warmup": 1.0}, r"warmup must be in \[0, 1\)"),
        (augment, {"min_area": 0.0}, "min_area must be"),
        (augment, {"strength": -1.0}, "strength must be"),
        (augment, {"greyscale": 1.5}, "greyscale must be"),
        (ResNetConfig, {"widths": ()}, "widths must be >= 1"),
        (ResNetConfig, {"blocks": (1,)}, "blocks must be >= 1 for each"),
        (ResNetConfig, {"stem_stride": 3}, "stem_stride must be one of 1, 2"),
        (Preprocess, {"crop": 0}, r"crop must be in \(0, 1\], got 0"),
        (Preprocess, {"image_size": 0}, "image_size must be >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=rule):
            made(**options)  # pyright: ignore[reportArgumentType]
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="temperature must be > 0"):
            nt_xent(*views(2, 2), temperature)
    with pytest.raises(ValueError, match=r"must both be \(n, k\)"):
        nt_xent(torch.zeros(2, 3), torch.zeros(3, 3), 1.0)
    monkeypatch.setattr(simclr, "world_size", lambda: 3)
    with pytest.raises(ValueError, match="batch_size must be divisible by 3 processes, got 16"):
        pretrain(pictures(), CONFIG, seeded())


def test_the_learning_rate_warms_up_and_ends_at_zero() -> None:
    rates = [simclr.cosine_rate(step, total=100, warmup=10) for step in range(101)]
    assert rates[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert rates[100] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def clusters(n: int, seed: int) -> tuple[Tensor, np.ndarray]:
    labels = torch.arange(n) % 4
    rows = 4 * torch.eye(4, 10)[labels] + torch.randn(n, 10, generator=seeded(seed))
    return rows, labels.numpy()


def test_probes_find_separated_classes_and_nothing_else() -> None:
    train, y = clusters(400, 0)
    test, test_y = clusters(200, 1)
    assert knn_accuracy(train, y, test, test_y) > 0.95
    assert linear_accuracy(train, y, test, test_y) > 0.95
    shuffled = y[torch.randperm(400, generator=seeded())]
    assert linear_accuracy(train, shuffled, test, test_y) < 0.5
    assert knn_accuracy(train[:4], y[:4], test, test_y) > 0.9  # fewer than k
    near = torch.tensor([[1.0, 0.01], *[[1.0, 0.5 + k / 10] for k in range(9)]])
    labels = np.array([0] + [1] * 9)  # one near neighbour outvotes many others
    assert knn_accuracy(near, labels, torch.tensor([[2.0, 0.0]]), labels[:1], k=3) == 1.0


def test_embedding_in_batches() -> None:
    encoder, _ = pretrain(pictures(), SHORT, seeded())
    whole = embed_all(encoder, pictures(300))
    assert whole.shape == (300, 16)
    assert torch.allclose(whole[250:], embed_all(encoder, pictures(300)[250:]), atol=1e-5)


@pytest.mark.parametrize("recipe", [SMALL, DIGITS])
def test_recipes_train(recipe: SimCLRConfig) -> None:
    short = dataclasses.replace(recipe, epochs=1, batch_size=4)
    encoder, history = pretrain(pictures(8, side=28), short, seeded())
    assert encoder.embedding_dim == recipe.encoder.widths[-1]
    assert len(history) == 1


def naive_loss(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Algorithm 1 of Chen et al. 2020, line by line; rows 2k-1 and 2k are a pair."""
    n = len(z1)
    z = torch.stack([z1, z2], dim=1).reshape(2 * n, -1)
    s = [[z[i] @ z[j] / (z[i].norm() * z[j].norm()) for j in range(2 * n)] for i in range(2 * n)]

    def pair_loss(i: int, j: int) -> Tensor:
        others = sum(torch.exp(s[i][k] / temperature) for k in range(2 * n) if k != i)
        return -torch.log(torch.exp(s[i][j] / temperature) / others)

    total = torch.zeros((), dtype=z.dtype)
    for k in range(n):
        total = total + pair_loss(2 * k, 2 * k + 1) + pair_loss(2 * k + 1, 2 * k)
    return total / (2 * n)


def views(n: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = seeded(0)
    return torch.randn(n, dim, generator=generator), torch.randn(n, dim, generator=generator) * 3


@pytest.mark.parametrize("n", [1, 2, 7, 16])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
def test_the_loss_equals_algorithm_1(n: int, temperature: float) -> None:
    z1, z2 = views(n, 5)
    z2[0] = z1[0] * 2  # a perfect pair
    z2[-1] = -z1[-1]  # and an antipodal one
    expected = float(naive_loss(z1.double(), z2.double(), temperature))
    assert abs(float(nt_xent(z1, z2, temperature)) - expected) < 1e-6 * max(1, expected)


def test_its_gradient_equals_that_of_algorithm_1() -> None:
    z1, z2 = (z.requires_grad_() for z in views(6, 4))
    grads = torch.autograd.grad(nt_xent(z1, z2, 0.3), [z1, z2])
    expected = torch.autograd.grad(naive_loss(z1.double(), z2.double(), 0.3), [z1, z2])
    torch.testing.assert_close(grads, expected, rtol=1e-5, atol=1e-6)


def gathered(rank: int, port: int, directory: str) -> None:
    torch.set_num_threads(1)
    place = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    z1, z2 = (z.chunk(2)[rank].clone().requires_grad_() for z in views(8, 5))
    loss = nt_xent(z1, z2, 0.2)
    loss.backward()
    torch.save([loss.detach(), z1.grad, z2.grad], Path(directory) / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path) -> None:
    port = free_port()
    other = spawn(gathered, (port, str(tmp_path)), nprocs=1, join=False)
    gathered(1, port, str(tmp_path))
    assert other is not None
    other.join()
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    z1, z2 = (z.requires_grad_() for z in views(8, 5))
    loss = nt_xent(z1, z2, 0.2)
    loss.backward()
    mean = float(sum(part[0] for part in parts) / 2)
    assert mean == pytest.approx(float(loss.detach()), abs=1e-6)
    for index, z in ((1, z1), (2, z2)):  # DistributedDataParallel averages over processes
        assert z.grad is not None
        assert torch.allclose(torch.cat([p[index] for p in parts]) / 2, z.grad, atol=1e-6)


def test_views_are_crops_and_the_same_generator_gives_the_same() -> None:
    config = AugmentConfig(size=6)
    one, other, third = (simclr.random_view(pictures(6), config, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
    assert one.shape == (6, 3, 6, 6)
    assert 0 <= one.min() <= one.max() <= 1
    x = pictures(50) / 255
    whole = (simclr.random_crop(x, PLAIN, seeded(0)) - x).abs().amax((1, 2, 3))
    assert whole.min() < 0.2  # sides vary from 3:4 to 4:3 even at full area
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    config = AugmentConfig(size=32, min_area=0.25, flip=True)
    crops = simclr.random_crop(ramp, config, seeded(0))
    left, right = crops[:, 0, 16, 0], crops[:, 0, 16, -1]
    assert 0.35 < (right - left).abs().min() < 0.55  # sqrt(0.25 · 3/4) and up
    assert ((right < left).float().mean() - 0.5).abs() < 0.1  # half are mirrored


def test_colours_stay_without_jitter_and_greys_stay_grey() -> None:
    x = pictures(500) / 255
    assert torch.allclose(jitter_colours(x, PLAIN, seeded(0)), x, atol=1e-5)
    grey = x[:, :1].expand(-1, 3, -1, -1)
    for images, config in (
        (x, dataclasses.replace(PLAIN, greyscale=1.0)),
        (grey, AugmentConfig(size=8, strength=1.0)),  # hue
    ):
        found = jitter_colours(images, config, seeded(0))
        assert (found - found.mean(1, keepdim=True)).abs().max() < 5e-3  # YIQ has three decimals
    half = AugmentConfig(size=8, strength=0.5, greyscale=0.0)
    changed = (jitter_colours(x, half, seeded(0)) - x).abs().amax((1, 2, 3)) > 1e-4
    assert changed.float().mean() == pytest.approx(0.8, abs=0.06)


def test_blur_lowers_contrast_but_keeps_the_mean() -> None:
    plain = dataclasses.replace(PLAIN, size=40)
    sharp = simclr.random_view(pictures(100, 40), plain, seeded(0))
    blurred = simclr.random_view(pictures(100, 40), dataclasses.replace(plain, blur=1.0), seeded(0))
    assert (blurred.std((1, 2, 3)) <= sharp.std((1, 2, 3)) + 1e-4).all()
    assert (blurred.mean((1, 2, 3)) - sharp.mean((1, 2, 3))).abs().max() < 0.05


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    labels = np.arange(96) % 2
    noise = np.random.default_rng(0).integers(0, 100, (96, 8, 8, 3), np.uint8)
    pixels = (noise + 100 * labels[:, None, None, None]).astype(np.uint8)
    held = {"x_train": pixels[:64], "y_train": labels[:64]}
    np.savez(tmp_path / "images.npz", **held, x_test=pixels[64:], y_test=labels[64:])
    return tmp_path / "images.npz"


def test_simclr_writes_an_encoder_and_probe_its_accuracies(tmp_path: Path, archive: Path) -> None:
    out = tmp_path / "out"
    Simclr(data=(str(archive),), out=out, config=CONFIG, monitor=str(archive)).run()
    written = sorted(p.name for p in out.iterdir())
    assert written == ["encoder.safetensors", "history.png", "report.json"]
    report = json.loads((out / "report.json").read_text())
    assert report["images"] == 64
    assert [set(entry) for entry in report["history"]] == [{"epoch", "loss", "knn"}] * 3
    encoder = str(out / "encoder.safetensors")
    assert build_encoder(encoder).embedding_dim == 16
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(FileExistsError):
        Simclr(data=(str(archive),), out=out, config=CONFIG).run()
    Probe(data=str(archive), encoder=encoder, out=tmp_path / "probe").run()
    accuracy = json.loads((tmp_path / "probe" / "report.json").read_text())["accuracy"]
    assert set(accuracy) == {"knn", "linear"}
    assert accuracy["linear"] > 0.9  # brightness tells the classes apart


def arguments(archive: Path, out: Path, epochs: int = 30) -> list[str]:
    options = "--device cpu --config.encoder.widths 4 8 --config.encoder.blocks 1 1"
    options += f" --config.augment.size 8 --config.epochs {epochs} --config.batch-size 16"
    start = ["-m", "pretrain", "simclr", "--data", str(archive), "--out", str(out)]
    return [*start, *options.split()]


@pytest.mark.slow
def test_a_killed_command_resumes_to_the_same_weights(tmp_path: Path, archive: Path) -> None:
    whole = subprocess.Popen([sys.executable, *arguments(archive, tmp_path / "whole")], cwd=ROOT)
    out, checkpoint = tmp_path / "out", tmp_path / "out.partial" / "checkpoint.pt"
    command = [sys.executable, *arguments(archive, out)]
    child = subprocess.Popen(command, cwd=ROOT)
    while child.poll() is None and not checkpoint.exists():
        time.sleep(0.02)
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not out.exists()
    subprocess.run(command, cwd=ROOT, check=True)
    assert whole.wait() == 0
    resumed, expected = (load_file(d / "encoder.safetensors") for d in (out, tmp_path / "whole"))
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_two_processes_write_one_encoder_with_a_falling_loss(tmp_path: Path, archive: Path) -> None:
    out = tmp_path / "encoder"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, *arguments(archive, out, 2)], cwd=ROOT, check=True, timeout=300)
    history = json.loads((out / "report.json").read_text())["history"]
    assert len(history) == 2
    assert history[1]["loss"] < history[0]["loss"]
    assert build_encoder(str(out / "encoder.safetensors")).embedding_dim == 8
    assert not (tmp_path / "encoder.partial").exists()


def test_convert_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TensorFlow installed|must be a TensorFlow checkpoint"):
        Convert(checkpoint=tmp_path / "none", arch="r50_1x_sk0", out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # TensorFlow's own
def test_a_real_tensorflow_checkpoint_is_read(tmp_path: Path) -> None:
    tensorflow: Any = pytest.importorskip("tensorflow")
    shapes = variable_shapes("r50_1x_sk0") | {
        "head_supervised/linear_layer/dense/kernel": (4, 2),
        "base_model/conv2d/kernel/Momentum": (7, 7, 3, 64),
        "global_step": (),
    }
    rng = np.random.default_rng(0)
    values = {name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    v1 = tensorflow.compat.v1
    with tensorflow.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(v1.global_variables_initializer())
        prefix = Path(v1.train.Saver(variables).save(session, str(tmp_path / "model.ckpt")))
    read = read_tensorflow(prefix)
    assert read.keys() == variable_shapes("r50_1x_sk0").keys()
    assert all(np.array_equal(read[name], values[name]) for name in read)
    Convert(checkpoint=prefix, arch="r50_1x_sk0", out=tmp_path / "out").run()
    weights = str(tmp_path / "out" / "weights.safetensors")
    encoder = build_encoder("simclrv2:r50_1x_sk0", weights=weights)
    stem = encoder.state_dict()["stem.0.weight"].permute(2, 3, 1, 0).numpy()
    assert np.array_equal(stem, values["base_model/conv2d/kernel"])
