"""Privacy spent on a set of rows: reservation before noise, entries, totals."""
