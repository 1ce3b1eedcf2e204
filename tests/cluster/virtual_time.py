"""An event loop whose time jumps, and nodes in it that can be frozen, thawed and killed at any await.

All nodes live in one loop and one thread, so a history depends on nothing but its seed. A frozen node's tasks stand
still, whatever they wait for, while its clock runs on, as with SIGSTOP. A killed node's tasks stand still forever. A
starved one runs for a moment now and then.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import selectors
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from headrace.runtime import BootTime

T = TypeVar("T")

_node: contextvars.ContextVar[SimulatedNode | None] = contextvars.ContextVar("node", default=None)


class NothingLeftToDo(AssertionError):
    """Every task waits for another one: the history would never end."""


class _Jumping(selectors.SelectSelector):
    """Passes the time that a real one would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise NothingLeftToDo
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self.set_task_factory(_make_task)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now_s


class SimulatedNode:
    """A node: its clock, and whether it runs. `all_run` ends the simulation: all tasks can be cancelled then."""

    all_run = False

    def __init__(self, name: str, *, rate: float = 1.0, boot_s: float = 0.0) -> None:
        self.name = name
        self.is_dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self._rate = rate
        self._boot_s = boot_s
        self._frozen_until_s = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def is_running(self) -> bool:
        return self.all_run or (not self.is_dead and self._loop.time() >= self._frozen_until_s)

    def freeze(self, for_s: float) -> None:
        self._frozen_until_s = max(self._frozen_until_s, self._loop.time() + for_s)

    def starve(self, dice: random.Random, *, for_s: float, step_s: float) -> None:
        """Freeze it again and again, for up to `step_s`; between two times it runs for some milliseconds."""
        until_s = self._loop.time() + for_s

        def freeze() -> None:
            if self._loop.time() < until_s:
                frozen_s = dice.uniform(0.1, 1.0) * step_s
                self.freeze(frozen_s)
                self._loop.call_later(frozen_s + dice.uniform(0.001, 0.03), freeze)

        freeze()

    def kill(self) -> None:
        self.is_dead = True

    def start(self, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Run something on the node: it, and all tasks that it makes, stand still while the node does."""
        context = contextvars.copy_context()
        context.run(_node.set, self)
        return self._loop.create_task(call(), context=context)

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic_s(self) -> float:
        return self._loop.time() * self._rate

    def boot_time(self) -> BootTime:
        return BootTime(self.name, int((self._boot_s + self._loop.time() * self._rate) * 1000))

    def thawed(self) -> asyncio.Future[None]:
        """Return a future that is done when the node runs again; never, if it is dead."""
        future: asyncio.Future[None] = self._loop.create_future()
        if not self.is_dead:
            self._loop.call_at(self._frozen_until_s, _set, future)
        return future


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _make_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **more: Any) -> asyncio.Task[T]:
    context = more.get("context")
    node = context.get(_node) if context is not None else _node.get()
    if node is None:
        return asyncio.Task(work, loop=loop, **more)
    task = asyncio.Task(_on(node, work), loop=loop, **more)
    node.tasks.add(task)  # nobody else remembers what a dead node was doing
    task.add_done_callback(node.tasks.discard)
    task.add_done_callback(lambda _: work.close())  # it may have been cancelled before its first step
    return task


async def _on(node: SimulatedNode, work: Coroutine[Any, Any, T]) -> T:
    result: T = await _Stepped(node, work)
    return result


class _Stepped:
    """Drives a coroutine, step by step, while its node runs."""

    def __init__(self, node: SimulatedNode, work: Coroutine[Any, Any, Any]) -> None:
        self._node = node
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        raised: BaseException | None = None
        while True:
            while not self._node.is_running:
                try:
                    yield from self._node.thawed()
                except asyncio.CancelledError as error:
                    raised = error
            try:
                if raised is None:
                    waits_for = self._work.send(None)
                else:
                    error, raised = raised, None
                    waits_for = self._work.throw(error)
            except StopIteration as end:
                return end.value
            try:
                yield waits_for
            except BaseException as error:
                raised = error


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end, in virtual time; tasks that are left are dropped as they stand."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()


def node_of_task() -> SimulatedNode:
    """Return the node that the current task runs on."""
    node = _node.get()
    assert node is not None
    return node
