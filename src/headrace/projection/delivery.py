"""Delivery of events to a handler: what the handler can know about the current event, and how its errors arrive."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

__all__ = ["Delivery", "EventFailed", "call", "current_delivery", "delivering", "finished", "to_the_end"]

T = TypeVar("T")


class Delivery(NamedTuple):
    """How an event is delivered to its handler.

    `is_replay`: the projection had passed the event, and it comes again because of a rebuild or because offsets were
    set back. Mails and messages to others should not be sent again then. `attempt` counts from 1; the attempts before
    an event became a dead letter count too.
    """

    is_replay: bool
    attempt: int


_FIRST = Delivery(is_replay=False, attempt=1)
_current: ContextVar[Delivery | None] = ContextVar("headrace-projection-delivery", default=None)


def current_delivery() -> Delivery:
    """Return the delivery of the event that is being handled; for handlers."""
    return _current.get() or _FIRST


class EventFailed(Exception):
    """The handler raised an error at one event of a batch; for a group of events `index` is None.

    A target with transactions has rolled the batch back; one without has handled and stored the events before it.
    """

    def __init__(self, index: int | None, error: BaseException) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


@contextmanager
def delivering(index: int | None, delivery: Delivery) -> Iterator[None]:
    """Set the delivery for the handler; turn what it raises into an EventFailed."""
    token = _current.set(delivery)
    try:
        yield
    except Exception as error:
        raise EventFailed(index, error) from error
    except asyncio.CancelledError as error:
        if _is_being_stopped():
            raise
        raise EventFailed(index, error) from error  # the handler cancelled a task of its own
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise EventFailed(index, error) from error  # the time-outs of some libraries are not an Exception
    finally:
        _current.reset(token)


def _nothing() -> None:
    """Do nothing."""


async def call(function: Callable[..., Any], *arguments: object, done: Callable[[], None] = _nothing) -> None:
    """Call a function of the application: a coroutine function in the event loop, any other in a thread.

    `done` is called when the function has done its work, also if the caller was cancelled while a thread did it.
    """
    if inspect.iscoroutinefunction(function):
        await finished(function(*arguments), done=done)
        return
    returned = await to_the_end(function, *arguments, if_stopped=partial(_note_stopped, done))
    if inspect.isawaitable(returned):
        await finished(returned, done=done)
    else:
        done()


async def finished(work: Awaitable[object], *, done: Callable[[], None] = _nothing) -> None:
    """Await the application's work, then call `done`. Raises CancelledError if the work caught the caller's own.

    Without that a handler that catches every exception would keep its worker running after it was told to stop.
    """
    before = _cancellations()
    await work
    done()
    if _cancellations() > before:
        raise asyncio.CancelledError


def _note_stopped(done: Callable[[], None], returned: object) -> None:
    """Call `done`, unless the function has returned work that nobody will wait for now."""
    if inspect.iscoroutine(returned):
        returned.close()
    elif not inspect.isawaitable(returned):
        done()


async def to_the_end(
    function: Callable[..., T], *arguments: object, if_stopped: Callable[[T], object] | None = None
) -> T:
    """Run a blocking function in a thread. A caller that is cancelled waits for its end, so that nothing runs on.

    `if_stopped` gets what the function returned after its caller was cancelled. The caller gets the cancellation as it
    came, because time-outs and task groups don't know any other.
    """
    work = asyncio.ensure_future(asyncio.to_thread(_result_of, function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():  # a second cancellation must not leave the thread running on
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        # The error is retrieved, but the cancellation is what counts.
        if not work.cancelled() and work.exception() is None and if_stopped is not None:
            if_stopped(work.result())
        raise


def _result_of(function: Callable[..., T], *arguments: object) -> T:
    try:
        return function(*arguments)
    except StopIteration as error:  # a future can't carry it, and its caller would wait forever
        raise RuntimeError("a handler raised StopIteration") from error


def _is_being_stopped() -> bool:
    return _cancellations() > 0


def _cancellations() -> int:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread, which is never cancelled
        return 0
    return 0 if task is None else task.cancelling()
