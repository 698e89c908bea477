"""The commands of this room as functions, and that of the heads."""

from pathlib import Path
from typing import Any

from heads.__main__ import Fit
from pretrain.public import function
from train_distributed.commands import federation, ledger
from train_distributed.commands.account import Account
from train_distributed.commands.audit import Audit
from train_distributed.commands.card import Card
from train_distributed.commands.demo import Demo
from train_distributed.commands.evaluate import Evaluate
from train_distributed.commands.export import Export
from train_distributed.commands.federation.aggregating import Aggregate, Invite
from train_distributed.commands.federation.collecting import Collect, MakeWindow
from train_distributed.commands.federation.reporting import Report
from train_distributed.commands.predict import Predict
from train_distributed.commands.protect import Protect
from train_distributed.commands.rehearse import Rehearse
from train_distributed.commands.releasing import Run, Simulate
from train_distributed.commands.rivals import command_of
from train_distributed.commands.sweep import Plot, Sweep

account = function("account", Account)
audit = function("audit", Audit)
card = function("card", Card)
demo = function("demo", Demo)
evaluate = function("evaluate", Evaluate)
export = function("export", Export)
fit_head = function("fit_head", Fit)
plot_sweep = function("plot_sweep", Plot)
predict = function("predict", Predict)
protect = function("protect", Protect)
rehearse = function("rehearse", Rehearse)
run = function("run", Run)
simulate = function("simulate", Simulate)


def rival(name: str, **options: Any) -> Path:
    """Runs a method that ours are compared with, such as "dp-fl"; returns what it wrote.

    Args:
        name: of the rival.
        **options: those of `rival NAME --help`, `embeddings` and `public` at least.

    Raises:
        TypeError: an option that is missing or unknown.
        ValueError: another name, or a setting out of range.
    """
    return function("rival", command_of(name))(**options)


sweep = function("sweep", Sweep)

show_ledger = function("show_ledger", ledger.Show)
reserve_epsilon = function("reserve_epsilon", ledger.Reserve)
spend_epsilon = function("spend_epsilon", ledger.Spend)
limit_epsilon = function("limit_epsilon", ledger.SetLimit)
merge_ledgers = function("merge_ledgers", ledger.Merge)

join_federation = function("join_federation", federation.Join)
init_federation = function("init_federation", federation.Init)
serve_invitation = function("serve_invitation", Invite)
start_federation = function("start_federation", federation.Start)
show_federation = function("show_federation", federation.Status)
renew_federation = function("renew_federation", federation.Renew)
make_window = function("make_window", MakeWindow)
run_aggregator = function("run_aggregator", Aggregate)
report_to_window = function("report_to_window", Report)
collect_window = function("collect_window", Collect)
