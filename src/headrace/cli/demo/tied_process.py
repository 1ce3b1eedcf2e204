"""The `headrace` command in a process that ends with its input: a demo that is killed must leave no nodes behind.

python -m headrace.cli.demo.tied_process node run …
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from headrace.cli.main import main

__all__ = ["end_with_input"]


def end_with_input() -> None:
    """Ask this process to stop when whoever holds the other end of its input is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="headrace-demo-input", daemon=True).start()


if __name__ == "__main__":
    end_with_input()
    main()
