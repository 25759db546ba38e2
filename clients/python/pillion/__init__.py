"""Pillion for Python: callers and workers speak to the sidecar through the generated stubs in ``pillion._gen``."""
