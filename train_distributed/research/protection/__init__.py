"""Choosing a protection: what leaks, what it costs, which parameter suffices.

`closed_forms` solves the formulas of Zhang et al. 2024 and says what they are worth; `mechanisms`
and `exact_sums` protect real messages; `inversion` attacks them; `estimate` turns attacks into C1,
C2 and measured leakage; `recommend` and `study` put them together.
"""
