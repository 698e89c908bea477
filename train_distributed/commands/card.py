"""`python -m train_distributed card`: a released model on one page, as HTML and as Markdown."""

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.cli.output import new_directory, new_file, refuse_inputs
from pretrain.cli.provenance import public_argument
from train_distributed.commands.releasing import Run, Simulate, options_of
from train_distributed.commands.rivals import command_of

if TYPE_CHECKING:
    from train_distributed.ledger.state import State

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
        from train_distributed.released.card.page import card

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

    def _spent(self, noted: Any) -> "State | None":
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


def _command(configuration: Mapping[str, Any] | None) -> str | None:
    """Command that made a model, from the configuration in its report; defaults left out.

    Of files outside the working directory only the names appear: where they lie is nobody's
    business.
    """
    if configuration is None:
        return None
    given = dict(configuration)
    program = str(given.pop("command", "run"))
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
    made: Any = command_of(rival) if group == "rival" else {"run": Run, "simulate": Simulate}[group]
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
