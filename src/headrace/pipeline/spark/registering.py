"""Making a data source known to a session, once, from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["register"]

_lock = threading.Lock()

# Without it Spark refuses a source that takes filters, and it is off unless somebody turns it on.
_PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a Python data source, unless the session knows it, and set what it needs of the session.

    Spark keeps sources for each session, so the session itself remembers, in a property, which ones it knows.
    The JVM looks for a source in the session that is active in the calling thread, which Spark sets only in the thread
    that made the session; there is no public way to say so.
    """
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001
    known = f"headrace.source.{source.name()}"
    with _lock:
        if spark.conf.get(known, None) is None:
            spark.conf.set(_PUSH_DOWN, "true")
            spark.dataSource.register(source)
            spark.conf.set(known, "registered")
