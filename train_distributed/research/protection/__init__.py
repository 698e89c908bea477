"""Choice of a protection: leakage, cost, and the parameter that suffices.

`mechanisms` protect real messages; `inversion` attacks them; `leakage` solves the formulas of
Zhang et al. 2024, labels their worth, and turns attacks into C1, C2 and measured leakage; `study`
measures and recommends.
"""
