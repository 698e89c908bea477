"""The commands of this room as functions."""

from embed.concat import Concat
from embed.hold_out import HoldOut
from embed.plot import Plot
from embed.reference import ImportReference
from embed.run import Exclude, FitTransform, Run
from pretrain.public import function

concat_sets = function("concat_sets", Concat)
embed_images = function("embed_images", Run)
exclude_public = function("exclude_public", Exclude)
fit_transform = function("fit_transform", FitTransform)
hold_out_rows = function("hold_out_rows", HoldOut)
import_reference = function("import_reference", ImportReference)
plot_embeddings = function("plot_embeddings", Plot)
