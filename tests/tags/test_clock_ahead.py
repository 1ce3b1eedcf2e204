"""A log whose clock was ahead, and was set back: what live queries by tag do until the clock has caught up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.suites.tags_setting import Scene, ids, ids_on

from headrace.log import open_log
from headrace.store import open_store
from headrace.tags.metrics import AHEAD

MINUTES_AHEAD_S = 600


class Clock:
    """The clock of this process, with a lead that can be changed."""

    ahead_s = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, true_ns = Clock(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(clock.ahead_s * 1e9))
    return clock


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    log, store = await open_log(f"embedded:{tmp_path}"), await open_store(f"embedded:{tmp_path}")
    scene = Scene(log, store)
    await scene.new_topic()
    yield scene
    await store.close()
    await log.close()


async def test_a_query_waits_for_the_clock_visibly_and_goes_on_when_it_is_there(
    scene: Scene, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """T35: Marks further ahead than a minute are refused, so events of a partition that was written by a clock ahead
    wait; those of others don't. A log line says which topic, and for how long, once; so does the metric. When the clock
    is near, everything comes, in order."""
    now_ms = time.time_ns() // 1_000_000
    (there,), (elsewhere,) = ids_on(0, 1), ids_on(1, 1, prefix="q")
    await scene.append(there, 1, at_ms=now_ms)
    clock.ahead_s = MINUTES_AHEAD_S
    await scene.append(there, 2, at_ms=now_ms + MINUTES_AHEAD_S * 1000)
    clock.ahead_s = 0
    follower = scene.follow()
    assert ids(await follower.next()) == [f"{there}1"]

    assert await follower.is_silent(for_s=1.0)

    told = [each for each in caplog.messages if "ahead of the clock" in each]
    assert len(told) == 1
    assert scene.topic in told[0]
    assert _ahead_s(scene) == pytest.approx(MINUTES_AHEAD_S, abs=30)
    assert not [each for each in caplog.messages if "not marked" in each]

    for n in (1, 2):
        await scene.append(elsewhere, n, at_ms=now_ms + n)
        assert ids(await follower.next()) == [f"{elsewhere}{n}"]
    await scene.append(there, 3, at_ms=now_ms + 3)  # has the log time of its partition
    assert await follower.is_silent(for_s=0.3)

    clock.ahead_s = MINUTES_AHEAD_S - 30
    assert ids(await follower.next(2)) == [f"{there}2", f"{there}3"]
    assert _ahead_s(scene) == 0
    await follower.stop()


def _ahead_s(scene: Scene) -> Any:
    return AHEAD.labels(scene.topic)._value.get()
