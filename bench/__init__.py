"""Measures the sidecar against bare gRPC and against an MCP server, side by side on one machine."""
