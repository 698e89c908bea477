"""The commands of this room as functions."""

from pretrain.cli.function import function
from pretrain.commands import Convert, Probe, Simclr

pretrain_simclr = function("pretrain_simclr", Simclr)
convert_checkpoint = function("convert_checkpoint", Convert)
probe_encoder = function("probe_encoder", Probe)
