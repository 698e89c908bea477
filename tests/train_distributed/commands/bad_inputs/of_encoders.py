"""What is done to pictures, and by which encoder: `embed run`, `predict --data`, `pretrain`."""

import numpy as np

from tests.train_distributed.commands.bad_inputs.case import arrays, cut, table

RUN = "embed run --encoder network.safetensors --data"
NAMED = "embed run --data pictures --encoder"
PREDICT = "predict --model model --data"
SIMCLR = "pretrain simclr --data"
OVER = r"out must not hold what the command reads, \S+, got \S+"
PIXELS = np.zeros((4, 8, 8, 3), np.uint8)

CASES = table(
    ("no pixels allowed", f"{RUN} pictures --max-pixels 0", r"max_pixels must be >= 1, got 0"),
    ("no pixels wanted", f"{RUN} pictures --resize 0", r"resize must be >= 1, got 0"),
    ("huge resize", f"{RUN} pictures --resize 1000000", r"resize must be <= 9459, got 1000000"),
    (
        "huge input",
        f"{RUN} pictures --image-size 100000",
        r"image_size must be <= \d+, .* got 100000",
    ),
    ("negative input", f"{RUN} pictures --image-size -3", r"image_size must be >= 1, got -3"),
    ("crop of nothing", f"{RUN} pictures --crop 0", r"crop must be in \(0, 1\], got 0"),
    ("crop that is no number", f"{RUN} pictures --crop nan", r"crop must be in \(0, 1\], got nan"),
    ("empty batches", f"{RUN} pictures --batch-size 0", r"batch_size must be >= 1, got .*0"),
    ("shard beyond the last", f"{RUN} pictures --shard 3/3", r"shard i/n must .* got 3/3"),
    ("shard of words", f"{RUN} pictures --shard one", r"shard must be i/n, got one"),
    (
        "nonsense for a device",
        f"{RUN} pictures --device nonsense",
        r"device must be .* got nonsense",
    ),
    (
        "device of most others",
        f"{RUN} pictures --device cuda",
        r"device must be one that is here \(cpu\), got cuda",
    ),
    (
        "device that is not here",
        f"{RUN} pictures --device cuda:99",
        r"device must be .* got cuda:99",
    ),
    (
        "engine without the precision",
        f"{RUN} pictures --engine openvino --compute float16",
        r"engine openvino must compute in float32 or bfloat16, got float16",
    ),
    ("encoder of no kind", f"{NAMED} nonsense", r"encoder must be .* got nonsense"),
    ("encoder that is a folder", f"{NAMED} pictures", r"encoder must be .* got pictures"),
    ("encoder that is a picture", f"{NAMED} pictures/red/0.png", r"pictures/red/0\.png"),
    ("encoder without weights", f"{NAMED} timm:resnet18", r"weights must be .* got none"),
    (
        "encoder of no family",
        f"{NAMED} timm:nothing_of_the_kind --weights random",
        r"timm.* got .*nothing_of",
    ),
    (
        "weights of the built-in encoder",
        "embed run --data pictures --weights random",
        r"weights must be left out .* got random",
    ),
    (
        "weights that are no file",
        f"{NAMED} timm:resnet18 --weights nowhere.pt",
        r"weights must be .* got nowhere\.pt",
    ),
    (
        "truncated encoder",
        f"{RUN} pictures",
        r"network\.safetensors must be .*got",
        cut("network.safetensors"),
    ),
    ("empty encoder", f"{RUN} pictures", r"network\.safetensors", cut("network.safetensors", 0)),
    ("no shards", f"{RUN} wds:none-*.tar", r"none-\*\.tar"),
    ("shard that is no archive", f"{RUN} wds:table.csv", r"table\.csv"),
    ("parquet that is none", f"{RUN} parquet:table.csv", r"table\.csv must be .* got"),
    ("nothing of Hugging Face", f"{RUN} hf:private", r"private must .* got|hf must have"),
    ("no CIFAR-10", f"{RUN} cifar10:pictures", r"pictures must hold cifar10 .* got"),
    ("folder without pictures", f"{RUN} private", r"private must hold .* got none"),
    ("out that exists", f"{RUN} pictures --out old", r"output directory must not exist .* got old"),
    ("out that is a file", f"{RUN} pictures --out table.csv --overwrite", r"table\.csv"),
    ("out below a file", f"{RUN} pictures --out table.csv/out", r"table\.csv"),
    ("out that cannot be written", f"{RUN} pictures --out /proc/nowhere/out", r"/proc/nowhere"),
    ("no pictures to predict", f"{PREDICT} nowhere", r"images must be .* got nowhere"),
    (
        "unreadable picture to predict",
        f"{PREDICT} pictures",
        r"pictures/red/1\.png must be a readable image",
        cut("pictures/red/1.png"),
    ),
    (
        "device to predict with",
        f"{PREDICT} pictures --device nonsense",
        r"device must be .* got nonsense",
    ),
    ("batch to predict", f"{PREDICT} pictures --batch-size -1", r"batch_size must be >= 1, got -1"),
    (
        "size to predict",
        f"{PREDICT} pictures --resize 12",
        r"pictures must be 8 x 8 .* got 12 x 12",
    ),
    (
        "other encoder to predict with",
        "predict --model bare --data pictures --encoder other.safetensors",
        r"encoder must be the one that the model learned with, .* got",
    ),
    (
        "no encoder to predict with",
        "predict --model bare --data pictures",
        r"encoder must be given by name and weights",
    ),
    (
        "labels to measure by that are not there",
        f"{PREDICT} data.npz --evaluate",
        r"evaluate must have labels, got 4 rows",
        arrays(x_test=PIXELS),
    ),
    ("nothing to pretrain on", f"{SIMCLR} nowhere", r"images must be .* got nowhere"),
    (
        "device to pretrain with",
        f"{SIMCLR} pictures --device nonsense",
        r"device must be .* got nonsense",
    ),
    (
        "seed of pretraining",
        f"{SIMCLR} pictures --seed -1",
        r"seed must be in \[0, 2\^63\), got -1",
    ),
    ("no epochs", f"{SIMCLR} pictures --config.epochs 0", r"epochs must be >= 1, got 0"),
    (
        "batch beyond the data",
        f"{SIMCLR} pictures --config.batch-size 512",
        r"images must be .* with N >= batch_size 512, got .*\(9, 3, 8, 8\)",
    ),
    (
        "no checkpoint steps",
        f"{SIMCLR} pictures --checkpoint-steps 0",
        r"checkpoint_steps must be >= 1, got 0",
    ),
    (
        "probe without labels",
        "pretrain probe --data data.npz",
        r"images must have labels, got data without any",
        arrays(x_train=PIXELS, x_test=PIXELS),
    ),
    ("probe of nothing", "pretrain probe --data nowhere", r"images must be .* got nowhere"),
    ("probe over its data", "pretrain probe --data pictures --out pictures --overwrite", OVER),
    ("pretraining over its data", f"{SIMCLR} pictures --out pictures --overwrite", OVER),
    ("pictures over themselves", f"{RUN} pictures --out pictures --overwrite", OVER),
    ("table over its folder", f"{RUN} csv:pictures/t.csv --out pictures --overwrite", OVER),
    ("archives over their folder", f"{RUN} 'wds:pictures/*.tar' --out pictures --overwrite", OVER),
    ("encoder over itself", f"{NAMED} model/encoder.safetensors --out model --overwrite", OVER),
    (
        "predictions over the table",
        f"{PREDICT} csv:pictures/t.csv --out pictures --overwrite",
        OVER,
    ),
)
