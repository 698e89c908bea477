"""Command line: one dataclass per command, its checks, directories and printing."""
