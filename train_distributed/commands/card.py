"""`python -m train_distributed card`: a released model on one page, as HTML and as Markdown."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.cli.output import new_directory, new_file, refuse_inputs
from train_distributed.commands.command_line import command_line
from train_distributed.commands.run import Run

if TYPE_CHECKING:
    from train_distributed.ledger.state import State

HTML, MARKDOWN = "card.html", "card.md"
EVALUATION = "evaluation.json"  # in the directory that `evaluate` writes


@dataclass(frozen=True)
class Card:
    """Write a released model's card: what it is, what it promises, how good it is."""

    model: Path
    """Directory that `run` or a federation wrote."""
    ledger: Path | None = None
    """Ledger of the records that it was learned from; its entries and their total are shown."""
    evaluation: Path | None = None
    """Directory that `evaluate` wrote: accuracy with its intervals, on rows held out by users."""
    out: Path | None = None
    """Directory to write; into the model's own if left out."""
    overwrite: bool = False
    """Replace what exists."""

    def run(self) -> None:
        """Writes card.html, one file that loads nothing, and card.md.

        Raises:
            ValueError: a model, ledger or evaluation that cannot be read.
            FileExistsError: there is a card, or the directory exists.
        """
        from train_distributed.one_shot import Release
        from train_distributed.one_shot.files import MODEL
        from train_distributed.released.card.assemble import card_of
        from train_distributed.released.card.html import as_html
        from train_distributed.released.card.markdown import as_markdown

        if self.out is not None:
            refuse_inputs(self.out, (self.model, self.ledger, self.evaluation))
        release = Release.load(self.model)
        files = self._hashes()
        card = card_of(
            release,
            name=self.model.resolve().name,
            files=files,
            command=_command(release.report),
            ledger=self._spent(release.report.get("ledger")),
            evaluation=self._evaluated(files[MODEL]),
        )
        with self._places() as (html, markdown):
            html.write_text(as_html(card), "utf-8")
            markdown.write_text(as_markdown(card), "utf-8")
        print(f"{'written':22} {(self.out or self.model) / HTML}")
        print(f"{'written':22} {(self.out or self.model) / MARKDOWN}")

    @contextmanager
    def _places(self) -> Iterator[tuple[Path, Path]]:
        """Where to write: a directory that appears whole, or two files that do."""
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
        from train_distributed.released.card.reproduce import sha256

        files = sorted(path for path in self.model.iterdir() if path.is_file())
        return {path.name: sha256(path) for path in files if path.name not in (HTML, MARKDOWN)}

    def _spent(self, noted: Any) -> "State | None":
        """What the ledger says, if it is the one that the release was counted in."""
        if self.ledger is None:
            return None
        from train_distributed.ledger.ledger import Ledger

        if not self.ledger.is_file():
            raise ValueError(f"ledger must be an existing file, got {self.ledger}")
        ledger = Ledger.open(self.ledger)
        if isinstance(noted, dict):
            ledger.check_against(noted)
        return ledger.state()

    def _evaluated(self, model: str) -> dict[str, Any] | None:
        """What an evaluation found, if it was of the model with this hash."""
        if self.evaluation is None:
            return None
        from train_distributed.one_shot.files import read_object

        found = read_object(self.evaluation / EVALUATION)
        if found.get("model") != model:
            raise ValueError(
                f"evaluation must be of the model with SHA-256 {model}, got one of "
                f"{found.get('model')} in {self.evaluation}"
            )
        return found


def _command(report: dict[str, Any]) -> str | None:
    """What was typed for this model, where its report keeps the configuration of `run`."""
    configuration = report.get("configuration")
    if not isinstance(configuration, dict):
        return None
    return command_line("blind-averaging run", Run, configuration)
