"""Frames over gRPC streams: batches, lanes, back-off. Knows neither callers nor workers."""
