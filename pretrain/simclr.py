"""SimCLR pretraining (Chen et al. 2020): one loop, resumable to the bit."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from pretrain.augment import random_view
from pretrain.cli.output import new_file
from pretrain.ntxent import nt_xent
from pretrain.recipes import SimCLRConfig
from pretrain.resnet import SmallResNet, initialise

CHECKPOINT = "checkpoint.pt"


def world_size() -> int:
    """Processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


class ProjectedEncoder(nn.Module):
    """The encoder with SimCLR's projection head, which is thrown away afterwards."""

    def __init__(self, config: SimCLRConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = SmallResNet(config.encoder, generator)
        self.head = nn.Sequential(
            nn.Linear(self.encoder.embedding_dim, config.hidden, bias=False),
            nn.BatchNorm1d(config.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(config.hidden, config.projected),
        )
        initialise(self.head, generator)

    def forward(self, views: Tensor) -> Tensor:
        """(2n, 3, h, w) views -> (2n, projected)."""
        return self.head(self.encoder(views))


def pretrain(
    images: Tensor,
    config: SimCLRConfig,
    generator: torch.Generator,
    *,
    directory: Path | None = None,
    checkpoint_steps: int = 200,
    new_horizon: bool = False,
    monitor: Callable[[SmallResNet], dict[str, float]] | None = None,
    device: str = "cpu",
) -> tuple[SmallResNet, list[dict[str, float]]]:
    """Trains an encoder so that two views of an image are closest to each other.

    Args:
        images: (N, 3, h, w) uint8, on the CPU.
        config: the recipe.
        generator: gives the run's seed.
        directory: where the checkpoint lives; a run found there is continued.
        checkpoint_steps: steps between two checkpoints.
        new_horizon: let `config.epochs` differ from the continued run's.
        monitor: called after every epoch on the first process; its values join the history.
        device: of training.

    Returns:
        The encoder in evaluation mode, and per epoch the loss and the monitor's values.

    Raises:
        ValueError: too few images, a batch that processes cannot share, or a checkpoint of
            another run.
    """
    config.check_processes(world_size())
    steps = len(images) // config.batch_size
    if images.dtype != torch.uint8 or images.ndim != 4 or steps < 1:
        raise ValueError(
            f"images must be uint8 (N, 3, h, w) with N >= batch_size {config.batch_size}, "
            f"got {images.dtype} {tuple(images.shape)}"
        )
    run = _Run.start(config, generator, device)
    if directory is not None:
        run.resume(directory / CHECKPOINT, images, new_horizon=new_horizon)
    total = config.epochs * steps
    with tqdm(total=total * config.batch_size, unit="image", disable=None) as bar:
        bar.update(run.step * config.batch_size)
        while run.step < total:
            epoch, within = divmod(run.step, steps)
            if not within:
                run.losses.clear()
            rows = run.order(len(images), epoch)[within * config.batch_size :]
            run.losses.append(run.train(images, rows[: config.batch_size], total))
            bar.update(config.batch_size)
            bar.set_postfix(loss=f"{run.losses[-1]:.3f}", refresh=False)
            if run.step % steps == 0:
                run.close_epoch(epoch, monitor)
            if directory is not None and (run.step % checkpoint_steps == 0 or run.step == total):
                run.save(directory / CHECKPOINT, images)
    return run.model.encoder.eval(), run.history


@dataclass
class _Run:
    config: SimCLRConfig
    seed: int
    model: ProjectedEncoder
    parallel: nn.Module  # the same model, perhaps wrapped for several processes
    optimizer: torch.optim.Optimizer
    device: torch.device
    step: int = 0
    losses: list[float] = field(default_factory=list)  # of the current epoch
    history: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def start(cls, config: SimCLRConfig, generator: torch.Generator, device: str) -> "_Run":
        seed = int(torch.randint(2**40, (), generator=generator))
        model = ProjectedEncoder(config, torch.Generator().manual_seed(seed))
        model = model.to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        parallel = DistributedDataParallel(model) if world_size() > 1 else model
        optimizer = build_optimizer(
            config.optimizer, model.parameters(), config.learning_rate, config.weight_decay
        )
        return cls(config, seed, model, parallel, optimizer, torch.device(device))

    def order(self, count: int, epoch: int) -> Tensor:
        """The epoch's permutation: a function of seed and epoch, so nothing needs saving."""
        return torch.randperm(count, generator=self._generator("cpu", 0, epoch))

    def _generator(self, device: torch.device | str, stream: int, index: int) -> torch.Generator:
        name = f"{self.seed}/{stream}/{index}".encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest())
        return torch.Generator(device).manual_seed(seed)

    def train(self, images: Tensor, rows: Tensor, total: int) -> float:
        """One optimiser step on the images `rows`; returns the loss."""
        config, world = self.config, world_size()
        rank = distributed.get_rank() if world > 1 else 0
        share = cosine_rate(self.step, total=total, warmup=round(config.warmup * total))
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * share
        generator = self._generator(self.device, 1 + rank, self.step)
        self.parallel.train()
        self.optimizer.zero_grad(set_to_none=True)
        mean = 0.0
        for part in rows.chunk(config.accumulate):
            mine = images[part.chunk(world)[rank]].to(self.device)
            views = [random_view(mine, config.augment, generator) for _ in range(2)]
            pixels = torch.cat(views).contiguous(memory_format=torch.channels_last)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.half):
                z1, z2 = self.parallel(pixels).chunk(2)
            loss = nt_xent(z1, z2, config.temperature) / config.accumulate
            loss.backward()
            mean += float(loss.detach())
        if not math.isfinite(mean):
            raise ValueError(f"loss must stay finite (lower learning_rate), got {mean}")
        self.optimizer.step()
        self.step += 1
        return mean

    def close_epoch(
        self, epoch: int, monitor: Callable[[SmallResNet], dict[str, float]] | None
    ) -> None:
        """Adds the epoch to the history."""
        entry = {"epoch": epoch + 1, "loss": sum(self.losses) / len(self.losses)}
        if monitor is not None and (world_size() == 1 or distributed.get_rank() == 0):
            entry |= monitor(self.model.encoder.eval())
        self.history.append(entry)

    def save(self, path: Path, images: Tensor) -> None:
        """Writes the checkpoint, whole or not at all, from the first process."""
        if world_size() > 1 and distributed.get_rank():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "config": json.dumps(asdict(self.config)),
            "seed": self.seed,
            "images": list(images.shape),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
            "history": self.history,
        }
        with new_file(path) as partial:
            torch.save(state, partial)

    def resume(self, path: Path, images: Tensor, *, new_horizon: bool) -> None:
        """Continues from `path` if it exists.

        Raises:
            ValueError: unreadable, or written by a run on other images or another recipe.
        """
        if not path.exists():
            return
        state = read_checkpoint(path)
        found = json.loads(state["config"])
        wanted = json.loads(json.dumps(asdict(self.config)))
        if new_horizon:
            found["epochs"] = wanted["epochs"]
        changed = sorted(key for key in wanted if found.get(key) != wanted[key])
        changed += [] if state["seed"] == self.seed else ["seed"]
        changed += [] if state["images"] == list(images.shape) else ["images"]
        if changed:
            raise ValueError(f"{path} must be of the same run, got another {', '.join(changed)}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses, self.history = state["step"], state["losses"], state["history"]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a training checkpoint: tensors and plain values, no pickled code.

    Raises:
        ValueError: damaged or something else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {key: state[key] for key in _CHECKPOINT_KEYS}
    except Exception as error:  # a damaged file fails in the zip or in the unpickler
        raise ValueError(f"{path} must be a SimCLR checkpoint, got: {error}") from error


_CHECKPOINT_KEYS = ("config", "seed", "images", "step", "model", "optimizer", "losses", "history")


def build_optimizer(
    name: str, params: Iterable[nn.Parameter], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """`adamw`, `sgd` (Nesterov momentum 0.9) or `lars` (momentum 0.9).

    Vectors (biases, normalisation) are not decayed, and LARS (You et al. 2017) does not rescale
    them: of the others each step is a thousandth of the weight's norm, times the rate.
    """
    listed = list(params)
    matrices, vectors = [p for p in listed if p.ndim > 1], [p for p in listed if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay}]
    groups.append({"params": vectors, "weight_decay": 0.0})
    if name == "lars":
        from timm.optim.lars import Lars

        groups[0]["always_adapt"] = True
        return Lars(groups, lr, momentum=0.9)  # pyright: ignore[reportArgumentType]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr, fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True)
    raise ValueError(f"optimizer must be adamw, sgd or lars, got {name}")


def cosine_rate(step: int, *, total: int, warmup: int) -> float:
    """Share of the peak learning rate at `step`: linear warm-up, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
