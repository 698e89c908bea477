"""Weights of a file for a network: matched by name alone, checked tensor by tensor."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

CLASSIFIERS = {"classifier", "fc", "_fc", "head"}
# What pretraining puts on a network, by the usual names; an embedding is what comes before it.
BESIDE = {"projector", "projection_head", "predictor", "prediction_head", "prototypes"}
BESIDE |= {"mask_token"}
SHOWN = 3  # names in an error
Convert = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def fit_weights(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    heads: Collection[str] = (),
    convert: Convert | None = None,
) -> None:
    """Loads the network that `tensors` hold under one prefix, without its classifier.

    Args:
        module: the network.
        tensors: by their full names, as `weights_file.read_weights` gives them.
        where: their file, for errors.
        heads: layers of the network that are its classifier.
        convert: gives the module's names to tensors of another library, or of another size; called
            if they are not the module's own.

    Raises:
        ValueError: none or several fit, naming a tensor or the prefixes that are in the way.
    """
    own = module.state_dict()
    prefix = prefix_of(own, tensors, where)
    kept = without_heads(below(tensors, prefix), own, heads)
    if any(name not in kept or kept[name].shape != own[name].shape for name in needed(own)):
        kept = convert(kept) if convert is not None else kept
    counts = {name: own[name] for name in own if name not in kept and name.endswith(COUNT)}
    load_weights(module, counts | kept, f"{where} below {prefix[:-1]}" if prefix else where)


COUNT = ".num_batches_tracked"  # which no evaluation reads, and torch 0.4 did not save


def needed(own: Iterable[str]) -> list[str]:
    """Names without which a network does not compute what it learned."""
    return [name for name in own if not name.endswith(COUNT)]


def prefix_of(own: Collection[str], tensors: Collection[str], where: str) -> str:
    """The prefix, "" or one that ends with a dot, under which the names of a network are.

    If none has them all, it is the one that has most of them, and among these the shortest.

    Raises:
        ValueError: several have them all, or several at least half if none has all.
    """
    found: Counter[str] = Counter()
    for name in tensors:
        parts = name.split(".")
        for start in range(len(parts)):
            if ".".join(parts[start:]) in own:
                found[".".join((*parts[:start], ""))] += 1
    names = needed(own)
    whole = [each for each in found if all(each + name in tensors for name in names)]
    fit = whole or [each for each in found if 2 * found[each] >= len(names)]  # but for some names
    if len(fit) > 1:
        keys = [each.removesuffix(".") or "none" for each in sorted(fit)]
        raise ValueError(
            f"{where} must hold one network that fits, got {', '.join(keys)}: name one of these "
            f"prefixes, as in {where}#{keys[-1]}"
        )
    most = max(found.values(), default=0)
    return min(fit or (each for each in found if found[each] == most), key=len, default="")


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors whose names begin with a prefix, without it."""
    return {n.removeprefix(prefix): tensor for n, tensor in tensors.items() if n.startswith(prefix)}


def without_heads(
    tensors: Mapping[str, Tensor], own: Collection[str], heads: Collection[str]
) -> dict[str, Tensor]:
    """Tensors of a network without its classifier and what pretraining put beside it."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in own
        or not (
            name.rpartition(".")[0] in heads
            or name.partition(".")[0].partition("_")[0] == "decoder"  # of masked autoencoders
            or name.partition(".")[0] in CLASSIFIERS | BESIDE
        )
    }


def load_weights(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Loads `tensors` into `module`, each name and shape checked, floats converted to its dtype.

    Raises:
        ValueError: naming `where`, the first tensor that does not fit and why.
    """
    own = module.state_dict()
    unknown = sorted(tensors.keys() - own.keys())
    for name in sorted(own.keys() - tensors.keys()):
        others = f", such as {', '.join(unknown[:SHOWN])}" if unknown else ""
        raise ValueError(f"{where} must hold {name}, got {len(tensors)} tensors{others}")
    for name in unknown:
        raise ValueError(f"{where} must fit {type(module).__name__}, got unknown {name}")
    for name, found in sorted(tensors.items()):
        if own[name].shape != found.shape:
            shapes = f"{tuple(own[name].shape)}, got {tuple(found.shape)}"
            raise ValueError(f"{where}: {name} must have shape {shapes}")
        plain = found.layout == torch.strided and not found.is_quantized and not found.is_meta
        if not plain or (own[name].is_floating_point() and not found.is_floating_point()):
            kinds = f"{own[name].dtype} and dense, got {found.dtype} and {found.layout}"
            raise ValueError(f"{where}: {name} must be {kinds}".replace("torch.", ""))
        if not torch.isfinite(found).all():
            raise ValueError(f"{where}: {name} must be finite, got NaN or infinite weights")
    module.load_state_dict({name: tensors[name].to(own[name].dtype) for name in own})
