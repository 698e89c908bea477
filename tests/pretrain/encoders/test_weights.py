"""Files of weights as trainers save them: the same network by name, or a line that says why not."""

import argparse
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pretrain import build_encoder
from pretrain.encoder import encoder_hash
from pretrain.encoders.weights import fit_weights

pytestmark = pytest.mark.usefixtures("no_network")
NAME = "timm:test_resnet"
State = dict[str, Tensor]
ONE = torch.ones(1)
HEADS = {"module.projector.0.weight": torch.rand(4, 4), "module.queue": torch.rand(2, 2)}
ARGUMENTS = argparse.Namespace(lr=0.1, out=Path("runs"))
SGD = {"state": {0: {"momentum_buffer": torch.rand(3)}}, "param_groups": [{"lr": 0.1}]}
OLD = ("plain", "ordered, halved", "parameters", "model beside optimizer")
LITE = "tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def state() -> State:
    """Weights of a small network whose every tensor differs from its start."""
    model = timm.create_model("test_resnet", num_classes=3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return {
            n: torch.rand_like(t.float()).to(t.dtype) + 1 for n, t in model.state_dict().items()
        }


def under(prefix: str, state: State, factor: int = 1) -> State:
    return {prefix + name: factor * tensor for name, tensor in state.items()}


def body(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}


def built(path: Path, content: Any, name: str = NAME, **options: Any) -> Any:
    """The encoder that is made of saved weights."""
    torch.save(content, path, **options)
    return build_encoder(name, weights=str(path))


FORMS: dict[str, Callable[[State], Any]] = {
    "plain": lambda s: s,
    "without classifier": body,
    "ordered, halved": lambda s: OrderedDict((n, t.half()) for n, t in s.items()),
    "parameters": lambda s: {n: nn.Parameter(t, False) for n, t in s.items()},
    "state_dict": lambda s: {"epoch": 3, "arch": "resnet", "state_dict": s},
    "model beside optimizer": lambda s: {"model": s, "optimizer": SGD, "best": torch.tensor(0.7)},
    "deeper": lambda s: {"checkpoint": {"params": {"net": s}}},
    "DataParallel": lambda s: under("module.", s),
    "compiled, then parallel": lambda s: {"model": under("module._orig_mod.", s)},
    "a compiled layer": lambda s: {n.replace("layer1.", "layer1._orig_mod."): s[n] for n in s},
    "lightning": lambda s: {
        "state_dict": under("model.", s) | {"criterion.weight": torch.rand(3)},
        "hyper_parameters": ARGUMENTS,
        "pytorch-lightning_version": "2.5",
    },
    "simclr": lambda s: {"state_dict": under("backbone.", body(s)) | {"head.0.weight": SGD}},
    "projection in place of the classifier": lambda s: (
        body(s) | {"fc.0.weight": torch.rand(4, 4), "fc.2.bias": torch.rand(4)}
    ),
    "swav": lambda s: under(
        "module.", body(s) | dict.fromkeys(("projection_head.0.bias", "prototypes.weight"), ONE)
    ),
    "moco's one": lambda s: {"state_dict": under("module.encoder_q.", s) | HEADS, "x": ARGUMENTS},
    "masked": lambda s: {"model": s | {"decoder_embed.bias": ONE, "mask_token": ONE}},
    "averaged": lambda s: {"n_averaged": torch.tensor(4)} | under("module.", s),
    "of torch 0.4": lambda s: {n: t for n, t in s.items() if not n.endswith("tracked")},
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "new"), [*((form, True) for form in FORMS), *((form, False) for form in OLD)]
)
def test_usual_forms_are_read(tmp_path: Path, state: State, form: str, new: bool) -> None:
    content = FORMS[form](state)
    found = built(tmp_path / "w.pth", content, _use_new_zipfile_serialization=new)
    for name, tensor in found.model.state_dict().items():
        if not name.endswith("tracked"):
            rounding = 1e-3 if "halved" in form else 0.0
            torch.testing.assert_close(tensor, state[name], rtol=rounding, atol=0.0)


@pytest.mark.parametrize("name", ["w.safetensors", "w.bin", "w#1.pth"])
def test_safetensors_are_known_by_their_content(tmp_path: Path, state: State, name: str) -> None:
    save_file(under("module.", state), tmp_path / name)
    found: Any = build_encoder(NAME, weights=str(tmp_path / name))
    assert torch.equal(found.model.conv1[0].weight, state["conv1.0.weight"])


PAIRS = {  # and what else names the first
    "moco": ("module.encoder_q", "module.encoder_k", None),
    "dino": ("teacher.backbone", "student.module.backbone", "teacher"),
    "timm": ("state_dict_ema", "state_dict", None),
    "momentum": ("backbone_momentum", "backbone", None),
    "ema": ("ema.module", "none", "ema"),  # one of them bare
}


