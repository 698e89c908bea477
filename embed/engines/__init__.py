"""What runs an encoder: torch, or a program compiled from it for one shape of input."""
