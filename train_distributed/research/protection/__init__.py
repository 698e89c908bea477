"""Choice of a protection: leakage, cost, and the parameter that suffices.

`closed_forms` solves the formulas of Zhang et al. 2024 and labels their worth; `mechanisms`
and `exact_sums` protect real messages; `inversion` attacks them; `estimate` turns attacks into C1,
C2 and measured leakage; `recommend` and `study` put them together.
"""
