"""Supervised workers: restarted, counted, stopped, never silent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from headrace.errors import BadArgument, TimedOut, WorkerFailed
from headrace.observe import Health, HealthState
from headrace.runtime import Backoff, Supervisor, in_thread
from headrace.testing.clock import SettableClock
from headrace.testing.crashes import SimulatedCrash

AT_ONCE = Backoff(first_s=0, limit_s=0)


class Broken(Exception):
    """What test workers die of."""


class Flaky:
    """A worker that crashes a number of times and then runs until it is cancelled."""

    def __init__(self, crashes: int, on_crash: Callable[[], None] = lambda: None) -> None:
        self.crashes = crashes
        self.runs = 0
        self.is_steady = asyncio.Event()
        self._on_crash = on_crash

    async def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self.crashes:
            self._on_crash()
            raise Broken(f"run {self.runs}")
        self.is_steady.set()
        await asyncio.Event().wait()


async def reached(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 5)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - health is read, not awaited
            await asyncio.sleep(0)


def restarts_of(worker: str) -> float:
    return REGISTRY.get_sample_value("headrace_runtime_worker_restarts_total", {"worker": worker}) or 0.0


async def test_a_crashed_worker_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    """Each crash is logged with its exception, counted, and followed by a new run."""
    flaky = Flaky(crashes=3)
    supervisor = Supervisor()
    worker = supervisor.add("flaky", flaky, backoff=AT_ONCE)
    with caplog.at_level(logging.ERROR, "headrace"):
        async with supervisor:
            await reached(flaky.is_steady)
            assert worker.restarts == 3
            assert worker.health.is_up
    crashes = [record for record in caplog.records if "worker crashed" in record.message]
    assert [str(record.exc_info[1]) for record in crashes if record.exc_info] == ["run 1", "run 2", "run 3"]
    assert restarts_of("flaky") == 3


async def test_a_worker_that_crashes_too_often_fails_its_supervisor() -> None:
    """After `max_restarts` in a row the supervisor raises WorkerFailed, caused by the last crash."""
    flaky = Flaky(crashes=100)
    supervisor = Supervisor()
    supervisor.add("doomed", flaky, backoff=AT_ONCE, max_restarts=2)
    await supervisor.start()
    with pytest.raises(WorkerFailed, match=r"'doomed' failed: gave up after 2 restarts: Broken: run 3") as failed:
        await asyncio.wait_for(supervisor.wait(), 5)
    assert isinstance(failed.value.__cause__, Broken)
    assert flaky.runs == 3
    assert supervisor.health.state is HealthState.DOWN
    await supervisor.stop()  # told once, not twice


async def test_a_failure_nobody_waited_for_is_raised_by_stop() -> None:
    """A worker that gave up unseen is not forgotten when the supervisor stops."""
    done = asyncio.Event()
    supervisor = Supervisor()
    supervisor.add("doomed", Flaky(1, on_crash=done.set), backoff=AT_ONCE, max_restarts=0)
    await supervisor.start()
    await reached(done)
    await until(lambda: not supervisor.health.is_up)
    with pytest.raises(WorkerFailed):
        await supervisor.stop()


async def test_a_steady_run_forgives_earlier_crashes() -> None:
    """A run of `steady_after_s` makes the count of restarts in a row begin anew."""
    clock = SettableClock()
    flaky = Flaky(crashes=6, on_crash=lambda: clock.advance(60))
    async with Supervisor(clock=clock) as supervisor:
        supervisor.add("slow", flaky, backoff=AT_ONCE, max_restarts=1, steady_after_s=60)
        await reached(flaky.is_steady)
    assert flaky.runs == 7


async def test_quick_crashes_are_not_forgiven() -> None:
    """Runs shorter than `steady_after_s` count as restarts in a row."""
    clock = SettableClock()
    flaky = Flaky(crashes=6, on_crash=lambda: clock.advance(59))
    supervisor = Supervisor(clock=clock)
    supervisor.add("slow", flaky, backoff=AT_ONCE, max_restarts=1, steady_after_s=60)
    await supervisor.start()
    with pytest.raises(WorkerFailed):
        await asyncio.wait_for(supervisor.wait(), 5)
    assert flaky.runs == 2


async def test_the_tree_shows_a_worker_in_its_back_off_as_down() -> None:
    """While a crashed worker waits, its node is down with the reason, below the health it was given."""
    health = Health("app")
    crashed = asyncio.Event()
    async with Supervisor(health=health) as supervisor:
        worker = supervisor.add("napping", Flaky(1, on_crash=crashed.set), backoff=Backoff(60, 1, 60, 0))
        await reached(crashed)
        await until(lambda: not worker.health.is_up)
        assert list(health.complaints()) == ["app/napping is down: Broken: run 1"]


async def test_waiting_returns_when_all_workers_have() -> None:
    """A worker that returns is finished, not restarted."""
    runs: list[str] = []

    async def once() -> None:
        runs.append("ran")

    async with Supervisor() as supervisor:
        supervisor.add("once", once)
        await asyncio.wait_for(supervisor.wait(), 5)
    assert runs == ["ran"]


async def test_a_cancellation_that_is_not_a_stop_is_a_crash() -> None:
    """A worker that ends because something inside it was cancelled is started again."""
    runs = 0
    steady = asyncio.Event()

    async def awaits_a_cancelled_task() -> None:
        nonlocal runs
        runs += 1
        if runs > 1:
            steady.set()
            await asyncio.Event().wait()
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    async with Supervisor() as supervisor:
        supervisor.add("inner", awaits_a_cancelled_task, backoff=AT_ONCE)
        await reached(steady)


async def test_stop_lets_workers_clean_up() -> None:
    """A worker's finally block runs to its end before stop returns."""
    cleaned: list[str] = []
    running = asyncio.Event()

    async def tidy() -> None:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("yes")

    async with Supervisor() as supervisor:
        supervisor.add("tidy", tidy)
        await reached(running)
    assert cleaned == ["yes"]


