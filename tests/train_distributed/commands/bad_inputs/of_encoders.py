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
    (f"{RUN} pictures --max-pixels 0", r"max_pixels must be >= 1, got 0"),
    (f"{RUN} pictures --resize 0", r"resize must be >= 1, got 0"),
    (f"{RUN} pictures --resize 1000000", r"resize must be <= 9459, got 1000000"),
    (f"{NAMED} simclr-small@100000", r"image_size must be <= \d+, .* got 100000"),
    (f"{NAMED} simclr-small@0", r"image_size must be >= 1, got 0"),
    (f"{NAMED} simclr-small@-3", r"encoder must be one of .*@PIXELS,.* got simclr-small@-3"),
    (f"{NAMED} simclr-small@8,9", r"encoder must say each once after its @, got simclr-small@8,9"),
    (f"{NAMED} simclr-small@crop=0", r"crop must be in \(0, 1\], got 0"),
    (f"{NAMED} simclr-small@crop=nan", r"crop must be in \(0, 1\], got nan"),
    (f"{NAMED} simclr-small@8,crop=all", r"crop must be a number in \(0, 1\], got all in"),
    (f"{NAMED} concat:simclr-small@8,invert+simclr-small", r"invert .* all of its parts, or none"),
    (f"{RUN} pictures --batch-size 0", r"batch_size must be >= 1, got .*0"),
    (f"{RUN} pictures --device nonsense", r"device must be .* got nonsense"),
    (f"{RUN} pictures --device cuda", r"device must be one that is here \(cpu\), got cuda"),
    (f"{RUN} pictures --device cuda:99", r"device must be .* got cuda:99"),
    (f"{NAMED} nonsense", r"encoder must be .* got nonsense"),
    (f"{NAMED} pictures", r"encoder must be .* got pictures"),
    (f"{NAMED} pictures/red/0.png", r"pictures/red/0\.png"),
    (f"{NAMED} timm:resnet18", r"weights must be .* got none"),
    (f"{NAMED} timm:nothing_of_the_kind --weights random", r"timm.* got .*nothing_of"),
    ("embed run --data pictures --weights random", r"weights must be left out .* got random"),
    (f"{NAMED} timm:resnet18 --weights nowhere.pt", r"weights must be .* got nowhere\.pt"),
    (f"{RUN} pictures", r"network\.safetensors must be .*got", cut("network.safetensors")),
    (f"{RUN} pictures", r"network\.safetensors", cut("network.safetensors", 0)),
    (f"{RUN} wds:none-*.tar", r"none-\*\.tar"),
    (f"{RUN} wds:table.csv", r"table\.csv"),
    (f"{RUN} parquet:table.csv", r"table\.csv must be .* got"),
    (f"{RUN} hf:private", r"private must .* got|hf must have"),
    (f"{RUN} cifar10:pictures", r"pictures must hold cifar10 .* got"),
    (f"{RUN} private", r"private must hold .* got none"),
    (f"{RUN} pictures --out old", r"output directory must not exist .* got old"),
    (f"{RUN} pictures --out table.csv --overwrite", r"table\.csv"),
    (f"{RUN} pictures --out table.csv/out", r"table\.csv"),
    (f"{RUN} pictures --out /proc/nowhere/out", r"/proc/nowhere"),
    (f"{PREDICT} nowhere", r"images must be .* got nowhere"),
    (
        f"{PREDICT} pictures",
        r"pictures/red/1\.png must be a readable image",
        cut("pictures/red/1.png"),
    ),
    (f"{PREDICT} pictures --device nonsense", r"device must be .* got nonsense"),
    (f"{PREDICT} pictures --batch-size -1", r"batch_size must be >= 1, got -1"),
    (f"{PREDICT} pictures --resize 0", r"resize must be >= 1, got 0"),
    (f"{PREDICT} pictures --resize 12", r"resize must be left out, .*8 x 8 px\), got 12"),
    (
        "predict --model bare --data pictures --encoder other.safetensors",
        r"encoder must be the one that the model learned with, .* got",
    ),
    ("predict --model bare --data pictures", r"encoder must be given by name and weights"),
    (
        f"{PREDICT} data.npz --evaluate",
        r"evaluate must have labels, got 4 rows",
        arrays(x_test=PIXELS),
    ),
    (f"{SIMCLR} nowhere", r"images must be .* got nowhere"),
    (f"{SIMCLR} pictures --device nonsense", r"device must be .* got nonsense"),
    (f"{SIMCLR} pictures --seed -1", r"seed must be in \[0, 2\^63\), got -1"),
    (f"{SIMCLR} pictures --config.epochs 0", r"epochs must be >= 1, got 0"),
    (
        f"{SIMCLR} pictures --config.batch-size 512",
        r"images must be .* with N >= batch_size 512, got .*\(9, 3, 8, 8\)",
    ),
    (
        "pretrain probe --data data.npz",
        r"images must have labels, got data without any",
        arrays(x_train=PIXELS, x_test=PIXELS),
    ),
    ("pretrain probe --data nowhere", r"images must be .* got nowhere"),
    ("pretrain probe --data pictures --out pictures --overwrite", OVER),
    (f"{SIMCLR} pictures --out pictures --overwrite", OVER),
    (f"{RUN} pictures --out pictures --overwrite", OVER),
    (f"{RUN} csv:pictures/t.csv --out pictures --overwrite", OVER),
    (f"{RUN} 'wds:pictures/*.tar' --out pictures --overwrite", OVER),
    (f"{RUN} pictures/red --layout flat --out pictures --overwrite", OVER),
    (f"{NAMED} model/encoder.safetensors --out model --overwrite", OVER),
    (f"{NAMED} mirrored:hf:model@8,invert --out model --overwrite", OVER),
    (f"{NAMED} mirrored:hf:model --out model --overwrite", OVER),
    (f"{PREDICT} csv:pictures/t.csv --out pictures --overwrite", OVER),
)
