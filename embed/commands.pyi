# The order is that of the help.
# isort: skip_file
from embed.run import run as run
from embed.concat import concat as concat
from embed.run import exclude as exclude
from embed.hold_out import hold_out as hold_out
from embed.run import fit_transform as fit_transform

COMMANDS: dict[str, str]
__all__: list[str]
