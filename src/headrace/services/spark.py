"""The jars that Spark needs in addition to those of the pyspark package: pinned, fetched once, checked."""

from __future__ import annotations

from pathlib import Path

from headrace.services.fetch import fetch
from headrace.services.packages import Cache, locked
from headrace.services.watcher import Watcher

__all__ = ["spark_jars"]


def spark_jars(watcher: Watcher, *, cache: Cache | None = None) -> list[Path]:
    """Return the paths of the jars, fetching those that are missing."""
    return fetch("spark's jars", locked("spark"), cache=cache or Cache(), watcher=watcher)