@pytest.mark.parametrize(("one", "other", "first"), PAIRS.values(), ids=PAIRS)
def test_of_two_networks_one_must_be_named(tmp_path, state, one, other, first) -> None:
    both = under(f"{one}.", body(state)) | under("" if other == "none" else f"{other}.", state, 2)
    torch.save(both, path := tmp_path / "w.pth")
    with pytest.raises(ValueError, match=f"one network that fits, got .*{one}.*w.pth#") as told:
        build_encoder(NAME, weights=str(path))
    assert other in str(told.value)
    for named in filter(None, (one, first)):
        found: Any = build_encoder(NAME, weights=f"{path}#{named}")
        assert torch.equal(found.model.bn1.weight, state["bn1.weight"])
    with pytest.raises(ValueError, match=r"w\.pth must hold tensors below gone, got them below"):
        build_encoder(NAME, weights=f"{path}#gone")


def test_conversions_of_timm_that_go_by_place_are_not_used(tmp_path: Path) -> None:
    own = timm.create_model("nextvit_small", num_classes=0).state_dict()
    placed = {f"x{i}.weight": t for i, t in enumerate(own.values())}
    with pytest.raises(ValueError, match=r"must hold .*, got .* as x0\.weight"):
        built(tmp_path / "w.pth", placed, "timm:nextvit_small")


def test_a_pair_of_open_clip_gives_its_vision_tower(tmp_path: Path) -> None:
    """Its names, written from timm's side; texts, temperature and projection are left out."""
    name = "timm:vit_xsmall_patch16_clip_224"
    own = build_encoder(name, weights="random", seed=1)
    outer = {"patch_embed.proj": "conv1", "norm_pre": "ln_pre", "norm": "ln_post"}
    outer |= {"blocks": "transformer.resblocks"}
    inner = {"attn.qkv.": "attn.in_proj_", "attn.proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc"}
    inner |= {"norm1": "ln_1", "norm2": "ln_2", "mlp.fc2": "mlp.c_proj"}
    tensors = {"visual.proj": torch.rand(own.embedding_dim, 12)}
    others = ("logit_scale", "token_embedding.weight", "transformer.resblocks.0.ln_1.weight")
    tensors |= {name: torch.rand(8) for name in others}
    for key, tensor in own.model.state_dict().items():  # pyright: ignore
        if key in ("cls_token", "pos_embed"):
            key = {"cls_token": "class_embedding", "pos_embed": "positional_embedding"}[key]
            tensor = tensor[0, 0] if key == "class_embedding" else tensor[0]
        for mine, theirs in (outer | inner).items():
            if mine in inner or key.startswith(f"{mine}."):
                key = key.replace(mine, theirs, 1)
        tensors[f"visual.{key}"] = tensor.contiguous().clone()
    path = tmp_path / "open_clip_pytorch_model.bin"
    assert encoder_hash(built(path, tensors, name)) == encoder_hash(own)
    del tensors["visual.ln_post.bias"]
    with pytest.raises(ValueError, match="must hold "):
        built(path, tensors, name)


def efficientnet_names(own: list[str]) -> dict[str, str]:
    """Name of efficientnet-pytorch -> of timm, written from timm's side."""
    blocks = sorted({tuple(map(int, n.split(".")[1:3])) for n in own if n.startswith("blocks")})
    expanding = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv",
                 "bn2": "_bn1", "conv_pwl": "_project_conv", "bn3": "_bn2"}  # fmt: skip
    plain = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    outer = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1"}
    found = {}
    for name in own:
        first, *rest = name.split(".")
        if first != "blocks":
            found[".".join((outer[first], *rest))] = name
            continue
        stage, block, layer, *last = rest
        table = expanding if f"blocks.{stage}.{block}.conv_pwl.weight" in own else plain
        if layer == "se":
            layer, *last = f"_se_{last[0].removeprefix('conv_')}", *last[1:]
        number = blocks.index((int(stage), int(block)))
        found[".".join((f"_blocks.{number}", table.get(layer, layer), *last))] = name
    return found


