"""A released model in use: predict, evaluate, export, and the card that states its promises."""
