"""What the tests of projection targets stand on: opened targets, a handler with an effect, events to handle."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import pytest
import pytest_asyncio

from headrace.projection import DeadLetter, Offsets, Projection, Target, slot_of
from headrace.tags import TaggedEvent, TagOffset

__all__ = [
    "SLOTS",
    "Effects",
    "MakeTarget",
    "OpenTarget",
    "SeenInMemory",
    "TargetSetting",
    "event_of",
    "id_in_slot",
    "letter",
    "only",
]

SLOTS = 4
NOW_MS = 1_790_000_000_000

MakeTarget = Callable[[Projection], Awaitable[Target]]
OpenTarget = Callable[..., Awaitable[Target]]


class Effects(Protocol):
    """What a handler does to the world. A target with transactions gives it something that can be rolled back."""

    def handle(self, *arguments: Any) -> None:  # noqa: ANN401
        """Take an event, the last argument; targets may pass something of their own before it."""
        ...

    def reset(self, *arguments: Any) -> None:  # noqa: ANN401
        """Undo all that was done."""
        ...

    async def seen(self) -> list[tuple[str, int]]:
        """Return id and seq_nr of the events that had an effect, in order, repetitions included."""
        ...


class SeenInMemory:
    """Effects for targets without transactions: a list."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, int]] = []

    def handle(self, *arguments: Any) -> None:  # noqa: ANN401
        """Add an event."""
        event: TaggedEvent = arguments[-1]
        self._seen.append((event.id, event.seq_nr))

    def reset(self, *arguments: Any) -> None:  # noqa: ANN401
        """Empty the list."""
        self._seen.clear()

    async def seen(self) -> list[tuple[str, int]]:
        """Return the list."""
        return list(self._seen)


@pytest.mark.asyncio
class TargetSetting:
    """The fixtures. A backend overrides `make_target`, and `effects` if its handlers write in its transactions."""

    @pytest.fixture
    def make_target(self) -> MakeTarget:
        """Return a function that opens a target of a projection; what one stored all others find."""
        raise NotImplementedError("override the fixture `make_target`")

    @pytest.fixture
    def effects(self) -> Effects:
        """Return what the handler does."""
        return SeenInMemory()

    @pytest_asyncio.fixture
    async def another(self, make_target: MakeTarget, effects: Effects) -> AsyncIterator[OpenTarget]:
        """Open targets of one projection, as other workers would; options are those of Projection."""
        opened: list[Target] = []
        usual = {"name": f"p-{uuid.uuid4().hex[:12]}", "tag": "paid", "slots": SLOTS}

        async def open_another(**options: Any) -> Target:  # noqa: ANN401
            given = {**usual, "handler": effects.handle, "reset": effects.reset, **options}
            opened.append(await make_target(Projection(**given)))
            return opened[-1]

        yield open_another
        for target in opened:
            await target.close()

    @pytest_asyncio.fixture
    async def target(self, another: OpenTarget) -> Target:
        """Open the target under test."""
        return await another()


def id_in_slot(slot: int) -> str:
    """Return the id of a journal whose events belong to a slot."""
    return next(id_ for n in range(1000) if slot_of("orders", id_ := f"order-{n}", SLOTS) == slot)


def event_of(slot: int, seq_nr: int, *, at: int) -> TaggedEvent:
    """Return an event of a slot's journal; `at` is its place in the order of all events."""
    offset = TagOffset(NOW_MS + at, 0, 0, at, seq_nr, seq_nr)
    return TaggedEvent(
        seq_nr,
        {"paid": at},
        ("paid",),
        0,
        at,
        NOW_MS + at,
        tag="paid",
        topic="orders",
        id=id_in_slot(slot),
        number=seq_nr,
        tag_offset=offset,
    )


def letter(event: TaggedEvent, *, attempts: int = 1) -> DeadLetter:
    """Return the dead letter of an event."""
    place = str(event.tag_offset)
    return DeadLetter(event.tag, event.topic, event.id, event.seq_nr, place, "ValueError: no", attempts, NOW_MS)


def only(offsets: Offsets, *slots: int) -> Offsets:
    """Return the offsets of some slots, as a worker knows them that has no others."""
    return {slot: offsets[slot] for slot in slots}
