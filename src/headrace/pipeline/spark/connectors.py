"""Spark's own connectors in any session: the jars of Kafka's source and of Avro's functions are added where they lack.

`spark_session` starts Spark with them. A session that other code has started gets them at run time: a classic one
by ADD JAR, one of Spark Connect as artifacts of the client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import BadArgument
from headrace.pipeline.spark.endpoints import SECRET_NAMES
from headrace.services import Quiet, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_connect", "provide_avro", "provide_kafka", "refuse_connect", "refuse_speculation"]

_AVRO = "org.apache.spark.sql.avro.AvroDataToCatalyst"
_KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_SENT = "headrace.connectors"
_REDACTED = "spark.sql.redaction.options.regex"

_lock = threading.Lock()


def is_connect(spark: SparkSession) -> bool:
    """Return True if the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: SparkSession, what: str, instead: str) -> None:
    """Raise BadArgument if the session is one of Spark Connect."""
    if is_connect(spark):
        raise BadArgument("spark", "a session of Spark Connect", f"{what}; {instead}")


def refuse_speculation(spark: SparkSession, what: str) -> None:
    """Raise BadArgument if Spark may run two attempts of a task at once, both of which would write."""
    if spark.conf.get("spark.speculation", "false") == "true":
        rule = f"{what} needs a session without it: two attempts of a task would write at once; start another session"
        raise BadArgument("spark.speculation", "true", rule)


def provide_avro(spark: SparkSession) -> None:
    """Make sure that the session can read and write Avro. Raises FetchFailed if a jar is missing and can't be had."""
    if is_connect(spark):
        _send(spark, "avro", lambda: spark.sql("SELECT to_avro(1)").schema)
    else:
        _add(spark, _AVRO)


def provide_kafka(spark: SparkSession) -> None:
    """Make sure that the session can read Kafka. Raises FetchFailed if a jar is missing and can't be had.

    The options of the source hold secrets. Spark hides those that a property of the session names, and by default it
    names too few.
    """
    if "jaas" not in (hidden := spark.conf.get(_REDACTED, "")):
        spark.conf.set(_REDACTED, f"{SECRET_NAMES}|{hidden}" if hidden else SECRET_NAMES)
    if is_connect(spark):
        where = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}  # the schema needs no connection
        _send(spark, "kafka", lambda: spark.read.format("kafka").options(**where).load().schema)
    else:
        _add(spark, _KAFKA)


def _add(spark: SparkSession, name: str) -> None:
    """Add the jars unless a class of theirs is known in the calling thread.

    Spark keeps added jars for the application, and looks for classes with the loader of the thread that asks. ADD JAR
    sets the loader of its own thread only, so another thread adds the jars again, which is cheap.
    """
    with _lock:
        if not spark._jvm.org.apache.spark.util.Utils.classIsLoadable(name):  # noqa: SLF001 - no public way to ask
            for jar in spark_jars(Quiet()):
                spark.sql(f"ADD JAR {jar.as_uri()}")


def _send(spark: SparkSession, name: str, probe: Callable[[], object]) -> None:
    """Send the jars to the server unless it can analyse what needs them; a property of the session notes it."""
    from pyspark.errors import AnalysisException

    known = f"{_SENT}.{name}"
    with _lock:
        if spark.conf.get(known, None) is not None:
            return
        try:
            probe()
        except AnalysisException:
            spark.addArtifacts(*(str(jar) for jar in spark_jars(Quiet())))
        spark.conf.set(known, "provided")
