"""Pillion for Python."""
