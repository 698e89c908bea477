"""A released model for others: `export` as a program, `card` as a page."""

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain.cli.output import new_directory, new_file, output_directory, refuse_inputs, write_json
from pretrain.cli.provenance import public_argument
from pretrain.public import find, function
from train_distributed.commands import COMMANDS
from train_distributed.commands.comparing import command_of
from train_distributed.commands.releasing import options_of

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.ledger.state import LedgerState

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
    """Weights file for --encoder (default: the weights shipped with it)."""
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


export = function("export", Export)


HTML, MARKDOWN = "card.html", "card.md"
EVALUATION = "evaluation.json"  # in the directory that `evaluate` writes
ALWAYS = ("epsilon", "delta")  # are said, whatever the default is
SHARES = "SHARES.json"  # of a prior, whose shares are in the report, but not the name of its file


@dataclass(frozen=True)
class Card:
    """Write the model card of a released model: its origin, its promise and its accuracy."""

    model: Path
    """Directory that `run` or a federation wrote."""
    ledger: Path | None = None
    """Ledger of the training records; the card lists its entries (default: none)."""
    evaluation: Path | None = None
    """Directory that `evaluate` wrote: accuracy on rows that users held out (default: none)."""
    out: Path | None = None
    """Directory to write (default: the model's own)."""
    overwrite: bool = False
    """Replace files that exist."""

    def run(self) -> Path:
        """Writes card.html, one file that loads nothing, and card.md.

        Raises:
            ValueError: a model, ledger or evaluation that cannot be read.
            FileExistsError: there is a card, or the directory exists.
        """
        from train_distributed.one_shot.model import MODEL, Release
        from train_distributed.released.card import card

        if self.out is not None:
            refuse_inputs(self.out, (self.model, self.ledger, self.evaluation))
        release = Release.load(self.model)
        files = self._hashes()
        known: dict[str, Any] = {
            "name": self.model.resolve().name,
            "files": files,
            "command": _command(release.report.configuration),
            "ledger": self._spent(release.report.get("ledger")),
            "evaluation": self._evaluated(files[MODEL]),
        }
        html, markdown = (card(release, markup=each, **known) for each in ("html", "markdown"))
        with self._places() as places:
            for path, text in zip(places, (html, markdown), strict=True):
                path.write_text(text, "utf-8")
        out = self.out or self.model
        print(f"{'written':22} {out / HTML}")
        print(f"{'written':22} {out / MARKDOWN}")
        return out

    @contextmanager
    def _places(self) -> Iterator[tuple[Path, Path]]:
        """Paths to write: in a directory that appears whole, or of two files that do."""
        if self.out is not None:
            with new_directory(self.out, overwrite=self.overwrite) as partial:
                yield partial / HTML, partial / MARKDOWN
            return
        for path in (self.model / HTML, self.model / MARKDOWN):
            if path.exists() and not self.overwrite:
                raise FileExistsError(f"{path} must not exist (or pass --overwrite)")
        with new_file(self.model / HTML) as html, new_file(self.model / MARKDOWN) as markdown:
            yield html, markdown

    def _hashes(self) -> dict[str, str]:
        found = {}
        for path in sorted(path for path in self.model.iterdir() if path.is_file()):
            if path.name not in (HTML, MARKDOWN):
                with path.open("rb") as file:
                    found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def _spent(self, noted: Any) -> "LedgerState | None":
        """State of the ledger, if it is the one that the release was counted in."""
        if self.ledger is None:
            return None
        from train_distributed.ledger.ledger import Ledger

        if not self.ledger.is_file():
            raise ValueError(f"ledger must be an existing file, got {self.ledger}")
        ledger = Ledger.open(self.ledger)
        if isinstance(noted, dict):
            ledger.check_against(noted)
        state = ledger.state()
        ledger.refuse_copy(state)
        return state

    def _evaluated(self, model: str) -> dict[str, Any] | None:
        """Report of an evaluation, if it was of the model with this hash."""
        if self.evaluation is None:
            return None
        from pretrain.cli.json_text import read_object

        found = read_object(self.evaluation / EVALUATION)
        if found.get("model") != model:
            raise ValueError(
                f"evaluation must be of the model with SHA-256 {model}, got one of "
                f"{found.get('model')} in {self.evaluation}"
            )
        return found


card = function("card", Card)


def _command(configuration: Mapping[str, Any] | None) -> str | None:
    """Command that made a model, from the configuration in its report; defaults left out.

    None: no command did, or one that only another program has.

    Of files outside the working directory only the names appear: where they lie is nobody's
    business.
    """
    given = dict(configuration or {})
    program = str(given.pop("command", "run"))
    if configuration is None or program.split()[0] not in COMMANDS:
        return None
    options = dict(given.pop("options", {}))
    if given.get("config") is not None:  # which says them
        given.pop("method", None)
        options = {}
    words = ["blind-averaging", *program.split()]
    for name, usual in _usual(program).items():  # others follow by rule
        if name in options or name in given:
            words += _typed(name, options.get(name, given.get(name)), usual)
    return shlex.join(words)


def _usual(program: str) -> dict[str, Any]:
    """Options of a command that makes models, and their defaults."""
    group, _, rival = program.partition(" ")
    made: Any = command_of(rival) if group == "rival" else find(COMMANDS[group]).command
    return options_of(made(embeddings=Path(), public=Path()))


def _typed(name: str, value: Any, usual: Any) -> list[str]:
    """An option as it is typed; nothing for what it is anyway."""
    if value is None or (value == usual and name not in ALWAYS):
        return []
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    if name == "prior" and isinstance(value, list):
        return [f"--{option}", SHARES]
    values = value if isinstance(value, list) else [value]
    return [f"--{option}", *(public_argument(str(each)) for each in values)]
