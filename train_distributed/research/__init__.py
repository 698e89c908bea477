"""What claims are tested with; only commands import it."""
