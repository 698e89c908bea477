"""Many releases from one training: scenarios, plans, rehearsal on public data."""
