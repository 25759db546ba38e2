"""The caller: asks a sidecar to run tools."""
