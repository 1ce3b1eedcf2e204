"""The child processes of the registry's tests, which report by printing lines."""

from __future__ import annotations

import asyncio
import random

from headrace.log import open_log
from headrace.serde import open_registry
from headrace.testing.conformance.registry_setting import record

__all__ = ["register_many"]


def register_many(address: str, log_address: str, seed: int) -> None:
    """Register schemas that others register too, in an order of its own; print each number and its id."""

    async def run() -> None:
        log = await open_log(log_address) if log_address else None
        registry = await open_registry(address, log=log)
        numbers = list(range(12))
        random.Random(seed).shuffle(numbers)
        for number in numbers:
            made = await registry.register(f"s{number % 3}-{number}", record(f"R{number}", id="string"))
            print(f"{number} {made.schema_id}", flush=True)  # in one write: the process may be killed at any moment
        if log is not None:
            await log.close()
        print("done", flush=True)

    asyncio.run(run())
