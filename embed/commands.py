"""The commands of this room as functions; its stub is the table that the menu is made of too."""

from pretrain.public import attach, stub_names

COMMANDS = stub_names(__name__)
__getattr__, __dir__, __all__ = attach(__name__, COMMANDS)
