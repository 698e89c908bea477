"""What releases have spent on a set of rows: reservation before noise, entries, totals."""
