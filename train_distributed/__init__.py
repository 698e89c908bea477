"""All users: partition, accounting, noise, one secure sum, release."""

from typing import TYPE_CHECKING

from pretrain.public import public_names

if TYPE_CHECKING:
    from train_distributed import accounting, partition
    from train_distributed.commands.functions import (
        account,
        audit,
        card,
        collect_window,
        demo,
        evaluate,
        export,
        fit_head,
        init_federation,
        join_federation,
        limit_epsilon,
        make_window,
        merge_ledgers,
        plot_sweep,
        predict,
        protect,
        rehearse,
        renew_federation,
        report_to_window,
        reserve_epsilon,
        rival,
        run,
        run_aggregator,
        serve_invitation,
        show_federation,
        show_ledger,
        simulate,
        spend_epsilon,
        start_federation,
        sweep,
    )
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.release import release
    from train_distributed.privacy.promise import Privacy
    from train_distributed.released.classifier import PrivateClassifier

    __version__: str

__all__ = [
    "Privacy",
    "PrivateClassifier",
    "Release",
    "account",
    "accounting",
    "audit",
    "card",
    "collect_window",
    "demo",
    "evaluate",
    "export",
    "fit_head",
    "init_federation",
    "join_federation",
    "limit_epsilon",
    "make_window",
    "merge_ledgers",
    "partition",
    "plot_sweep",
    "predict",
    "protect",
    "rehearse",
    "release",
    "renew_federation",
    "report_to_window",
    "reserve_epsilon",
    "rival",
    "run",
    "run_aggregator",
    "serve_invitation",
    "show_federation",
    "show_ledger",
    "simulate",
    "spend_epsilon",
    "start_federation",
    "sweep",
]

if not TYPE_CHECKING:
    _HOMES = {
        "Privacy": "privacy.promise",
        "PrivateClassifier": "released.classifier",
        "Release": "one_shot.model",
        "accounting": "accounting",
        "partition": "partition",
        "release": "one_shot.release",
    }
    __getattr__, __dir__ = public_names(
        __name__, {name: _HOMES.get(name, "commands.functions") for name in __all__}
    )
