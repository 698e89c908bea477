"""A released model on one page: what it is, what it promises, how good it is, how to check it."""
