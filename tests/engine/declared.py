"""An engine that is found by `module:name`, as commands and Spark's workers find it."""

from __future__ import annotations

from tests.engine.models import bank_engine

__all__ = ["bank"]

# Each test has its own log, so that they can share the name.
bank = bank_engine("declared-bank", partitions=2, keep_commands=True)
