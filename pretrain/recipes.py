"""Recipes of pretraining: network, views, training.

SMALL trained the shipped encoder, for 40 epochs in bfloat16; DIGITS trains an encoder of digits in
a minute. This module is read without torch.
"""

from dataclasses import dataclass, field

from pretrain import check


@dataclass(frozen=True)
class ResNetConfig:
    """A residual network of basic blocks; each stage after the first halves the resolution."""

    widths: tuple[int, ...] = (32, 64, 128, 384)  # channels of each stage
    blocks: tuple[int, ...] = (1, 1, 1, 1)  # blocks of each stage
    stem_stride: int = 1  # stride of the first layer: 2 quarters the work, costs accuracy
    pool: int = 1  # the last map is averaged over pool x pool cells

    def __post_init__(self) -> None:
        check.at_least(1, widths=min(self.widths, default=0))
        if len(self.blocks) != len(self.widths) or min(self.blocks) < 1:
            raise ValueError(f"blocks must be >= 1 for each of {self.widths}, got {self.blocks}")
        check.at_most(2048, widths=max(self.widths))  # a file must not ask for all memory
        check.at_most(64, blocks=sum(self.blocks))
        check.one_of((1, 2), stem_stride=self.stem_stride)
        check.at_least(1, pool=self.pool)


@dataclass(frozen=True)
class AugmentConfig:
    """Distribution of the random views of an image."""

    size: int = 32  # pixels of a view
    min_area: float = 0.2  # smallest share of the image that a crop shows
    strength: float = 0.5  # colour jitter: 1 for large photographs, 0.5 for small ones
    flip: bool = True  # mirror half of the views; not for digits or letters
    greyscale: float = 0.2  # probability of a grey view
    blur: float = 0.0  # probability of a blurred view; 0.5 for large images

    def __post_init__(self) -> None:
        check.within("(0, 1]", min_area=self.min_area)
        check.at_least(1, size=self.size)
        check.at_least(0, strength=self.strength)
        check.within("[0, 1]", greyscale=self.greyscale, blur=self.blur)


@dataclass(frozen=True, kw_only=True)
class SimCLRConfig:
    """Everything that determines the trained weights, except the images and the seed."""

    encoder: ResNetConfig = field(default_factory=ResNetConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    epochs: int = 10  # passes over all images
    batch_size: int = 256  # images per optimiser step, over all processes
    learning_rate: float = 2e-3  # largest learning rate, at the end of the warm-up
    weight_decay: float = 1e-4  # of AdamW
    warmup: float = 0.05  # share of all steps with a rising learning rate
    temperature: float = 0.2  # temperature of the NT-Xent loss
    hidden: int = 512  # hidden width of the projection head
    projected: int = 128  # output width of the projection head
    half: bool = False  # compute in bfloat16 by autocast

    def __post_init__(self) -> None:
        counts = ("epochs", "batch_size", "hidden", "projected")
        check.at_least(1, **{name: getattr(self, name) for name in counts})
        check.positive(learning_rate=self.learning_rate, temperature=self.temperature)
        check.within("[0, 1)", warmup=self.warmup)
        check.at_least(0, weight_decay=self.weight_decay)


# Views of 24 pixels cost 0.56 of those of 32; a crop of average area shows objects at 24 pixels
# about as large as the whole image does at 32, the size at which the encoder is then used.
SMALL = SimCLRConfig(
    encoder=ResNetConfig(widths=(48, 128, 320), blocks=(1, 1, 1), stem_stride=2),
    augment=AugmentConfig(size=24),
    epochs=12,
)

# 1,500 digits of 28 pixels. Mirrored digits are other characters, and there is no colour.
DIGITS = SimCLRConfig(
    encoder=ResNetConfig(widths=(32, 64, 128), blocks=(1, 1, 1), stem_stride=2),
    augment=AugmentConfig(size=28, min_area=0.25, flip=False, greyscale=0.0),
    epochs=25,
    batch_size=125,
    hidden=256,
    projected=64,
)
