"""The log and the store that one process has open for the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.errors import BadArgument
from headrace.pipeline.spark.process import close_all, run

pytestmark = pytest.mark.timeout(20)


async def nothing() -> int:
    return 1


@pytest.mark.parametrize("call", [lambda: run(nothing()), close_all], ids=["run", "close"])
def test_a_blocking_call_in_the_loops_own_thread_is_refused(call: Callable[[], object]) -> None:
    """It would wait for itself for ever; the error says what to do, and the loop goes on."""

    async def work() -> object:
        return call()

    with pytest.raises(BadArgument, match="await the asynchronous call instead"):
        run(work())
    assert run(nothing()) == 1
    close_all()
    again: Coroutine[Any, Any, int] = nothing()
    assert run(again) == 1
    close_all()
