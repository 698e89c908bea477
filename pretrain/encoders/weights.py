"""Files of weights, read without running code of theirs; matched by name, checked by tensor.

A trainer's checkpoint holds dictionaries within dictionaries, so a tensor's name begins with their
keys: `state_dict.module.encoder_q.conv1.weight`. Objects of classes that torch does not know to be
harmless, such as a trainer's arguments, are replaced by empty ones of a class of ours. Our own
files are safetensors: equal content is written as equal bytes, so that files are known by hashes.
"""

import contextlib
import json
import logging
import os
import re
import socket
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn


def read_tensors(
    path: Path, kind: str = "a safetensors file"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, and metadata, of a safetensors file.

    Args:
        path: the file.
        kind: what it must be, for the error.

    Raises:
        ValueError: missing or damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be {kind}, got: {error}") from error


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes contiguous tensors and metadata, which the library's own writer orders by chance."""
    whole = memoryview(save(tensors, metadata))
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(bytes(whole[8:start]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at multiples of their size
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(whole[start:])


CONNECT_SECONDS = 5.0


@contextlib.contextmanager
def hub(what: str, *, local: bool = False) -> Iterator[None]:
    """Context for the client of the Hugging Face hub; without network it uses its cache at once.

    By default the client retries for a minute and logs every trial.

    Args:
        what: name of the download, for errors.
        local: the files are in a local directory, so the hub is not asked.

    Raises:
        ValueError: any error inside, in one line.
    """
    from huggingface_hub import constants

    offline, silent = constants.HF_HUB_OFFLINE, logging.root.manager.disable
    constants.HF_HUB_OFFLINE = offline or local or not _reachable(constants.ENDPOINT)
    logging.disable(logging.CRITICAL)
    try:
        yield
    except Exception as error:  # of the client, the network, the cache or the file
        rule = "readable" if local else "on the hub or in its cache"
        cut_off = constants.HF_HUB_OFFLINE and not (offline or local)
        state = "no network" if cut_off else type(error).__name__
        words = " ".join(str(error).split())[:200]
        raise ValueError(f"{what} must be {rule}, got {state}: {words}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.disable(silent)


def _reachable(endpoint: str) -> bool:
    """Whether the endpoint accepts connections; behind a proxy this is assumed."""
    address = urlsplit(endpoint)
    if address.scheme in urllib.request.getproxies() or "ALL_PROXY" in os.environ:
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silences transformers' progress bars and its table of heads that were left out."""
    log = transformers.utils.logging
    level = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


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
        tensors: by their full names, as `read_weights` gives them.
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
    """Tensors of a network without its classifier and what pretraining added to it."""
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


# What torch.compile, FSDP and activation checkpointing put into names, anywhere in them.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
DEPTH = 12  # of dictionaries; what holds itself ends there
SAVE = "save its model.state_dict() with torch.save or as safetensors"
SIGNS = {  # first bytes of what is often taken for weights
    b"\x89HDF": "an HDF5 file as Keras writes it",
    b"version https://git-lfs": "a Git LFS pointer, so type git lfs pull",
    b"<": "a web page",
    b"{": "JSON, perhaps the index of several files",
}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors or `torch.save` file by their full names, wrappers left out.

    Args:
        path: the file; `FILE#KEY` for those below a key or prefix alone.

    Raises:
        ValueError: missing, damaged, without tensors, or a tensor by two names.
    """
    below = ""
    if not path.exists() and "#" in path.name:
        file, _, below = str(path).rpartition("#")
        path = Path(file)
    if not path.is_file():
        raise ValueError(f"weights must be an existing file, got {path}")
    found: dict[str, Tensor] = {}
    for parts, tensor in _tensors(_content(path)):
        name = ".".join(part for part in parts if part not in WRAPPERS)
        if name in found:
            raise ValueError(f"{path} must hold {name} once, got two tensors of that name")
        found[name] = tensor
    kept = {name: t for name, t in found.items() if not below or name.startswith(f"{below}.")}
    if not kept:
        keys = ", ".join(sorted({name.partition(".")[0] for name in found})[:8])
        raise ValueError(
            f"{path} must hold tensors below {below}, got them below {keys}"
            if found
            else f"{path} must hold tensors, got none: {SAVE}"
        )
    return kept


class StandIn(dict[Any, Any]):
    """Object of a foreign class: keeps its items, and takes and ignores all else."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass


def _content(path: Path) -> Any:
    with path.open("rb") as file:
        start = file.read(32)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return read_tensors(path, "readable weights")[0]
    for sign, words in SIGNS.items():
        if start.lstrip().startswith(sign):
            raise ValueError(f"{path} must be readable weights, got {words}")
    try:
        with torch.serialization.safe_globals(_stand_ins(path)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the format's age
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in the zip or the unpickler
        raise ValueError(f"{path} must be readable weights, got {_reason(error)}") from error
    if isinstance(content, StandIn) and not content:
        kind = type(content).__name__
        raise ValueError(f"{path} must hold weights alone, got a whole {kind}: {SAVE}")
    return {"": content} if isinstance(content, Tensor) else content


def _stand_ins(path: Path) -> list[Any]:
    """A class of ours for each of the file's that torch would refuse."""
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:  # no zip, or a damaged one
        return []
    return [(type(name, (StandIn,), {}), name) for name in foreign]


def _reason(error: Exception) -> str:
    """Words of torch's error, without its advice to load what may run code."""
    text = str(error)
    if "TorchScript" in text:
        return f"a TorchScript program: {SAVE}"
    found = re.search(r"nsupported (?:global: GLOBAL|GLOBAL|class) (\S+)", text)
    if found:
        return f"a {found[1]}, which is more than weights: {SAVE}"
    if "weights_only" in text or "Weights only" in text:
        return f"a pickle of another kind: {SAVE}"
    return " ".join(text.split())[:200] or type(error).__name__


def _tensors(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Tensor]]:
    if isinstance(value, Tensor):
        yield ".".join(names).split("."), value
    elif isinstance(value, Mapping) and len(names) < DEPTH:
        for key, inner in value.items():
            yield from _tensors(inner, (*names, str(key)))
