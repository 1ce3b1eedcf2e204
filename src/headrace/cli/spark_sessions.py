"""The Spark session of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from headrace.config import HeadraceSettings
from headrace.errors import MissingExtra
from headrace.pipeline import Endpoints, close_all, end_session, log_of, run, spark_session, store_of
from headrace.services import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_for"]


@contextmanager
def spark_for(endpoints: Endpoints, settings: HeadraceSettings, *, name: str = "headrace") -> Iterator[SparkSession]:
    """Give a session for the time of a command; one that was there before stays.

    Log and store are asked before it starts: a wrong address is known in seconds, and a session takes ten.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("pyspark", "pipeline") from error
    run(_ask(endpoints))
    is_own = SparkSession.getActiveSession() is None
    spark = spark_session(settings.pipeline, name=name, watcher=Terminal(Console(stderr=True)), endpoints=endpoints)
    try:
        yield spark
    finally:
        if is_own:
            close_all()
            end_session(spark)


async def _ask(endpoints: Endpoints) -> None:
    """Ask log and store something. Raises what is wrong with them."""
    await (await log_of(endpoints)).admin.topics()
    await (await store_of(endpoints)).settings.all("topic/")
