"""Registries for code that blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BadArgument, Closed
from headrace.serde import BlockingRegistry

pytestmark = pytest.mark.timeout(20)


def test_a_blocking_call_in_the_registrys_own_thread_is_refused(tmp_path: Path) -> None:
    """It would wait for itself for ever; the error says what to do, and the registry goes on."""
    with BlockingRegistry(f"folder:{tmp_path}") as registry:

        async def call() -> object:
            return registry.run(registry.registry.subjects())

        async def close() -> None:
            registry.close()

        for work in (call, close):
            with pytest.raises(BadArgument, match="await the asynchronous call instead"):
                registry.run(work())
        assert list(registry.run(registry.registry.subjects())) == []
    with pytest.raises(Closed):
        registry.run(call())
