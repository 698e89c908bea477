"""What makes embedding sets and transforms out of others: `embed` but for `embed run`."""

from tests.train_distributed.commands.bad_inputs.case import table

HOLD = "embed hold-out --embeddings train_only --share"
FIT = "embed fit-transform --components 3 --public"
NAN_ROW = r"must be finite, got nan in row 7 of {}/embeddings\.npy"

CASES = table(
    (f"{HOLD} 0", r"share must be in \(0, 1\), got 0"),
    (f"{HOLD} nan", r"share must be in \(0, 1\), got nan"),
    (f"{HOLD} .5 --seed -1", r"seed must be >= 0, got -1"),
    (f"{HOLD} 1e-9", r"share must hold out some of .* got 1e-09 by record, which is 0"),
    ("embed hold-out --embeddings private --share .5", r"must hold no evaluation rows yet"),
    (f"{HOLD} .5 --out train_only --overwrite", r"out must not hold what the command reads"),
    ("embed exclude --public nowhere --embeddings private", r"existing directory, got nowhere"),
    ("embed exclude --public narrow --embeddings private", r"must .* got"),
    ("embed exclude --public public --embeddings public", r"must .* got 0"),
    (
        "embed exclude --public public --private private",
        r"embed exclude --private has been retired: give the private set as --embeddings",
    ),
    (
        "embed run --data x.npz --encoder open_clip:RN50 --weights hub",
        r"embed run --encoder open_clip has been retired: name the same tower as timm:NAME or",
    ),
    ("embed exclude --public public", r"--embeddings"),
    (
        "embed exclude --public public --embeddings private --out public --overwrite",
        r"out must not hold what the command reads",
    ),
    (f"{FIT} public_nan", NAN_ROW.format("public_nan")),
    (f"{FIT} public --components 0", r"components must be in \[1, 6\], got 0"),
    (f"{FIT} public --components 7", r"components must be in \[1, 6\], got 7"),
    (f"{FIT} public --clip-quantile 1.5", r"clip_quantile must be in \[0, 1\], got 1\.5"),
    (f"{FIT} public --constant nan", r"constant must be .* got nan"),
    (f"{FIT} public --constant 1e9", r"constant must be .* got 1"),
    (f"{FIT} public --out public --overwrite", r"out must not hold what the command reads"),
)
