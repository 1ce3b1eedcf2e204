"""The Spark session of a command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from headrace.config import HeadraceSettings
from headrace.errors import MissingExtra
from headrace.pipeline import Endpoints, close_all, end_session, log_of, query_error, run, spark_session, store_of
from headrace.services import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_for"]


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
    with _in_one_line(name):
        spark = spark_session(settings.pipeline, name=name, watcher=Terminal(Console(stderr=True)), endpoints=endpoints)
        try:
            if is_own and not _is_verbose():
                spark.sparkContext.setLogLevel("OFF")  # the errors that commands print say what failed
            yield spark
        finally:
            if is_own:
                close_all()
                end_session(spark)


@contextmanager
def _in_one_line(name: str) -> Iterator[None]:
    """Raise failures of Spark with a message of one line, unless tracebacks are wanted."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        if _is_verbose():
            raise
        raise query_error(error, f"{name} on Spark", outcome_known=False) from error


def _is_verbose() -> bool:
    return logging.getLogger("headrace").isEnabledFor(logging.DEBUG)


async def _ask(endpoints: Endpoints) -> None:
    """Check that log and store answer. Raises their errors."""
    await (await log_of(endpoints)).admin.topics()
    await (await store_of(endpoints)).settings.all("topic/")
