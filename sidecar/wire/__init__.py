"""Frames in batches over streams: the one idea of the wire. Knows no tool."""
