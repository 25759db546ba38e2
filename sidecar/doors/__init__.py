"""Ways in. Thin: the rules of a call are elsewhere."""
