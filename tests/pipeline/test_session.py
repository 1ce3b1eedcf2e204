"""The session's own settings: what workers are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_forked_with_everything_imported(spark: SparkSession) -> None:
    """K2: a worker runs the project's interpreter with its own pyspark, imported before the daemon forked it."""

    def look(_: int) -> tuple[str, str, str, bool]:
        import os

        parent = Path(f"/proc/{os.getppid()}")
        libraries = (parent / "maps").read_text()
        has_libraries = "pyarrow" in libraries and "msgspec" in libraries
        return sys.executable, pyspark.__file__, (parent / "cmdline").read_text(), has_libraries

    ((interpreter, package, daemon, has_libraries),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert interpreter == sys.executable
    assert package == pyspark.__file__  # and not one in a zip, which is compiled anew by each process
    assert "headrace.pipeline.spark.worker_daemon" in daemon
    assert has_libraries
