"""Spark's daemon of Python workers, with all that they import in it before it forks them.

Spark's own daemon forks first and lets each worker import for itself, because libraries may start threads, which a fork
leaves behind. Every query begins with workers of its own, so that would be a second and more each time. What is
imported here has only threads that outlive a fork by themselves (jemalloc's); drivers come after the fork as before.
"""

from __future__ import annotations

import importlib
import os
import sys

__all__: list[str] = []

# What plans sources, and what tasks run: neither opens anything when it is imported.
_MODULES = (
    "pyarrow",
    "pandas",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.pandas.types",
    "pyspark.sql.worker.plan_data_source_read",
    "headrace.pipeline.logs.source",
    "headrace.pipeline.replication.task",
)


def _preload(worker: str) -> None:
    # It would start a thread for each further core as soon as it is imported; Spark's tasks have a core each.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    for module in (worker, *_MODULES):
        importlib.import_module(module)


if __name__ == "__main__":
    from pyspark.daemon import manager

    _preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    manager()