async def test_stop_names_the_workers_that_do_not_stop() -> None:
    """A worker that ignores its cancellation makes stop raise TimedOut with its name."""
    let_go = asyncio.Event()
    running = asyncio.Event()

    async def stubborn() -> None:
        running.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    supervisor = Supervisor()
    supervisor.add("stubborn", stubborn)
    await supervisor.start()
    await reached(running)
    with pytest.raises(TimedOut, match="stopping 'stubborn'"):
        await supervisor.stop(timeout_s=0.05)
    let_go.set()
    await supervisor.stop()


async def test_a_crash_while_stopping_is_logged_and_not_restarted(caplog: pytest.LogCaptureFixture) -> None:
    """An exception from a worker's clean-up is not swallowed and does not start it again."""
    running = asyncio.Event()
    runs = 0

    async def messy() -> None:
        nonlocal runs
        runs += 1
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            raise Broken("clean-up failed")

    async with Supervisor() as supervisor:
        supervisor.add("messy", messy, backoff=AT_ONCE)
        await reached(running)
    assert runs == 1
    assert "worker crashed" in caplog.text
    assert "clean-up failed" in caplog.text


async def test_a_simulated_crash_is_not_survived() -> None:
    """What is no Exception ends the worker for good and reaches whoever waits."""

    async def dies() -> None:
        raise SimulatedCrash("somewhere", 1)

    supervisor = Supervisor()
    supervisor.add("dies", dies, backoff=AT_ONCE)
    await supervisor.start()
    with pytest.raises(SimulatedCrash, match="simulated crash at 'somewhere', pass 1"):
        await asyncio.wait_for(supervisor.wait(), 5)
    await supervisor.stop()


async def test_two_workers_of_one_name_are_refused() -> None:
    """Names tell workers apart in logs, metrics and health."""
    supervisor = Supervisor()
    supervisor.add("same", Flaky(0))
    with pytest.raises(BadArgument, match="'same'"):
        supervisor.add("same", Flaky(0))


async def test_a_thread_is_asked_to_stop_and_waited_for() -> None:
    """A blocking worker gets an Event, and stop returns only after its function did."""
    running = threading.Event()
    ended: list[str] = []

    def blocking(stop: threading.Event) -> None:
        running.set()
        stop.wait(5)
        ended.append("stopped" if stop.is_set() else "late")

    async with Supervisor() as supervisor:
        supervisor.add("thread", in_thread(blocking))
        await asyncio.to_thread(running.wait, 5)
        assert running.is_set()
    assert ended == ["stopped"]


async def test_a_crashed_thread_runs_again() -> None:
    """What the function raises is the worker's crash; the next run has a fresh thread and Event."""
    runs: list[threading.Event] = []
    steady = threading.Event()

    def flaky(stop: threading.Event) -> None:
        runs.append(stop)
        if len(runs) == 1:
            raise Broken("in a thread")
        steady.set()
        stop.wait(5)

    async with Supervisor() as supervisor:
        worker = supervisor.add("thread", in_thread(flaky), backoff=AT_ONCE)
        assert await asyncio.to_thread(steady.wait, 5)
        assert worker.restarts == 1
    assert len(set(map(id, runs))) == 2
