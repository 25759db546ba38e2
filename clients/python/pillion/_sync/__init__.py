"""The synchronous face of the caller."""
