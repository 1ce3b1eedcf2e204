"""What commands on Spark share: the session, with or without the JVM's own lines, and options that select topics."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import IO, TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console

from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, MissingExtra
from headrace.pipeline import (
    Endpoints,
    Selection,
    close_all,
    end_session,
    log_of,
    query_error,
    run,
    spark_session,
    store_of,
)
from headrace.services import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Prefix", "Topics", "quiet_jvm", "quiet_spark_for", "selection_of", "spark_for"]

Topics: TypeAlias = Annotated[
    str | None, typer.Option("--topics", help="Topics, joined by commas. Default: all that hold journals.")
]
Prefix: TypeAlias = Annotated[str | None, typer.Option("--prefix", help="All topics whose names have this prefix.")]

_STDERR = 2


def selection_of(topics: str | None, prefix: str | None) -> Selection:
    """Return what the options select."""
    if topics is not None and prefix is not None:
        raise BadArgument("--prefix", prefix, "give --topics or --prefix, not both")
    return Selection(tuple(name.strip() for name in (topics or "").split(",") if name.strip()), prefix)


@contextmanager
def spark_for(endpoints: Endpoints, settings: HeadraceSettings, *, name: str = "headrace") -> Iterator[SparkSession]:
    """Yield a Spark session for a command. A session that was there before stays open.

    Log and store are checked first: a wrong address fails within seconds, and a session takes ten to start. A failure
    of Spark is raised as OperationFailed, with one line of its text; --verbose shows the tracebacks of the JVM.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("pyspark", "pipeline") from error
    run(_ask(endpoints))
    is_own = SparkSession.getActiveSession() is None
    with _in_one_line(name), _without_traces_of_interrupts():
        watcher = Terminal(Console(stderr=True))
        with _noting_interrupts() as has_come:
            spark = spark_session(settings.pipeline, name=name, watcher=watcher, endpoints=endpoints)
            is_interrupted = has_come()
        try:
            if is_interrupted:
                raise KeyboardInterrupt  # what starts Spark has swallowed it
            if is_own and not _is_verbose():
                spark.sparkContext.setLogLevel("OFF")  # the errors that commands print say what failed
                _hide_hang_ups(spark)
            with _in_one_line(name):  # here already: the text of a Java exception is asked of the JVM, which ends next
                yield spark
        finally:
            if is_own:
                close_all()
                end_session(spark)


def _hide_hang_ups(spark: SparkSession) -> None:
    """Let pyspark's server of accumulators print no traceback when the JVM is killed and its connection breaks."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


@contextmanager
def _noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True if Ctrl-C came within the block, whoever handles or swallows it.

    Spark sets a handler of its own while it starts, so that another handler would not see all of them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    noted, notes = socket.socketpair()
    with noted, notes:
        noted.setblocking(False)
        notes.setblocking(False)
        before = signal.set_wakeup_fd(notes.fileno(), warn_on_full_buffer=False)
        try:
            yield partial(_has_come, noted)
        finally:
            signal.set_wakeup_fd(before)


def _has_come(noted: socket.socket) -> bool:
    try:
        return signal.SIGINT in noted.recv(4096)
    except BlockingIOError:
        return False


# What py4j logs, with tracebacks, when Ctrl-C breaks off a call; what failed is raised, too.
_BROKEN_OFF = frozenset(
    {
        "KeyboardInterrupt while sending command.",
        "Exception while sending command.",
        "Exception occurred while shutting down connection",
    }
)


@contextmanager
def _without_traces_of_interrupts() -> Iterator[None]:
    """Drop the tracebacks that py4j logs if Ctrl-C comes while Spark works, unless tracebacks are wanted."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.msg not in _BROKEN_OFF or _is_verbose()

    loggers = [logging.getLogger(), logging.getLogger("py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(is_wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)


@contextmanager
def _in_one_line(name: str) -> Iterator[None]:
    """Raise failures of Spark with a message of one line, unless tracebacks are wanted."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, ConnectionError) as error:
        if _is_verbose():
            raise
        raise query_error(error, f"{name} on Spark", outcome_known=False) from error


def _is_verbose() -> bool:
    return logging.getLogger("headrace").isEnabledFor(logging.DEBUG)


async def _ask(endpoints: Endpoints) -> None:
    """Check that log and store answer. Raises their errors."""
    await (await log_of(endpoints)).admin.topics()
    await (await store_of(endpoints)).settings.all("topic/")


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
