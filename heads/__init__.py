"""One user's mathematics: heads, their sensitivities, solvers and statistics."""
