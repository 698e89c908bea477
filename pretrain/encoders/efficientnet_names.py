"""Names that efficientnet-pytorch gives to tensors, for timm's networks.

Its blocks are numbered through; timm's are numbered within stages. Its batch norms are numbered
from 0 for the expansion, which a network's first blocks lack: timm then begins at the next layer.
"""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

SIGN = "_conv_stem.weight"
NETWORK = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
EXPANDING = {
    **{"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"},
    **{"_project_conv": "conv_pwl", "_bn2": "bn3"},
    **SQUEEZE,
}
PLAIN = {
    **{"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"},
    **SQUEEZE,
}
BLOCK = re.compile(r"_blocks\.(\d+)\.(.*)")


def in_timm(tensors: Mapping[str, Tensor], own: Collection[str]) -> dict[str, Tensor]:
    """Tensors under timm's names; what the table does not know keeps its name.

    Args:
        tensors: by efficientnet-pytorch's names.
        own: names of the network of timm, whose blocks are counted.
    """
    stages = {tuple(map(int, name.split(".")[1:3])) for name in own if name.startswith("blocks.")}
    places = [f"blocks.{stage}.{block}" for stage, block in sorted(stages)]

    def renamed(name: str) -> str:
        block = BLOCK.fullmatch(name)
        if block is None:
            return _by(NETWORK, name)
        number = int(block[1])
        if number >= len(places):
            return name
        expands = f"_blocks.{number}._expand_conv.weight" in tensors
        return f"{places[number]}.{_by(EXPANDING if expands else PLAIN, block[2])}"

    names = {name: renamed(name) for name in tensors}
    return {n if names[n] in tensors else names[n]: tensor for n, tensor in tensors.items()}


def _by(table: Mapping[str, str], name: str) -> str:
    layer, _, rest = name.partition(".")
    return f"{table.get(layer, layer)}.{rest}"
