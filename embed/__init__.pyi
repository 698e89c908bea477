from embed.run import embed_images as embed_images
from embed.run import fit_transform as fit_transform
from embed.store import EmbeddingSet as EmbeddingSet
from embed.transform import PublicTransform as PublicTransform

__version__: str
