"""The session's own settings: what workers are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_forked_with_everything_imported(spark: SparkSession) -> None:
    """K2: a worker runs the project's interpreter, and its daemon has imported what tasks need before it forks."""

    def look(_: int) -> tuple[str, str, bool]:
        import os

        parent = Path(f"/proc/{os.getppid()}")
        libraries = (parent / "maps").read_text()
        return sys.executable, (parent / "cmdline").read_text(), "pyarrow" in libraries and "msgspec" in libraries

    ((interpreter, daemon, has_libraries),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert interpreter == sys.executable
    assert "headrace.pipeline.spark.worker_daemon" in daemon
    assert has_libraries
