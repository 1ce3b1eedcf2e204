"""A start of Spark without the JVM's own lines on the screen."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

__all__ = ["quiet_jvm"]

_STDERR = 2


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """Send the standard error of all processes that start within the block to a file, for as long as they live.

    What Python itself writes there is still shown. If the block fails, so is what the processes wrote, because it may
    say why.
    """
    with tempfile.TemporaryFile() as lines:
        screen, python = os.dup(_STDERR), sys.stderr
        own = os.fdopen(os.dup(screen), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        try:
            if _is_screen(python):
                sys.stderr = own
            os.dup2(lines.fileno(), _STDERR)
            try:
                yield
            except BaseException:
                _show(lines, screen)
                raise
        finally:
            os.dup2(screen, _STDERR)
            sys.stderr = python
            own.close()
            os.close(screen)


def _is_screen(stream: IO[str]) -> bool:
    try:
        return stream.fileno() == _STDERR
    except OSError:  # it is not a file, as in tests that capture it
        return False


def _show(lines: IO[bytes], screen: int) -> None:
    lines.seek(0)
    os.write(screen, lines.read())
