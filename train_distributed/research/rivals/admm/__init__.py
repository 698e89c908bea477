"""Decentralised learning without a server, private in every iteration."""
