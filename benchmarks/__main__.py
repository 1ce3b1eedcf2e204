"""`python -m benchmarks`."""

import sys

from benchmarks.harness.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
