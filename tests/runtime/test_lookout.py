"""Waiting together for what can only be asked."""

from __future__ import annotations

import asyncio

from headrace.runtime import Lookout


async def test_one_asks_for_all_who_wait() -> None:
    """However many wait, the condition is asked once in a while, and all go on when it holds."""
    asked, is_so = 0, False

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return is_so

    lookout = Lookout(ask, every_s=0.01)
    waiting = [asyncio.create_task(lookout.wait(30)) for _ in range(500)]
    async with asyncio.timeout(30):
        while asked < 5:  # noqa: ASYNC110 - it is counted only
            await asyncio.sleep(0.001)
        assert asked < 50
        is_so = True
        await asyncio.gather(*waiting)


async def test_nobody_waits_for_ever() -> None:
    """The time of one who waits ends only its own waiting; closing ends all."""
    lookout = Lookout(lambda: False, every_s=0.01)
    patient = asyncio.create_task(lookout.wait(30))
    await lookout.wait(0.02)
    assert not patient.done()
    lookout.close()
    await asyncio.wait_for(patient, 10)
