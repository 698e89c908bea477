"""Engines that run an encoder: torch, or a program compiled for one shape of input."""
