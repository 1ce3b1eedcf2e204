"""Spark sessions of commands without the JVM's own lines on the screen."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import IO, TYPE_CHECKING

from headrace.cli.spark_sessions import spark_for
from headrace.config import HeadraceSettings
from headrace.pipeline import Endpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["quiet_jvm", "quiet_spark_for"]

_STDERR = 2


@contextmanager
def quiet_spark_for(endpoints: Endpoints, settings: HeadraceSettings, *, name: str) -> Iterator[SparkSession]:
    """Yield a Spark session for a command; its JVM prints nothing, unless the command is verbose."""
    is_verbose = logging.getLogger().isEnabledFor(logging.DEBUG)
    with ExitStack() as stack:
        with nullcontext() if is_verbose else quiet_jvm():
            spark = stack.enter_context(spark_for(endpoints, settings, name=name))
        yield spark


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
