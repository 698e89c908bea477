"""`python -m train_distributed export`: a released model as one file for other programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrain.cli.output import new_directory, output_directory, write_json

FILES = {"onnx": "model.onnx", "torch-export": "model.pt2"}
ENOUGH = 1e-5  # difference of a probability that is worth no word


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a released model as an ONNX or torch.export file that runs by itself.

    The file takes uint8 pictures of one size, any number at once: preprocessing, encoder, transform
    and classifier are in it, for the class frequencies that the model was released for. It is then
    run in its own runtime and compared with `predict`.

    Example: blind-averaging export --model runs/mine --format onnx --out exported
    """

    model: Path
    """Released model: the directory that `run` or a federation wrote."""
    format: Literal["onnx", "torch-export"]
    """Format of the file: model.onnx or model.pt2."""
    encoder: str | None = None
    """Encoder of the training rows, as for `embed run` (default: the one in --model, or by the name
    that the model keeps). Any other encoder is refused."""
    weights: str | None = None
    """Weights file for --encoder (default: the weights it ships with)."""
    input_size: tuple[int, int] | None = None
    """Height and width of the pictures, which the file brings to the size of the training pictures
    (default: that size)."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Writes the file and export.json; prints how far its probabilities are from `predict`.

        Raises:
            ValueError: an option that does not fit, a package that is missing, another encoder.
            FileExistsError: the directory exists.
        """
        given = (self.model, self.encoder, self.weights)
        out = output_directory(self.out, "export", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            told = self._into(partial)
        for name in ("input", "output", "largest_difference"):
            print(f"{name:20} {told[name]}")
        if told["largest_difference"] > ENOUGH or told["classes_that_differ"]:
            print(
                f"{'warning':20} differs from predict by more than {ENOUGH:g}: the classifier "
                "amplifies what float32 rounds in the encoder"
            )
        print(f"{'written':20} {out / FILES[self.format]}")
        return out

    def _into(self, partial: Path) -> dict[str, Any]:
        from train_distributed.one_shot.model import Release
        from train_distributed.released.export import (
            described,
            largest_difference,
            picture_size,
            run_onnx,
            run_torch,
            save_onnx,
            save_torch,
            some_pictures,
            trace,
        )
        from train_distributed.released.pictures import released_encoder

        released, path = Release.load(self.model), partial / FILES[self.format]
        size = picture_size(released, self.input_size)
        encoder = released_encoder(released, self.model, name=self.encoder, weights=self.weights)
        program, told = trace(released, encoder, size), described(released, size)
        onnx = self.format == "onnx"
        (save_onnx if onnx else save_torch)(program, told, path)
        run = (run_onnx if onnx else run_torch)(path)
        found = largest_difference(released, encoder, run, some_pictures(size))
        told |= dict(zip(("largest_difference", "classes_that_differ"), found, strict=True))
        write_json(partial / "export.json", {"format": self.format} | told)
        return told
