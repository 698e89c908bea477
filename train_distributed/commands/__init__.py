"""Commands as functions; the stub beside this file is the table that the menu is made of too."""

from pretrain.public import attach, stub_names

COMMANDS = stub_names(__name__)  # function -> `module:name`, in the order of the help
GROUPS = {
    "rival": "Methods that ours are compared with, each with options of its own.",
    "ledger": "What is spent on private rows: show it, reserve, note as spent, limit, merge.",
    "federation": "A federation of real parties: keys, set-up, sessions, state.",
}
__getattr__, __dir__, __all__ = attach(__name__, COMMANDS)
