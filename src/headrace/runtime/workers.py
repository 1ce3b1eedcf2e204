"""Background workers of an application, coroutines or blocking functions, which are restarted when they crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeAlias

from headrace.errors import BadArgument, TimedOut, WorkerFailed
from headrace.observe import Health, counter, get_logger
from headrace.runtime.backoff import Backoff
from headrace.runtime.clock import SYSTEM_CLOCK, Clock

__all__ = ["BlockingRun", "MakeCoroutine", "Supervisor", "Worker", "in_thread"]

MakeCoroutine: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
BlockingRun: TypeAlias = Callable[[threading.Event], None]

CRASHES = counter("runtime", "worker_crashes", "Exceptions that ended a worker's run.", ["worker"])
RESTARTS = counter("runtime", "worker_restarts", "Times a worker was started again after a crash.", ["worker"])

_log = get_logger(__name__)


class Worker:
    """One supervised worker: runs until it returns, is stopped, or has crashed too often."""

    def __init__(
        self,
        name: str,
        make: MakeCoroutine,
        *,
        backoff: Backoff,
        max_restarts: int | None,
        steady_after_s: float,
        health: Health,
        clock: Clock,
    ) -> None:
        self.name = name
        self.health = health
        self.restarts = 0
        self._make = make
        self._backoff = backoff
        self._max_restarts = max_restarts
        self._steady_after_s = steady_after_s
        self._clock = clock
        self._in_a_row = 0

    async def run(self) -> None:
        """Run, and restart after each crash. Raises WorkerFailed after `max_restarts` in a row."""
        while True:
            started_s = self._clock.monotonic_s()
            self.health.up()
            try:
                await self._make()
                return
            except asyncio.CancelledError as error:
                if _is_being_stopped():
                    raise
                crash: BaseException = error
            except Exception as error:
                crash = error
            self._note(crash)
            if _is_being_stopped():
                raise asyncio.CancelledError from crash
            await self._wait_for_next_run(crash, ran_s=self._clock.monotonic_s() - started_s)

    def _note(self, crash: BaseException) -> None:
        CRASHES.labels(self.name).inc()
        self.health.down(_story(crash))
        _log.error("worker crashed", worker=self.name, restarts=self.restarts, exc_info=crash)

    async def _wait_for_next_run(self, crash: BaseException, *, ran_s: float) -> None:
        if ran_s >= self._steady_after_s:
            self._in_a_row = 0
        if self._in_a_row == self._max_restarts:
            raise WorkerFailed(self.name, f"gave up after {self._in_a_row} restarts: {_story(crash)}") from crash
        self._in_a_row += 1
        delay_s = self._backoff.delay_s(self._in_a_row)
        _log.info("worker restarts", worker=self.name, delay_s=round(delay_s, 3), in_a_row=self._in_a_row)
        await asyncio.sleep(delay_s)
        self.restarts += 1
        RESTARTS.labels(self.name).inc()


class Supervisor:
    """Keeps workers running.

    Promises: a crash is logged, counted and shown in `health`; the worker starts again after its back-off. A
    worker that gave up, or was ended by something that is no Exception, is raised by `wait`, or else by `stop`.
    Does not promise: anything about a worker that ignores its cancellation, except that `stop` says so.
    """

    def __init__(self, name: str = "workers", *, health: Health | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.health = Health(name) if health is None else health
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self._raised: BaseException | None = None

    def add(
        self,
        name: str,
        make: MakeCoroutine,
        *,
        backoff: Backoff | None = None,
        max_restarts: int | None = None,
        steady_after_s: float = 60.0,
        health: Health | None = None,
    ) -> Worker:
        """Add a worker; `make` is called for each run. It starts now if the supervisor has been started.

        Without `max_restarts` it is restarted forever. A run of `steady_after_s` or longer resets the back-off and the
        count of restarts in a row. Its health node is a child of `health`, or of the supervisor's node.
        """
        if name in self._workers:
            raise BadArgument("name", name, "a worker of that name exists already")
        node = (health or self.health).child(name)
        worker = Worker(
            name,
            make,
            backoff=backoff or Backoff(),
            max_restarts=max_restarts,
            steady_after_s=steady_after_s,
            health=node,
            clock=self._clock,
        )
        self._workers[name] = worker
        if self._is_running:
            self._launch(worker)
        return worker

    async def start(self) -> None:
        """Start all workers."""
        self._is_running = True
        for worker in self._workers.values():
            if worker.name not in self._tasks:
                self._launch(worker)

    async def wait(self) -> None:
        """Return when all workers have returned; raise the error of the first one that failed for good."""
        while tasks := [task for task in self._tasks.values() if not task.done()]:
            self._raise_failure()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Cancel all workers and wait for them. Raises TimedOut naming those that are still running then."""
        self._is_running = False
        running = [task for task in self._tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=timeout_s)
        stuck = [name for name, task in self._tasks.items() if not task.done()]
        if stuck:
            raise TimedOut(f"stopping {', '.join(map(repr, stuck))}", timeout_s)
        try:
            self._raise_failure()
        finally:
            self._tasks.clear()

    async def __aenter__(self) -> Supervisor:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    def _launch(self, worker: Worker) -> None:
        self._tasks[worker.name] = asyncio.create_task(worker.run(), name=f"headrace-worker-{worker.name}")

    def _raise_failure(self) -> None:
        for task in self._tasks.values():
            if not task.done() or task.cancelled():
                continue
            failure = task.exception()
            if failure is not None and failure is not self._raised:
                self._raised = failure
                raise failure


def _is_being_stopped() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _story(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def in_thread(run: BlockingRun, *, name: str = "headrace-thread") -> MakeCoroutine:
    """Turn a blocking function into a worker: `supervisor.add("poller", in_thread(poll))`.

    Each run gets a thread of its own and an Event that is set when the worker is to stop; the function must
    check it and return soon. What it raises is the worker's crash.
    """

    async def worker() -> None:
        stop = threading.Event()
        done = asyncio.get_running_loop().create_future()
        # A daemon: a function that ignores its Event must not keep the process from ending.
        threading.Thread(target=_run, args=(run, stop, done), name=name, daemon=True).start()
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            stop.set()
            await done
            raise

    return worker


def _run(run: BlockingRun, stop: threading.Event, done: asyncio.Future[None]) -> None:
    error: BaseException | None = None
    try:
        run(stop)
    except BaseException as raised:  # raised again in the worker, by _settle
        error = raised
    loop = done.get_loop()
    if loop.is_closed():
        _log.warning("thread ended after its loop", thread=threading.current_thread().name, exc_info=error)
        return
    loop.call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
