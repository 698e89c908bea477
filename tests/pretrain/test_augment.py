import pytest
import torch

from pretrain.simclr import AugmentConfig, jitter_colours, random_crop, random_view

PLAIN = AugmentConfig(size=8, min_area=1.0, strength=0.0, flip=False, greyscale=0.0)


def images(n: int = 6, side: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=generator)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_generator_gives_the_same_view() -> None:
    config = AugmentConfig(size=6)
    one, other, third = (random_view(images(), config, seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
    assert one.shape == (6, 3, 6, 6)
    assert one.min() >= 0
    assert one.max() <= 1


def test_without_jitter_colours_stay() -> None:
    x = images() / 255
    assert torch.allclose(jitter_colours(x, PLAIN, seeded()), x, atol=1e-5)


def test_the_whole_image_is_the_crop_of_full_area() -> None:
    x = images(50) / 255
    crops = random_crop(x, PLAIN, seeded())
    square = (crops - x).abs().amax((1, 2, 3))
    assert square.min() < 0.2  # sides vary from 3:4 to 4:3 even at full area


def test_crops_show_parts_of_the_image() -> None:
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    config = AugmentConfig(size=32, min_area=0.25, flip=True)
    crops = random_crop(ramp, config, seeded())
    left, right = crops[:, 0, 16, 0], crops[:, 0, 16, -1]
    width = (right - left).abs()
    assert 0.35 < width.min() < 0.55  # sqrt(0.25 · 3/4) and up
    assert ((right < left).float().mean() - 0.5).abs() < 0.1  # half are mirrored


def test_greyscale_has_equal_channels() -> None:
    config = AugmentConfig(size=8, strength=0.0, greyscale=1.0)
    grey = jitter_colours(images() / 255, config, seeded())
    assert (grey - grey.mean(1, keepdim=True)).abs().max() < 5e-3  # YIQ has three decimals


def test_hue_keeps_grey_images_grey() -> None:
    grey = (images()[:, :1] / 255).expand(-1, 3, -1, -1)
    turned = jitter_colours(grey, AugmentConfig(size=8, strength=1.0), seeded())
    assert (turned - turned.mean(1, keepdim=True)).abs().max() < 5e-3


def test_jitter_is_applied_to_four_in_five() -> None:
    x = images(500) / 255
    config = AugmentConfig(size=8, strength=0.5, greyscale=0.0)
    changed = (jitter_colours(x, config, seeded()) - x).abs().amax((1, 2, 3)) > 1e-4
    assert changed.float().mean() == pytest.approx(0.8, abs=0.06)


def test_blur_lowers_contrast_but_keeps_the_mean() -> None:
    x = images(100, 40)
    plain = AugmentConfig(size=40, min_area=1.0, strength=0.0, flip=False, greyscale=0.0)
    sharp = random_view(x, plain, seeded())
    config = AugmentConfig(size=40, min_area=1.0, strength=0.0, flip=False, greyscale=0.0, blur=1.0)
    blurred = random_view(x, config, seeded())
    assert (blurred.std((1, 2, 3)) <= sharp.std((1, 2, 3)) + 1e-4).all()
    assert (blurred.mean((1, 2, 3)) - sharp.mean((1, 2, 3))).abs().max() < 0.05


@pytest.mark.parametrize("options", [{"min_area": 0.0}, {"strength": -1.0}, {"greyscale": 1.5}])
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        AugmentConfig(**options)  # pyright: ignore[reportArgumentType]
