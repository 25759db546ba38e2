"""`python -m sidecar`: the program `pillion`, where it is not installed."""

import sys

from sidecar.cli import main

if __name__ == "__main__":
    sys.exit(main())
