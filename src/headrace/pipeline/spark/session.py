"""The one place that builds a Spark session."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import resources
from typing import TYPE_CHECKING

from headrace.config import PipelineSettings
from headrace.errors import MissingExtra
from headrace.pipeline.spark.homes import compiled_home
from headrace.pipeline.spark.redaction import SECRET_NAMES, is_secret
from headrace.services import Quiet, Watcher, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_LOOPBACK = "127.0.0.1"

_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",  # two attempts of a task would write at the same time
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.streaming.noDataProgressEventInterval": "2000",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "headrace.pipeline.spark.worker_daemon",
    "spark.python.authenticate.socketTimeout": "60s",  # a worker on a busy machine takes its time
    "spark.redaction.regex": SECRET_NAMES,
    "spark.sql.redaction.options.regex": SECRET_NAMES,
}


def spark_session(
    settings: PipelineSettings | None = None,
    *,
    name: str = "headrace",
    watcher: Watcher | None = None,
    is_brief: bool = False,
) -> SparkSession:
    """Return the session of this process, started if there is none. `is_brief` is for little work, as in tests.

    Inside spark-submit the master, jars and resources stay as they were submitted; what the jobs stand on (time zone,
    no speculation, Arrow, …) is set in any case, and `pipeline.spark` wins over both. Jars are fetched once, checked by
    SHA-256, and kept.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("pyspark", "pipeline") from error
    settings = settings or PipelineSettings()
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    # It logs every call with its arguments, and some of those are secret.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    is_submitted = "SPARK_ENV_LOADED" in os.environ
    config = {**_SESSION, **({} if is_submitted else _local(settings, watcher, is_brief=is_brief)), **settings.spark}
    if not is_submitted:
        with compiled_home() if settings.master.startswith("local") else nullcontext():
            _launch(config)
    builder = SparkSession.builder.appName(name)
    for key, value in config.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _launch(config: Mapping[str, str]) -> None:
    """Start the JVM. Properties go on its command line, for all to see; so those that are secret come later."""
    from pyspark import SparkConf, SparkContext

    public = [(key, value) for key, value in config.items() if not is_secret(key)]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(public))  # noqa: SLF001 - no public way


def _local(settings: PipelineSettings, watcher: Watcher | None, *, is_brief: bool) -> dict[str, str]:
    """Return what a session that we start ourselves needs; a submitted one has it from its command line."""
    jars = spark_jars(watcher or Quiet())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the property alone is not heard when sources are planned
    config = {
        "spark.master": settings.master,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": _java_options(is_brief=is_brief),
        "spark.ui.enabled": str(settings.ui).lower(),
    }
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        config |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return config


def _java_options(*, is_brief: bool) -> str:
    """Return options that keep the JVM quiet: people came to see their data.

    Its second compiler costs more in the first minute than it brings.
    """
    quiet = resources.files(__package__).joinpath("log4j2.properties")
    return f"-Dlog4j2.configurationFile={quiet} -XX:+UseParallelGC -XX:TieredStopAtLevel={1 if is_brief else 4}"
