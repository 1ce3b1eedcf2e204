"""The `headrace` command.

Promises: whatever goes wrong on purpose is one message, without a traceback, and an exit code above 0; results go
to stdout, all else to stderr.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command. Importing it takes half a second, and an interrupt in that time is no traceback either."""
    try:
        from headrace.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
