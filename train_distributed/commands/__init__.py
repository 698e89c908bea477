"""What a user types: one dataclass per command, its checks, directories and printing."""
