"""Decentralised ADMM on the Adult data: its paper's experiment."""
