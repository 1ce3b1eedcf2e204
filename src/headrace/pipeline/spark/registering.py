"""Making a data source known to a session, once, from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["register"]

_lock = threading.Lock()
_known: set[tuple[str, str]] = set()


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a Python data source, unless the session knows it.

    The JVM looks for it in the session that is active in the calling thread, which Spark sets only in the thread
    that made the session; there is no public way to say so.
    """
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001
    known = (spark.sparkContext.applicationId, source.name())
    with _lock:
        if known not in _known:
            spark.dataSource.register(source)
            _known.add(known)
