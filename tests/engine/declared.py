"""An engine that is found by `module:name`, as commands and Spark's workers find it."""

from __future__ import annotations

from tests.engine.models import Account, bank_engine

from headrace.engine import Engine

__all__ = ["bank", "forgetful_bank"]

# Each test has its own log, so that they can share the name.
bank = bank_engine("declared-bank", partitions=2, keep_commands=True)

# The same engine in a program that has lost its event handlers.
forgetful_bank: Engine[Account] = Engine("declared-bank", state=Account, partitions=2)
