"""Recipes that were measured: what trained the shipped encoder, and one for digits in a minute."""

from pretrain.augment import AugmentConfig
from pretrain.resnet import ResNetConfig
from pretrain.simclr import SimCLRConfig

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
