"""The other sides of the ratios: programs that do the same job without the sidecar."""
