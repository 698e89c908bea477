"""Proofs that a secret-shared vector of integers has a bounded L2 norm (PINE).

`field` and `transforms` compute in Field64, `streams` expands seeds, `circuits` states what is
proved, `linear_proof` proves it to verifiers that each hold a share, and `pine` puts it together:
`shard` at the user, `prepare_*` and `aggregate` at the two aggregators.
"""
