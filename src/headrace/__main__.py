"""The `headrace` command, also as `python -m headrace`.

Importing what a command needs takes a while, and an interrupt in that time is no traceback either.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command."""
    try:
        from headrace.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
