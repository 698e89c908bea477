"""`federation window` and `federation collect`: the operator's side of a window."""

import secrets
import time
from typing import TYPE_CHECKING

from pretrain.cli.output import new_directory
from train_distributed.commands.federation.hosting import NextSum, own_keys
from train_distributed.commands.federation.reporting import agreed, authorities
from train_distributed.flower.adder_client import Adders
from train_distributed.flower.documents.evaluation_terms import agreed_file
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.invitation import FEDERATION
from train_distributed.flower.documents.window_file import (
    ROLL,
    WINDOW,
    WindowFile,
    keep_opened,
    keep_window,
    roll_of,
    split_address,
    window_of,
)
from train_distributed.secure_sum.keys import KEY_BYTES
from train_distributed.secure_sum.reports import RECEIPT_BYTES, message_bytes
from train_distributed.secure_sum.session import FIRST_SERVER
from train_distributed.secure_sum.window import Window

if TYPE_CHECKING:
    from train_distributed.commands.federation.window import Collect, MakeWindow


def make_window(options: "MakeWindow") -> None:
    """Writes the folder to hand out.

    Raises:
        ValueError: no operator's folder, or a setting that does not fit.
    """
    federation = Federation.load(options.folder / FEDERATION)
    if not 0 < options.hours < 10**5:
        raise ValueError(f"hours must be > 0 and < 100000, got {options.hours}")
    now = time.time()
    opens, closes = int(now), int(now + 3600 * options.hours) + 1
    window = window_of(federation, secrets.token_bytes(KEY_BYTES), opens, closes)
    if len(options.adders) != len(window.servers):
        raise ValueError(f"adders must be {len(window.servers)}, got {len(options.adders)}")
    addresses = dict(enumerate(map(split_address, options.adders), FIRST_SERVER))
    with new_directory(options.out) as partial:
        made = WindowFile(window=window, addresses=addresses)
        made.save(partial / WINDOW)
        (partial / ROLL).write_bytes(roll_of(federation))
        keep_window(options.folder, made)
    print(
        f"{window.enrolled} users, sums of {window.minimum} and more, {window.bits} bits a number"
    )
    print(f"hand {options.out} to every adder, {options.out / WINDOW} to every user")


def collect(options: "Collect") -> None:
    """Opens the sum and writes the model, or says how many reports there are.

    The sum is opened once; called again after a kill, the same sum is opened again.

    Raises:
        ValueError: files that do not fit, or fewer reports than the minimum.
        OSError: an adder is gone, or the model cannot be written.
    """
    folder = options.folder.resolve()
    federation = Federation.load(folder / FEDERATION)
    keys, file = own_keys(folder, federation), WindowFile.load(options.window / WINDOW)
    window = agreed(file.window, federation)
    with Adders(window, file.addresses, authorities(options.ca), options.patience) as adders:
        for adder, words in adders.status(keys).items():
            print(f"adder {adder - FIRST_SERVER}: {words}")
        if options.status:
            return
        from train_distributed.flower.evaluation_task import task_of
        from train_distributed.flower.sum_task import Facts

        task = task_of(federation, folder / agreed_file(federation.task))
        entry = NextSum.of(options, folder, task)
        with new_directory(options.out) as partial:
            entry.reserve()
            opened = adders.open(keys)
            keep_opened(folder, window)
            missing = dict.fromkeys(set(window.users) - opened.users, "report")
            facts = Facts(
                session=window.digest.hex(), bytes_per_user=_sent_bytes(window), missing=missing
            )
            released = task.released(opened, facts)
            released.report["ledger"] = entry.report()
            released.write(partial)
        entry.spend()
    for reason in released.report.get("unsuitable_because", ()):
        print(f"not suitable for release: {reason}")
    print(f"{len(opened.users)} of {window.enrolled} users in {options.out}")


def _sent_bytes(window: Window) -> int:
    receipts = RECEIPT_BYTES * (len(window.servers) - 1)
    return receipts + sum(message_bytes(window, adder) for adder in window.servers)
