"""A released model in use: predict, evaluate, export, and the card that states its promises."""

# Bounds of an evaluation's settings, read before the mathematics is loaded.
FINEST_GRID, COARSEST_GRID = 2.0**-20, 2.0**-8  # of confidences; the first where a sum has none
MOST_BINS = 50  # the coarsest grid is at most a fifth of a bin
