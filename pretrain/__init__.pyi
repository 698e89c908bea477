from pretrain.commands import pretrain_simclr as pretrain_simclr
from pretrain.encoder import build_encoder as build_encoder

__version__: str
