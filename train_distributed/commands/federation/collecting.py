"""`federation window` and `federation collect`: the operator's side of a window."""

import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain import check
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.waiting import Waiting
from pretrain.public import function
from train_distributed.commands.federation.hosting import NextSum, own_keys
from train_distributed.commands.federation.reporting import agreed, authorities
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import FEDERATION
from train_distributed.federation.documents.place import ROLL, with_roll
from train_distributed.federation.documents.terms import agreed_file
from train_distributed.federation.documents.window_file import (
    WINDOW,
    WindowFile,
    keep_opened,
    keep_window,
    split_address,
)
from train_distributed.secure_sum.keys import FIRST_SERVER, KEY_BYTES, PrivateKeys
from train_distributed.secure_sum.reports import report_bytes
from train_distributed.secure_sum.window import Window

if TYPE_CHECKING:
    from train_distributed.federation.aggregator_client import Aggregators

LOOK_SECONDS = 1.0  # between looks for reports


@dataclass(frozen=True)
class MakeWindow:
    """Operator: agree on when reports are taken, and where the aggregators listen."""

    folder: Path
    """Folder of `init`, with protocol `shares`."""
    aggregators: tuple[str, ...]
    """HOST:PORT of the operator's own aggregator, to which users report, and of the other one."""
    out: Path
    """Folder to hand out: aggregators need all of it, users only window.json."""
    hours: float = 24.0
    """Hours from now on in which reports are taken; `collect` may close the window earlier."""

    def run(self) -> Path:
        """Writes and returns the folder, whole or not at all.

        Raises:
            ValueError: no operator's folder, or a setting that does not fit.
        """
        from train_distributed.federation.evaluation_task import task_of

        federation = with_roll(Federation.load(self.folder / FEDERATION), self.folder)
        keys = own_keys(self.folder, federation)
        check.within("(0, 100000)", hours=self.hours)
        now = time.time()
        opens, closes = int(now), int(now + 3600 * self.hours) + 1
        task = task_of(federation, self.folder / agreed_file(federation.task))
        window = task.window(secrets.token_bytes(KEY_BYTES), opens, closes)
        check.equal(len(window.servers), aggregators=len(self.aggregators))
        addresses = dict(enumerate(map(split_address, self.aggregators), FIRST_SERVER))
        with new_directory(self.out) as partial:
            made = WindowFile.of(window, addresses)
            made.signed(keys).save(partial / WINDOW)
            shutil.copyfile(self.folder / ROLL, partial / ROLL)
            keep_window(self.folder, made)
        longest = report_bytes(window.dimension, max(task.norm_bounds.values()))
        print(
            f"{window.enrolled} users, sums of {window.minimum} and more, {longest} bytes a report"
        )
        print(f"hand {self.out} to every aggregator, {self.out / WINDOW} to every user")
        return self.out


federation_window = function("federation_window", MakeWindow)


@dataclass(frozen=True)
class Collect:
    """Operator: close the window, open the sum, write the model."""

    folder: Path
    """Folder of `init`."""
    window: Path
    """The folder that `federation window` has made."""
    out: Path
    """Directory of the model."""
    ledger: Path | None = None
    """File that counts what is given away; in the operator's folder if left out; `none`."""
    ca: Path | None = None
    """Certificates of the authorities of the aggregators, where they have TLS."""
    patience: float = 600.0
    """Seconds to wait for an aggregator that does not answer; after that, collect again."""
    status: bool = False
    """Only say how many reports each aggregator holds; nothing is closed."""
    wait: bool = False
    """Wait until all users' reports are decided, or the window's time is over."""

    def run(self) -> None:
        """Opens the sum and writes the model, or says how many reports there are.

        It closes for good, unless there are too few reports: then the window goes on. Called again
        after a kill, the same sum is opened again.

        Raises:
            ValueError: files that do not fit, or fewer reports than the minimum.
            OSError: an aggregator is gone, or the model cannot be written.
        """
        check.within("[0, inf)", patience=self.patience)
        check.installed("httpx", "to collect", extra="federation")
        from train_distributed.federation.aggregator_client import Aggregators

        folder = self.folder.resolve()
        federation = with_roll(Federation.load(folder / FEDERATION), folder)
        keys, file = own_keys(folder, federation), WindowFile.load(self.window / WINDOW)
        from train_distributed.federation.evaluation_task import task_of
        from train_distributed.federation.sum_task import Facts

        task = task_of(federation, folder / agreed_file(federation.task))
        window = agreed(file.window, task)
        tls, entry = authorities(self.ca), None
        if not self.status:
            refuse_existing(self.out, overwrite=None)
            entry = NextSum.of(self.ledger, folder, task)
        with Aggregators(window, file.addresses, tls, self.patience) as aggregators:
            if self.wait and not self.status:
                _wait(aggregators, window, keys)
            for aggregator, words in aggregators.status(keys).items():
                print(f"aggregator {aggregator - FIRST_SERVER}: {words}")
            if entry is None:
                return
            with new_directory(self.out) as partial:
                entry.reserve()
                opened = aggregators.open(keys)
                keep_opened(folder, window)
                missing = dict.fromkeys(set(window.users) - opened.users, "report")
                sent = report_bytes(window.dimension, max(task.norm_bounds.values()))
                facts = Facts(session=window.digest.hex(), bytes_per_user=sent, missing=missing)
                released = task.released(opened, facts).with_report(ledger=entry.report())
                released.write(partial)
            entry.spend()
        for reason in released.report.get("unsuitable_because", ()):
            print(f"not suitable for release: {reason}")
        print(f"{len(opened.users)} of {window.enrolled} users in {self.out}")


federation_collect = function("federation_collect", Collect)


def _wait(aggregators: "Aggregators", window: Window, keys: PrivateKeys) -> None:
    """Returns once all users' reports are decided, or the window's time is over."""
    left, decided = window.closes - time.time(), aggregators.decided(keys)
    with Waiting("users' reports", _of(decided, window), most=left) as waiting:
        while decided < window.enrolled and time.time() < window.closes:
            time.sleep(LOOK_SECONDS)
            decided = aggregators.decided(keys)
            waiting.because(_of(decided, window))


def _of(decided: int, window: Window) -> str:
    return f"{decided} of {window.enrolled} are decided"
