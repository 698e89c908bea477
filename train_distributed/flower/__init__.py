"""A real federation: the secure sum's messages over Flower, with TLS and node authentication."""
