"""Spark's daemon of Python workers, which imports what workers need before it forks them.

Spark's own daemon forks first and lets each worker import, because libraries may start threads, which a fork does not
copy. Every query starts new workers, so the imports would cost more than a second each time. The modules imported here
have only threads that survive a fork (jemalloc's). Drivers are still imported after the fork.
"""

from __future__ import annotations

import importlib
import os
import sys

__all__: list[str] = []

# Modules that plan sources and run tasks. None of them opens anything when it is imported.
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
    # OpenBLAS would start a thread for each further core when it is imported; each Spark task has one core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    for module in (worker, *_MODULES):
        importlib.import_module(module)


if __name__ == "__main__":
    from pyspark.daemon import manager

    _preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    manager()
