"""Spark's daemon of Python workers, which imports what workers need before it forks them.

Spark's own daemon forks first and lets each worker import, because libraries may start threads, which a fork does not
copy. Every query starts new workers, so the imports would cost more than a second each time. The modules imported here
have only threads that survive a fork (jemalloc's). Drivers are still imported after the fork.

Where a module can't be imported, workers start as those of Spark's own daemon do, and import what they need.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

__all__: list[str] = []

# None of these modules opens anything when it is imported. Spark starts a daemon for each kind of worker: one for
# tasks, and six that plan sources and sinks, which need no pandas. It is a third of the time of the imports. Those that
# only start and commit a sink need next to nothing, and a query waits for them.
_OF_SINKS = ("pyspark.sql.datasource_internal", "headrace.pipeline.replication.sink")
_OF_PLANS = (*_OF_SINKS, "headrace.pipeline.logs.source", "headrace.journal")
_SINKS = (
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.python_streaming_sink_runner",
)
_OF_TASKS = (
    "pyarrow",
    "pandas",
    "pyspark.sql.pandas.types",
    "pyspark.sql.worker.plan_data_source_read",
    "headrace.pipeline.replication.task",
)
_TASKS = "pyspark.worker"


def _preload(worker: str) -> None:
    # OpenBLAS would start a thread for each further core when it is imported; each Spark task has one core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    # Spark reads the daemon's port from its stdout: nothing that a module prints may come before it.
    with contextlib.redirect_stdout(sys.stderr):
        for module in (worker, *_wanted(worker)):
            try:
                importlib.import_module(module)
            except Exception as error:  # whatever a module does when it is imported
                print(f"headrace: Spark's workers import {module} themselves: {error!r}", file=sys.stderr)


def _wanted(worker: str) -> tuple[str, ...]:
    if worker in _SINKS:
        return _OF_SINKS
    return (*_OF_TASKS, *_OF_PLANS) if worker == _TASKS else _OF_PLANS


if __name__ == "__main__":
    from pyspark.daemon import manager

    _preload(sys.argv[1] if len(sys.argv) > 1 else _TASKS)
    manager()
