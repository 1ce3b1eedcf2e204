"""The `headrace` command, also as `python -m headrace`.

Importing what a command needs takes a while, and an interrupt in that time is no traceback either.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command."""
    try:
        from headrace.cli import main as run

        run()
    except BaseException as error:
        if not _was_interrupted(error):
            raise
        sys.exit(130)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return True if it is an interrupt, or its consequence: Python wraps those that come while a class is made."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


if __name__ == "__main__":
    main()
