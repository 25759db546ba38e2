"""Where tools live."""
