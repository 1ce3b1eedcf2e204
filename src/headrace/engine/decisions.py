"""What a handler decided about a command: from what it returned, and what it did with its context."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from headrace.engine.commands import CommandReply
from headrace.engine.context import CommandContext
from headrace.engine.results import Reject
from headrace.engine.timers import Cancel, Schedule, Timers
from headrace.errors import HeadraceError, NotStorable
from headrace.model import NewRecord

__all__ = ["Decision", "Repeated", "decision_of"]


_MANY = (list, tuple)


class Repeated(NamedTuple):
    """A command whose id is remembered: this was its reply."""

    reply: CommandReply


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What a handler made of a command; with `reject` or `error` nothing else counts. Without `timers` they stay.

    `state` counts where there are events, or no journal. `payloads` are the events as they were persisted.
    """

    state: Any = None
    events: tuple[Any, ...] = ()
    outputs: tuple[NewRecord, ...] = ()
    value: Any = None
    reject: Reject | None = None
    error: HeadraceError | None = None
    now_ms: int = 0
    timers: Timers | None = None
    payloads: tuple[bytes | NotStorable, ...] = ()


def _do(context: CommandContext[Any], returned: Any) -> None:  # noqa: ANN401
    """Do what one value of a handler's result stands for: an event, or a change of a timer."""
    if isinstance(returned, Schedule):
        command, at, after, name, aggregate = (
            returned.command,
            returned.at,
            returned.after,
            returned.name,
            returned.aggregate,
        )
        context.schedule(command, at=at, after=after, name=name, aggregate=aggregate)
    elif isinstance(returned, Cancel):
        context.cancel(returned.name)
    else:
        context.persist(returned)


def decision_of(context: CommandContext[Any], returned: Any) -> Decision:  # noqa: ANN401
    """Return what a handler decided, from what it returned and what it did with its context."""
    if isinstance(returned, Reject):
        context.end()
        return Decision(reject=returned)
    if returned is not None:
        if isinstance(returned, _MANY) and not _is_named(returned):
            for each in returned:
                _do(context, each)
        else:
            _do(context, returned)
    context.end()
    return Decision(
        context.state_left(),
        tuple(context.events),
        tuple(context.outputs),
        context.value,
        now_ms=context.now_ms,
        timers=context.timers_left(),
        payloads=tuple(context.payloads),
    )


def _is_named(value: object) -> bool:
    """Return True for a NamedTuple, which is one event and not several."""
    return hasattr(value, "_fields")
