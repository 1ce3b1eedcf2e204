"""Spark's daemon of Python workers, which imports what workers need before it forks them.

Spark uses it for the workers of tasks only; those that plan come from Spark's own daemon, so they must
import little. That daemon forks first and lets each worker import, because libraries may start threads, which a
fork does not copy. Every query starts new workers, so the imports would cost more than a second each time. The modules
imported here have only threads that survive a fork (jemalloc's). Drivers are still imported after the fork.

Where a module can't be imported, workers start as those of Spark's own daemon do, and import what they need.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

__all__: list[str] = []

# None of these modules opens anything when it is imported.
_MODULES = (
    "pyspark.worker",
    "pyarrow",
    "pandas",
    "pyspark.sql.pandas.types",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.worker.plan_data_source_read",
    "headrace.pipeline.replication.sink",
    "headrace.pipeline.replication.task",
    "headrace.pipeline.logs.source",
    "headrace.journal",
)


def _preload() -> None:
    # OpenBLAS would start a thread for each further core when it is imported; each Spark task has one core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    # Spark reads the daemon's port from its stdout: nothing that a module prints may come before it.
    with contextlib.redirect_stdout(sys.stderr):
        for module in _MODULES:
            try:
                importlib.import_module(module)
            except Exception as error:  # whatever a module does when it is imported
                print(f"headrace: Spark's workers import {module} themselves: {error!r}", file=sys.stderr)


if __name__ == "__main__":
    from pyspark.daemon import manager

    _preload()
    manager()
