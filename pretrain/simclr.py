"""SimCLR pretraining (Chen et al. 2020): one loop, resumable to the bit."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from pretrain.cli.output import new_file
from pretrain.recipes import AugmentConfig, SimCLRConfig
from pretrain.resnet import SmallResNet, initialise

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_STEPS = 200  # between two checkpoints within an epoch; each epoch ends with one
KEPT = ("config", "seed", "images", "step", "model", "optimizer", "losses", "history")


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
    monitor: Callable[[SmallResNet], dict[str, float]] | None = None,
    device: str = "cpu",
) -> tuple[SmallResNet, list[dict[str, float]]]:
    """Trains an encoder so that two views of an image are closest to each other.

    Args:
        images: (N, 3, h, w) uint8, on the CPU.
        config: the recipe.
        generator: gives the run's seed.
        directory: where the checkpoint lives; a run found there is continued.
        monitor: called after every epoch on the first process; its values join the history.
        device: of training.

    Returns:
        The encoder in evaluation mode, and per epoch the loss and the monitor's values.

    Raises:
        ValueError: too few images, a batch that processes cannot share, or a checkpoint of
            another run.
    """
    if config.batch_size % world_size():
        raise ValueError(
            f"batch_size must be divisible by {world_size()} processes, got {config.batch_size}"
        )
    steps = len(images) // config.batch_size
    if images.dtype != torch.uint8 or images.ndim != 4 or steps < 1:
        raise ValueError(
            f"images must be uint8 (N, 3, h, w) with N >= batch_size {config.batch_size}, "
            f"got {images.dtype} {tuple(images.shape)}"
        )
    run = _Run.start(config, generator, device)
    if directory is not None:
        run.resume(directory / CHECKPOINT, images)
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
            ended = run.step % steps == 0
            if ended:
                run.close_epoch(epoch, monitor)
            if directory is not None and (ended or run.step % CHECKPOINT_STEPS == 0):
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
        params = list(model.parameters())  # vectors (biases, normalisation) are not decayed
        groups: list[dict[str, Any]] = [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, config.learning_rate, fused=True)
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
        mine = images[rows.chunk(world)[rank]].to(self.device)
        views = [random_view(mine, config.augment, generator) for _ in range(2)]
        pixels = torch.cat(views).contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=config.half):
            z1, z2 = self.parallel(pixels).chunk(2)
        loss = nt_xent(z1, z2, config.temperature)
        loss.backward()
        if not math.isfinite(found := float(loss.detach())):
            raise ValueError(f"loss must stay finite (lower learning_rate), got {found}")
        self.optimizer.step()
        self.step += 1
        return found

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

    def resume(self, path: Path, images: Tensor) -> None:
        """Continues from `path` if it exists.

        Raises:
            ValueError: unreadable, or written by a run on other images or another recipe.
        """
        if not path.exists():
            return
        try:  # tensors and plain values, no pickled code
            state = torch.load(path, map_location="cpu", weights_only=True)
            state = {key: state[key] for key in KEPT}
        except Exception as error:  # a damaged file fails in the zip or in the unpickler
            raise ValueError(f"{path} must be a SimCLR checkpoint, got: {error}") from error
        found = json.loads(state["config"])
        wanted = json.loads(json.dumps(asdict(self.config)))
        changed = sorted(key for key in wanted if found.get(key) != wanted[key])
        changed += [] if state["seed"] == self.seed else ["seed"]
        changed += [] if state["images"] == list(images.shape) else ["images"]
        if changed:
            raise ValueError(f"{path} must be of the same run, got another {', '.join(changed)}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses, self.history = state["step"], state["losses"], state["history"]


def cosine_rate(step: int, *, total: int, warmup: int) -> float:
    """Share of the peak learning rate at `step`: linear warm-up, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Mean over all 2n views of -log softmax(similarity to the other view of the same image).

    Under `torch.distributed` the views of all processes are the negatives of each; the mean of
    the processes' losses, and of their gradients as DistributedDataParallel takes it, equals
    the loss of one process that holds all images.

    Args:
        z1: (n, k) projections of the first views; need not be normalised.
        z2: (n, k) projections of the second views.
        temperature: tau > 0.

    Returns:
        Scalar loss.
    """
    if z1.shape != z2.shape or z1.ndim != 2 or not len(z1):
        raise ValueError(f"z1 and z2 must both be (n, k), got {z1.shape} and {z2.shape}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    n, rank = len(z1), 0
    z1, z2 = functional.normalize(z1.float(), dim=1), functional.normalize(z2.float(), dim=1)
    all1, all2 = z1, z2
    if distributed.is_available() and distributed.is_initialized():
        rank = distributed.get_rank()
        all1, all2 = gather(z1), gather(z2)
    total = len(all1)
    logits = torch.cat([z1, z2]) @ torch.cat([all1, all2]).T / temperature
    own = torch.arange(n, device=z1.device) + rank * n
    logits[torch.arange(2 * n, device=z1.device), torch.cat([own, own + total])] = -torch.inf
    return functional.cross_entropy(logits, torch.cat([own + total, own]))


def gather(x: Tensor) -> Tensor:
    """Rows of all processes in the order of their ranks, with gradients; sizes must agree."""
    return _Gather.apply(x)  # pyright: ignore[reportReturnType]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        distributed.all_reduce(total)  # every process's loss depends on these rows
        return total.chunk(distributed.get_world_size())[distributed.get_rank()]


LUMA = (0.299, 0.587, 0.114)
TO_YIQ = (LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


def random_view(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """One random view of each image.

    Args:
        images: (n, 3, h, w) uint8.
        config: the distribution of views.
        generator: source of all randomness, on the device of `images`.

    Returns:
        (n, 3, size, size) float32 in [0, 1].
    """
    x = random_crop(images.to(torch.float32) / 255, config, generator)
    x = jitter_colours(x, config, generator)
    if config.blur:
        x = random_blur(x, config.blur, generator)
    return x


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, device=generator.device) * (high - low) + low


def random_crop(x: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """A random rectangle, area in [min_area, 1], sides 3:4 to 4:3, resized and perhaps flipped."""
    n = len(x)
    area = _uniform(n, config.min_area, 1.0, generator)
    ratio = _uniform(n, math.log(3 / 4), math.log(4 / 3), generator).exp()
    width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    left = (1 - width) * _uniform(n, -1.0, 1.0, generator)
    top = (1 - height) * _uniform(n, -1.0, 1.0, generator)
    mirror = _uniform(n, -1.0, 1.0, generator).sign() if config.flip else torch.ones_like(width)
    theta = torch.zeros(n, 2, 3, device=x.device)
    theta[:, 0, 0], theta[:, 0, 2] = width * mirror, left
    theta[:, 1, 1], theta[:, 1, 2] = height, top
    grid = functional.affine_grid(theta, [n, 3, config.size, config.size], align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def jitter_colours(x: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Brightness, contrast, saturation and hue as one affine map of RGB per image.

    Ranges are SimCLR's 0.8, 0.8, 0.8, 0.2 times the strength, applied with probability 0.8;
    greyscale with its own. The order is fixed and values are clamped once, at the end.
    """
    n, s, device = len(x), config.strength, x.device
    apply = _uniform(n, 0.0, 1.0, generator) < 0.8
    reach = min(0.8 * s, 1.0)
    factors = [_uniform(n, 1 - reach, 1 + reach, generator) for _ in range(3)]
    brightness, contrast, saturation = [f.where(apply, torch.ones_like(f)) for f in factors]
    angle = _uniform(n, -0.2 * s, 0.2 * s, generator) * (2 * math.pi)
    angle = angle.where(apply, torch.zeros_like(angle))
    grey = _uniform(n, 0.0, 1.0, generator) < config.greyscale
    saturation = saturation.where(~grey, torch.zeros_like(saturation))
    to_yiq = torch.tensor(TO_YIQ, device=device)
    turn = torch.zeros(n, 3, 3, device=device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = saturation * angle.cos()
    turn[:, 1, 2] = -saturation * angle.sin()
    turn[:, 2, 1] = saturation * angle.sin()
    matrix = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    matrix = matrix * (brightness * contrast).view(n, 1, 1)
    mean = (x.mean((2, 3)) * torch.tensor(LUMA, device=device)).sum(1)
    offset = ((1 - contrast) * brightness * mean).view(n, 1, 1)
    flat = torch.baddbmm(offset, matrix, x.flatten(2))
    return flat.clamp_(0, 1).view_as(x)


def random_blur(x: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Gaussian blur of sigma in [0.1, 2], kernel a tenth of the image, with a probability."""
    n, _, _, size = x.shape
    radius = max(1, size // 20)
    sigma = _uniform(n, 0.1, 2.0, generator).view(n, 1)
    sharp = (_uniform(n, 0.0, 1.0, generator) >= probability).view(n, 1, 1, 1)
    taps = torch.arange(-radius, radius + 1, device=x.device)
    kernel = torch.softmax(-((taps / sigma) ** 2) / 2, dim=1).repeat_interleave(3, 0)
    planes = functional.pad(x, (radius,) * 4, mode="reflect").flatten(0, 1)[None]
    planes = functional.conv2d(planes, kernel[:, None, :, None], groups=3 * n)
    planes = functional.conv2d(planes, kernel[:, None, None, :], groups=3 * n)
    return torch.where(sharp, x, planes[0].view_as(x))
