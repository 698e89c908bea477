# The order is that of the help.
# isort: skip_file
from train_distributed.commands.rehearsing import demo as demo
from train_distributed.commands.releasing import run as run
from train_distributed.commands.releasing import simulate as simulate
from train_distributed.commands.comparing import rival as rival
from train_distributed.commands.using import predict as predict
from train_distributed.commands.using import evaluate as evaluate
from train_distributed.commands.exporting import export as export
from train_distributed.commands.exporting import card as card
from train_distributed.commands.comparing import sweep as sweep
from train_distributed.commands.comparing import plot as plot
from train_distributed.commands.rehearsing import rehearse as rehearse
from train_distributed.commands.counting import account as account
from train_distributed.commands.auditing import audit as audit
from train_distributed.commands.auditing import protect as protect
from train_distributed.commands.counting import ledger_show as ledger_show
from train_distributed.commands.counting import ledger_reserve as ledger_reserve
from train_distributed.commands.counting import ledger_spend as ledger_spend
from train_distributed.commands.counting import ledger_limit as ledger_limit
from train_distributed.commands.counting import ledger_merge as ledger_merge
from train_distributed.commands.federation import federation_join as federation_join
from train_distributed.commands.federation import federation_init as federation_init
from train_distributed.commands.federation import federation_start as federation_start
from train_distributed.commands.federation import federation_status as federation_status
from train_distributed.commands.federation.collecting import federation_window as federation_window
from train_distributed.commands.federation.aggregating import federation_invite as federation_invite
from train_distributed.commands.federation.aggregating import (
    federation_aggregator as federation_aggregator,
)
from train_distributed.commands.federation.reporting import federation_report as federation_report
from train_distributed.commands.federation.collecting import (
    federation_collect as federation_collect,
)

COMMANDS: dict[str, str]
__all__: list[str]
GROUPS: dict[str, str]
