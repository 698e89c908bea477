"""Towers of open_clip: outputs, preprocessing, weights, refusals; nothing is downloaded."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.transforms.functional import to_pil_image

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, origin
from pretrain.preprocess import Preprocess
from tests.pretrain.encoders.conftest import assert_saved_and_read

PICTURE = torch.randint(0, 256, (3, 60, 84), generator=torch.Generator().manual_seed(0)).byte()


def test_an_embedding_is_what_open_clip_encodes(tower: Path) -> None:
    import open_clip

    encoder = build_encoder(f"open_clip:{tower}")
    theirs, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{tower}")
    picture: Image.Image = to_pil_image(PICTURE)
    with torch.inference_mode():
        expected = theirs.eval().encode_image(prepare(picture)[None])  # pyright: ignore
        found = encoder(encoder.preprocess(PICTURE[None]))
    assert found.shape == (1, encoder.embedding_dim) == (1, 12)
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("shape", [(60, 84), (84, 60), (20, 24), (56, 56)])
def test_pictures_are_prepared_as_open_clip_does(
    tower: Path, mode: str, shape: tuple[int, int]
) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    path = tower / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["preprocess_cfg"] = {"resize_mode": mode, "fill_color": 51}
    path.write_text(json.dumps(config))
    encoder = build_encoder(f"open_clip:{tower}")
    smooth = Preprocess(image_size=shape, fit="squash")(PICTURE[None, :, :6, :6])
    pixels = (smooth * 255).round().byte()
    cfg = PreprocessCfg(size=28, resize_mode=mode, fill_color=51, mean=(0,) * 3, std=(1,) * 3)
    prepare: Any = image_transform_v2(cfg, is_train=False)
    expected = prepare(to_pil_image(pixels[0]))
    found = encoder.preprocess(pixels)[0]
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 3 / 255  # PIL rounds after every step


def test_it_is_saved_and_read(tmp_path: Path, tower: Path) -> None:
    for size in (None, 42):
        encoder = build_encoder(f"open_clip:{tower}", image_size=size)
        pixels = torch.rand(1, 3, size or 28, size or 28)
        assert_saved_and_read(encoder, tmp_path / "e.safetensors", pixels)


def test_weights(tmp_path: Path, tower: Path) -> None:
    own, name = build_encoder(f"open_clip:{tower}"), f"open_clip:{tower}"
    whole = load_file(tower / "open_clip_model.safetensors")
    torch.save(
        {"epoch": 3, "state_dict": {f"module.{k}": t for k, t in whole.items()}}, tmp_path / "c.pt"
    )
    alone = {
        k.removeprefix("visual."): t.clone() for k, t in whole.items() if k.startswith("visual.")
    }
    save_file(alone, tmp_path / "alone.safetensors")
    for file in ("c.pt", "alone.safetensors"):
        given = build_encoder(name, weights=str(tmp_path / file))
        assert encoder_hash(given) == encoder_hash(own)
    assert encoder_hash(build_encoder(name, weights="random", seed=1)) != encoder_hash(own)
    assert origin(name, None) == "file tower"
    (tower / "open_clip_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"weights must be given, or .* hold one of"):
        build_encoder(name)
    save_file({k: t for k, t in alone.items() if "ln_post" not in k}, tmp_path / "part.safetensors")
    with pytest.raises(ValueError, match=r"must hold ln_post\.bias"):
        build_encoder(name, weights=str(tmp_path / "part.safetensors"))


def test_the_tag_states_preprocessing_and_activation() -> None:
    """OpenAI's weights want another activation than the architecture of the same name."""
    plain = build_encoder("open_clip:RN50", weights="random", image_size=64)
    assert plain.embedding_dim == 1024
    from pretrain.encoders.open_clip_towers import _described

    tower, pixels = _described("ViT-B-32.openai")
    assert tower["quick_gelu"]
    assert tuple(pixels["mean"]) == (0.48145466, 0.4578275, 0.40821073)
    assert not _described("ViT-B-32.laion2b_s34b_b79k")[0].get("quick_gelu")


def test_downloaded_weights_are_those_of_the_tag(
    tower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    asked: list[Any] = []
    model = build_encoder("open_clip:RN50", weights="random", seed=3)

    def created(name: str, *, pretrained: str, **_: Any) -> Any:
        asked.append((name, pretrained))
        return SimpleNamespace(visual=model.visual)

    monkeypatch.setattr(open_clip, "create_model", created)
    found = build_encoder("open_clip:RN50.yfcc15m", weights="hub")
    assert asked == [("RN50", "yfcc15m")]
    own, given = found.state_dict(), model.state_dict()
    assert all(torch.equal(own[name], given[name]) for name in given)


@pytest.mark.parametrize(
    ("name", "weights", "rule"),
    [
        ("open_clip:ViT-B-33", "random", "must name a model of open_clip or a directory"),
        ("open_clip:RN50.nonsense", "random", "must be one of openai, yfcc15m, cc12m, got non"),
        ("open_clip:RN50", "hub", "weights=hub must be for open_clip:RN50.TAG"),
        ("open_clip:RN50.yfcc15m", "hub", "on the hub or in its cache, got no network"),
        ("open_clip:RN50", None, "weights must be given for open_clip:RN50: .* or hub, got none"),
        ("open_clip:RN50", "none.pt", "weights must be an existing file, got none.pt"),
    ],
)
def test_refusals(name: str, weights: str | None, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        build_encoder(name, weights=weights)


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must be readable"):
        build_encoder(f"open_clip:{tmp_path}")
    (tmp_path / "open_clip_config.json").write_text('{"model_cfg": {"embed_dim": 4}}')
    with pytest.raises(ValueError, match="must hold embed_dim and vision_cfg"):
        build_encoder(f"open_clip:{tmp_path}")
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ValueError, match=r"pip install 'blind-averaging\[encoders\]'"):
        build_encoder("open_clip:RN50", weights="random")
