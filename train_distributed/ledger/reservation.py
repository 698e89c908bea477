"""Reserving ε before noise is drawn, and noting the result after."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.cli.command import held
from pretrain.cli.json_text import read_object
from pretrain.cli.output import new_file, sync_tree
from train_distributed.ledger.entry import Entry, Kind, hash_of, row_fields
from train_distributed.ledger.ledger import NONE, Ledger

if TYPE_CHECKING:
    from torch import Tensor

    from embed import EmbeddingSet
    from train_distributed.partition import Partition
    from train_distributed.privacy.promise import Privacy


CENTRE_SUFFIX = ".centre"


class LedgerReservation:
    """One sum over rows of a set, and the ledger that counts it.

    Args:
        ledger: None: the sum is not counted.
        embeddings: whose rows.
        part: which of them, see `row_fields`.
        privacy: what is promised.
        kind: None: a release, or a re-release where the ledger holds one of the set.
        method: that makes the sum.
        result: the directory that is written.
        partition: simulated one of these rows; None: the set's own users.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        embeddings: "EmbeddingSet",
        part: str,
        privacy: "Privacy",
        *,
        method: str,
        result: Path,
        kind: Kind | None = None,
        partition: "Partition | None" = None,
    ) -> None:
        self._ledger, self._result, self._id = ledger, result, None
        self._release: str | None = None  # hash of what it is made of, where its centre is kept
        self._earlier: str | None = None  # entry of the try that found the centre
        self._privacy, self._fields = privacy, dict[str, Any]()
        if ledger is None:
            return
        rows = row_fields(embeddings, part)
        if partition is not None:
            cuts = (partition.order.numpy(), partition.offsets.numpy())
            rows["users"] = "".join(map(hash_of, cuts))
        self._fields = {
            **rows,
            "kind": kind or ledger.release_kind(rows["data"]),
            "method": method,
            "result": result.name,
        }

    def afford(self, noise: Mapping[str, Any]) -> None:
        """Raises as `reserve` would now, before long work; writes nothing."""
        if self._ledger is not None:
            self._ledger.afford(Entry.of(self._privacy, self._fields, noise))

    def reserve(self, noise: Mapping[str, Any]) -> None:
        """Counts the sum as spent, with these fields of its noise; noise is drawn right after it.

        An interruption waits until the ledger is written, and then its entry is given back: no
        noise was drawn. One that comes later leaves it.

        Raises:
            ValueError: it would pass a limit.
            OSError: the ledger cannot be written.
        """
        if self._ledger is None:
            return
        with held() as interrupted:
            self._id = self._ledger.reserve(Entry.of(self._privacy, self._fields, noise))
            if interrupted():
                self._ledger.give_back(self._id)
                self._id = None

    def kept_centre(self, facts: Mapping[str, Any]) -> "Tensor | None":
        """The centre found by the first of two sums, if the second one failed; None: there is none.

        Beside the ledger, whose entry counts both sums, the centre is kept until the release is
        written, so that the next try opens no other sum for it. Anybody may know it, and about any
        other one the promise would be kept as well.

        Args:
            facts: all that the release is made of besides the rows, JSON-ready.

        Raises:
            ValueError: a file that holds no centre, or one whose sum the ledger does not count.
        """
        import torch

        if self._ledger is None:
            return None
        own = {**self._fields, **facts, "kind": "", "result": ""}
        text = json.dumps(own, sort_keys=True, default=str)
        self._release = hashlib.sha256(text.encode()).hexdigest()
        if (kept := self._kept()) is None:
            return None
        try:
            self._earlier = self._ledger.state().record(str(kept["entry"])).id
            return torch.tensor(kept["centre"], dtype=torch.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self._centre} must hold an entry and a centre: {error}") from error

    def keep_centre(self, centre: "Tensor") -> None:
        """Keeps a centre, before the sum about it is begun."""
        if self._release is not None:
            kept = {"release": self._release, "entry": self._reserved(), "centre": centre.tolist()}
            with new_file(self._centre) as partial:
                partial.write_text(json.dumps(kept) + "\n")

    @property
    def _centre(self) -> Path:
        assert self._ledger is not None
        return self._ledger.path.with_name(self._ledger.path.name + CENTRE_SUFFIX)

    def _kept(self) -> dict[str, Any] | None:
        """The file of this very release."""
        kept = read_object(self._centre) if self._centre.exists() else {}
        return kept if kept.get("release") == self._release else None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Adds to whatever ends the block early that what was reserved in it stays counted."""
        try:
            yield
        except BaseException as stop:
            if self._ledger is not None and self._id is not None:
                stop.add_note(f"its epsilon counts: entry {self._id} in {self._ledger.path}")
            raise

    def report(self) -> Any:
        """Part of the report that names the entry; "none" without a ledger."""
        if self._ledger is None:
            return NONE
        earlier = {} if self._earlier is None else {"centre_of_entry": self._earlier}
        return self._ledger.report(self._reserved()) | earlier

    def summary(self) -> str:
        """One line of it, for people."""
        if self._ledger is None:
            return NONE
        report = self.report()
        total = report["epsilon_total"]
        epsilon = total if isinstance(total, str) else f"epsilon {total:.6g}"
        return f"{self._ledger.path}: {epsilon} at delta {report['delta_total']:g} in all"

    def spend(self) -> None:
        """Notes that the result was written, once it has reached the disk."""
        if self._ledger is not None:
            with held():
                sync_tree(self._result)
                self._ledger.spend(self._reserved())
                if self._release is not None and self._kept() is not None:
                    self._centre.unlink()

    def _reserved(self) -> str:
        if self._id is None:
            raise RuntimeError("reserve must come before noise is drawn, was never called")
        return self._id
