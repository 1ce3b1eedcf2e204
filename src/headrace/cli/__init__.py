"""The `headrace` command.

Promises: whatever goes wrong on purpose is one message, without a traceback, and an exit code above 0; results go
to stdout, all else to stderr.
"""

from headrace.cli.main import app, main

__all__ = ["app", "main"]
