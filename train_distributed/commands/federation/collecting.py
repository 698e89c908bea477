"""`federation window` and `federation collect`: the operator's side of a window."""

import secrets
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain import check
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.waiting import Waiting
from pretrain.public import function
from train_distributed.commands.federation.hosting import NextSum, own_keys, say_use
from train_distributed.commands.federation.reporting import agreed
from train_distributed.commands.federation.setup import INVITATION, say_next
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import FEDERATION, Invitation
from train_distributed.federation.documents.place import ROLL, with_roll
from train_distributed.federation.documents.terms import agreed_file
from train_distributed.federation.documents.window_file import (
    WINDOW,
    WindowFile,
    keep_opened,
    keep_window,
    split_address,
)
from train_distributed.secure_sum.aggregator import read_centre
from train_distributed.secure_sum.keys import FIRST_SERVER, KEY_BYTES, PrivateKeys
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
    passphrase_file: Path | None = None
    """File with the passphrase of the keys in FOLDER (default: asked for if they have one)."""

    def run(self) -> Path:
        """Writes and returns the folder, whole or not at all.

        Raises:
            ValueError: no operator's folder, or a setting that does not fit.
        """
        from train_distributed.federation.evaluation_task import task_of

        federation = with_roll(Federation.load(self.folder / FEDERATION), self.folder)
        keys = own_keys(self.folder, federation, self.passphrase_file)
        check.within("(0, 100000)", hours=self.hours)
        now = time.time()
        opens, closes = int(now), int(now + 3600 * self.hours) + 1
        task = task_of(federation, self.folder / agreed_file(federation.task))
        window = task.window(secrets.token_bytes(KEY_BYTES), opens, closes)
        check.equal(len(window.servers), aggregators=len(self.aggregators))
        addresses = dict(enumerate(map(split_address, self.aggregators), FIRST_SERVER))
        with new_directory(self.out) as folder:
            made = WindowFile.of(window, addresses)
            made.signed(keys).save(folder / WINDOW)
            shutil.copyfile(self.folder / ROLL, folder / ROLL)
            if federation.certificates:
                shutil.copyfile(self.folder / INVITATION / AGREED, folder / AGREED)
            keep_window(self.folder, made)
        sums = "two reports" if window.second else "one report"
        print(
            f"{window.enrolled} users, sums of {window.minimum} and more, {sums} a user of "
            f"{task.bytes_of_reports} bytes"
        )
        print(f"hand {self.out} to every aggregator, {self.out / WINDOW} to every user")
        say_next("each server", "federation aggregator --folder FOLDER --window {}", self.out)
        report = "federation report --folder FOLDER --invitation INVITATION --window {}"
        say_next("each user", report, WINDOW)
        collect = "federation collect --folder {} --window {} --out model --wait"
        say_next("yourself", collect, self.folder, self.out)
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
    """Ledger that counts the epsilon spent, or `none` (default: in the operator's folder)."""
    patience: float = 600.0
    """Seconds to wait for an aggregator that does not answer; after that, collect again."""
    status: bool = False
    """Only say how many reports each aggregator holds; nothing is closed."""
    wait: bool = False
    """Wait until all users' reports are decided, or the window's time is over; of the first of two
    sums, until half of its time is."""
    passphrase_file: Path | None = None
    """File with the passphrase of the keys in FOLDER (default: asked for if they have one)."""

    def run(self) -> None:
        """Opens the sum and writes the model, or says how many reports there are.

        It closes for good, unless there are too few reports: then the window goes on. Called again
        after a kill, the same sum is opened again. Of two sums the first one is opened and its
        centre published; with `wait`, or called again, the second one is opened, too.

        Raises:
            ValueError: files that do not fit, or fewer reports than the minimum.
            OSError: an aggregator is gone, or the model cannot be written.
        """
        check.within("[0, inf)", patience=self.patience)
        check.installed("httpx", "to collect", extra="federation")
        from train_distributed.federation.aggregator_client import Aggregators

        folder = self.folder.resolve()
        federation = with_roll(Federation.load(folder / FEDERATION), folder)
        keys = own_keys(folder, federation, self.passphrase_file)
        file = WindowFile.load(self.window / WINDOW)
        from train_distributed.federation.evaluation_task import task_of
        from train_distributed.federation.model_task import ModelTask
        from train_distributed.federation.sum_task import SessionFacts

        task = task_of(federation, folder / agreed_file(federation.task))
        window = agreed(file.window, task)
        tls = trust(Invitation.read(folder / INVITATION).certificates)
        entry = None
        if not self.status:
            refuse_existing(self.out, overwrite=None)
            entry = NextSum.of(self.ledger, folder, task)
        lines = partial(Aggregators, addresses=file.addresses, tls=tls, patience=self.patience)
        with lines(window) as first, ExitStack() as stack:
            order = first.published() if window.second else b""
            if entry is not None and window.second and not order:
                if self.wait:
                    _wait(first, window, keys, (window.opens + window.closes) // 2)
                entry.reserve()
                opened = first.open(keys)
                assert isinstance(task, ModelTask)
                first.publish(task.publish(opened), keys)
                print(
                    f"the first sum is of {len(opened.users)} of {window.enrolled} users, and its "
                    "centre is published: users report once more, to the second sum"
                )
                if not self.wait:
                    return print("collect again when they have")
                order = first.published()
            sums, now = [first], window
            if order:
                centre = read_centre(window, order)
                first.publish(centre, keys)  # killed before, one aggregator may not have it
                now = window.at(centre)
                sums.append(stack.enter_context(lines(now)))
            if entry is not None and self.wait:
                _wait(sums[-1], now, keys, now.closes)
            for aggregator, words in sums[-1].status(keys).items():
                name = f"aggregator {aggregator - FIRST_SERVER}{', second sum' if order else ''}"
                print(f"{name}: {words}")
            if entry is None:
                return None
            with new_directory(self.out) as made:
                entry.reserve()
                opened = [each.open(keys) for each in sums]
                keep_opened(folder, window)
                missing = dict.fromkeys(set(window.users) - opened[-1].users, "report")
                sent, session = task.bytes_of_reports, window.digest.hex()
                facts = SessionFacts(session=session, bytes_per_user=sent, missing=missing)
                released = task.released(*opened, facts=facts)
                released = released.with_report(ledger=entry.report())
                released.write(made)
            entry.spend()
        for reason in released.report.get("unsuitable_because", ()):
            print(f"not suitable for release: {reason}")
        print(f"{len(opened[-1].users)} of {window.enrolled} users in {self.out}")
        say_use(task, self.out)


federation_collect = function("federation_collect", Collect)


def _wait(aggregators: "Aggregators", window: Window, keys: PrivateKeys, until: int) -> None:
    """Returns once all users' reports are decided, or it is `until` seconds after 1970."""
    left, decided = until - time.time(), aggregators.decided(keys)
    with Waiting("users' reports", _of(decided, window), most=left) as waiting:
        while decided < window.enrolled and time.time() < until:
            time.sleep(LOOK_SECONDS)
            decided = aggregators.decided(keys)
            waiting.because(_of(decided, window))


def _of(decided: int, window: Window) -> str:
    return f"{decided} of {window.enrolled} are decided"