@pytest.mark.parametrize(
    ("name", "prefix"), [(LITE, ""), (LITE, "state_dict.net."), ("efficientnet_b0", "module.")]
)
def test_names_of_efficientnet_pytorch(tmp_path: Path, name: str, prefix: str) -> None:
    own = timm.create_model(name, num_classes=0).state_dict()
    own = {n: torch.rand(t.shape, dtype=torch.float32) for n, t in own.items()}
    names = list(efficientnet_names(list(own)).items())[::-1]  # the order does not matter
    file = {f"{prefix}{theirs}": own[mine] for theirs, mine in names}
    path = tmp_path / "w.pth"
    found = built(path, file | {f"{prefix}_fc.bias": torch.rand(3)}, f"timm:{name}")
    for each, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, own[each]) or each.endswith("tracked")
    file |= {f"{prefix}_blocks.99._bn0.bias": torch.rand(3)}
    with pytest.raises(ValueError, match=r"unknown _blocks\.99\._bn0\.bias"):
        built(path, file, f"timm:{name}")


class Malicious:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return shutil.copy, (__file__, self.path)


def test_objects_beside_weights_are_not_run_nor_in_the_way(tmp_path, state) -> None:
    ran = tmp_path / "ran"
    found = built(tmp_path / "w.pth", {"x": Malicious(ran), "model": state})
    assert torch.equal(found.model.bn1.weight, state["bn1.weight"])
    assert not ran.exists()


def script(path: Path) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a whole model": (lambda p: torch.save(nn.Linear(2, 2), p), "a whole .*Linear: save its"),
    "torchscript": (script, "got a TorchScript program: save its model"),
    "another pickle": (lambda p: torch.save({"a": 1}, p, pickle_protocol=5), "pickle|got none"),
    "a command": (
        lambda p: torch.save({"a": __import__("os").system}, p), r"a posix\.system, which is more"
    ),
    "damaged": (lambda p: p.write_bytes(b"PK\3\4" + bytes(50)), "readable weights, got"),
    "empty": (lambda p: p.write_bytes(b""), "readable weights, got"),
    "keras": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50)), "HDF5 file"),
    "pointer": (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"), "lfs pull"),
    "page": (lambda p: p.write_text("<!DOCTYPE html><html>"), "a web page"),
    "index": (lambda p: p.write_text('{"weight_map": {}}'), "JSON, perhaps the index"),
    "numbers": (lambda p: torch.save({"epoch": 3}, p), "must hold tensors, got none"),
    "a list": (lambda p: torch.save([torch.rand(3)], p), "must hold tensors, got none"),
    "one tensor": (lambda p: torch.save(torch.rand(3), p), "must hold .* tensors"),
    "twice": (
        lambda p: torch.save({"a.b": torch.rand(1), "a": {"b": torch.rand(1)}}, p), "a.b once"
    ),
    "itself": (lambda p: torch.save((d := {}, d.update(d=d))[0], p), "got none"),
    "missing": (lambda p: None, "must be an existing file"),
    "folder": (lambda p: p.mkdir(), "must be an existing file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_weights_is_named_without_bad_advice(tmp_path: Path, kind: str) -> None:
    write, words = REFUSED[kind]
    path = tmp_path / "w.pth"
    write(path)
    with pytest.raises(ValueError, match=words) as told:
        build_encoder(NAME, weights=str(path))
    said = str(told.value)
    assert "\n" not in said
    assert len(said) < 320
    assert "w.pth" in said
    for advice in ("weights_only", "safe_globals", "False", "trust"):
        assert advice not in said


def each(state: State, change: Callable[[Tensor], Tensor]) -> State:
    return {name: change(tensor) for name, tensor in state.items()}


WRONG: dict[str, tuple[Callable[[State], Any], str]] = {
    "deeper": (lambda s: s | {"layer5.0.conv1.weight": ONE}, "unknown layer5.0"),
    "deeper, below": (lambda s: under("net.", s | {"x": ONE}), "below net must fit .* unknown x"),
    "whole numbers": (lambda s: each(s, Tensor.char), "be float32 .*got int8"),
    "sparse": (lambda s: each(s, Tensor.to_sparse), "got float32 and sparse"),
    "by numbers": (lambda s: {f"net.{i}": t for i, t in enumerate(s.values())}, "must hold"),
    "wider": (lambda s: each(s, lambda t: t.repeat([2] * t.ndim)), "have shape"),
    "NaN": (lambda s: each(s, lambda t: t / 0 if t.is_floating_point() else t), "be finite"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_named(tmp_path: Path, state: State, kind: str) -> None:
    change, words = WRONG[kind]
    with pytest.raises(ValueError, match=words) as told:
        built(tmp_path / "w.pth", change(state))
    assert "\n" not in str(told.value)


def test_a_small_network_within_itself_is_not_guessed() -> None:
    tensors = {"a.weight": torch.rand(1, 1), "a.bias": torch.rand(1)}
    tensors |= {f"b.{name}": tensor for name, tensor in tensors.items()}
    with pytest.raises(ValueError, match=r"got a, b\.a"):
        fit_weights(nn.Linear(1, 1), tensors, "w")
