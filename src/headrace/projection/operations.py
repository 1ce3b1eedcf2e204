"""Operations on a projection: its lag, waiting for it, skipping an event, dead letters, rebuilds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headrace.errors import BadArgument, HandlerFailed, ProjectionRebuilding, SlotsMoved, TagTrimmed, TimedOut
from headrace.model import ConsistencyToken
from headrace.observe import SILENT, Progress, ProgressStep
from headrace.projection.delivery import EventFailed
from headrace.projection.ports import Offsets, Target
from headrace.projection.projection import DeadLetter, Projection, reason_of
from headrace.projection.run import ProjectionRunner
from headrace.projection.slots import check_not_ahead, earliest, fresh, slot_of
from headrace.runtime import SYSTEM_CLOCK
from headrace.tags import After, TaggedEvent, TagOffset, TagQueries, after_of

__all__ = [
    "Lag",
    "Rebuilt",
    "Replayed",
    "catch_up_with_others",
    "lag_of",
    "next_event",
    "rebuild",
    "replay_letters",
    "skip_event",
    "wait_until_handled",
    "wait_until_passed",
]

_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Lag:
    """The number of events that a projection has not handled; `is_all` is False if counting stopped at a limit."""

    events: int
    is_all: bool = True

    def __str__(self) -> str:
        return f"{self.events} events behind" if self.is_all else f"more than {self.events} events behind"


async def lag_of(
    projection: Projection,
    queries: TagQueries,
    offsets: Offsets,
    *,
    limit: int = 100_000,
    skip_trimmed: bool = False,
) -> Lag:
    """Count the events that wait, by reading them. Raises TagTrimmed, unless the trimmed ones are to be ignored."""
    count = 0
    found = queries.events(projection.sources, after=earliest(offsets), skip_trimmed=skip_trimmed)
    async with aclosing(found) as events:
        async for event in events:
            count += len(fresh([event], offsets, projection.slots))
            if count >= limit:
                return Lag(count, is_all=False)
    return Lag(count)


async def next_event(
    projection: Projection, queries: TagQueries, offsets: Offsets, *, topic: str | None = None, id_: str | None = None
) -> TaggedEvent | None:
    """Return the first event that is not handled yet, of all journals or of one; None if there is none."""
    async with aclosing(queries.events(projection.sources, after=earliest(offsets))) as events:
        async for event in events:
            is_wanted = (topic is None or event.topic == topic) and (id_ is None or event.id == id_)
            if is_wanted and fresh([event], offsets, projection.slots):
                return event
    return None


async def skip_event(
    projection: Projection, queries: TagQueries, target: Target, event: TaggedEvent, offsets: Offsets
) -> None:
    """Move one slot past an event. Raises BadArgument if it is not the slot's next one, SlotsMoved if it moved."""
    slot = slot_of(event.topic, event.id, projection.slots)
    first = await next_event(projection, queries, {slot: offsets[slot]})
    if first is None or first.tag_offset != event.tag_offset:
        shown = f"event {event.seq_nr} of {event.id!r}"
        before = "is handled" if first is None else f"comes after event {first.seq_nr} of {first.id!r}, in one slot"
        raise BadArgument("event", shown, f"it {before}; only the next event of a slot can be passed")
    await target.handle([], {slot: offsets[slot]}, event.tag_offset)


async def wait_until_handled(
    projection: Projection,
    queries: TagQueries,
    target: Target,
    *,
    topic: str | None = None,
    id_: str | None = None,
    seq_nr: int | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Wait until everything that was written before the call is handled: of all journals, or of one up to a seq_nr.

    Skipped events and dead letters count as handled. Raises TimedOut.
    """

    def is_wanted(event: TaggedEvent) -> bool:
        is_of_journal = (topic is None or event.topic == topic) and (id_ is None or event.id == id_)
        return is_of_journal and (seq_nr is None or event.seq_nr <= seq_nr)

    await _wait(projection, queries, target, is_wanted, timeout_s=timeout_s)


async def wait_until_passed(
    projection: Projection,
    queries: TagQueries,
    target: Target,
    token: str,
    *,
    timeout_s: float = 30.0,
) -> None:
    """Wait until the events that a consistency token names, and all before them in their partitions, are handled.

    Skipped events and dead letters count as handled. Raises TimedOut, BadToken, TokenOfOtherTopic, TokenAhead.
    """
    parsed = ConsistencyToken.parse(token)
    named = {(place.topic, place.partition): place.offset for place in parsed.places}

    def is_wanted(event: TaggedEvent) -> bool:
        return event.offset <= named.get((event.topic, event.partition), -1)

    await _wait(projection, queries, target, is_wanted, at_least=token, timeout_s=timeout_s)


async def _wait(
    projection: Projection,
    queries: TagQueries,
    target: Target,
    is_wanted: Callable[[TaggedEvent], bool],
    *,
    at_least: str | None = None,
    timeout_s: float,
) -> None:
    """Wait until the events are handled that exist now and are wanted."""
    if math.isnan(timeout_s):  # no time is after it: the wait would never end
        raise BadArgument("timeout_s", timeout_s, "it must be a number of seconds")
    try:
        async with asyncio.timeout(timeout_s):
            offsets = await _load(target)
            wanted = await _waiting(projection, queries, offsets, is_wanted, at_least)
            while not _are_past(offsets, wanted):
                await asyncio.sleep(_LOOK_AGAIN_S)
                offsets = await _load(target)
    except TimeoutError as error:
        raise TimedOut(f"waiting for projection {projection.name!r}", timeout_s) from error


async def _load(target: Target) -> Offsets:
    while True:
        try:
            return await target.load()
        except ProjectionRebuilding:
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _waiting(
    projection: Projection,
    queries: TagQueries,
    offsets: Offsets,
    is_wanted: Callable[[TaggedEvent], bool],
    at_least: str | None,
) -> dict[int, TagOffset]:
    """Return, by slot, the offset of the last event to wait for."""
    wanted: dict[int, TagOffset] = {}
    found = queries.events(projection.sources, after=earliest(offsets), at_least=at_least)
    async with aclosing(found) as events:
        async for event in events:
            if is_wanted(event):
                wanted[slot_of(event.topic, event.id, projection.slots)] = event.tag_offset
    return wanted


def _are_past(offsets: Offsets, wanted: Mapping[int, TagOffset]) -> bool:
    return all((place := offsets[slot]) is not None and place.covers(at) for slot, at in wanted.items())


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: dead letters that were `handled`, and those that `failed` again and stay."""

    handled: int
    failed: tuple[HandlerFailed, ...] = ()


async def replay_letters(
    projection: Projection, queries: TagQueries, target: Target, letters: Sequence[DeadLetter]
) -> Replayed:
    """Handle the events of dead letters in their order; letters that fail again stay."""
    handled, failed = 0, []
    for letter in sorted(letters, key=lambda letter: letter.tag_offset):
        try:
            event = await _event_of(queries, letter)
            handled += await target.letters.replay(letter, event)
        except EventFailed as failure:
            failed.append(_failure(projection, letter, failure.error))
        except (BadArgument, TagTrimmed) as failure:  # its event is gone; the others need not wait for that
            failed.append(_failure(projection, letter, failure))
    return Replayed(handled, tuple(failed))


async def _event_of(queries: TagQueries, letter: DeadLetter) -> TaggedEvent:
    async with aclosing(queries.events(letter.tag, after=letter.place_before)) as events:
        async for event in events:
            if letter.is_of(event):
                return event
            if event.tag_offset.time > letter.tag_offset.time:
                break
    rule = f"event {letter.seq_nr} of {letter.id!r} is no longer under tag {letter.tag!r}; purge the letter"
    raise BadArgument("dead letter", letter.offset, rule)


def _failure(projection: Projection, letter: DeadLetter, error: BaseException) -> HandlerFailed:
    return HandlerFailed(
        projection.name,
        letter.tag,
        letter.topic,
        letter.id,
        letter.seq_nr,
        letter.offset,
        letter.attempts + 1,
        reason_of(error),
    )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild: `events` that it handled, or gave up, itself, and those `by_workers` meanwhile."""

    events: int
    took_s: float
    by_workers: int = 0

    @property
    def events_per_s(self) -> float:
        """The rate of the rebuild."""
        return self.events / self.took_s if self.took_s else 0.0


async def rebuild(
    projection: Projection,
    queries: TagQueries,
    target: Target,
    *,
    start: After = None,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Rebuilt:
    """Reset the projection and handle the events after `start` again; a dry run only reads and counts them.

    Workers may run meanwhile: they lose their slots at the reset, and then help with the rebuild.
    """
    after, started_s = after_of(start), time.perf_counter()
    check_not_ahead(projection.name, {0: after}, SYSTEM_CLOCK.now_ms())
    with progress.step(f"counting the events under {projection.source}", unit="events") as step:
        total = await _count(queries, projection.sources, after, step)
    if dry_run:
        return Rebuilt(total, time.perf_counter() - started_s)
    await target.begin_again(after)
    started_s = time.perf_counter()
    with progress.step(f"rebuilding {projection.name}", total=total, unit="events") as step:
        done = _Done(step)
        await catch_up_with_others(ProjectionRunner(projection, queries, target, on_done=done.add))
    return Rebuilt(done.count, time.perf_counter() - started_s, by_workers=max(0, total - done.count))


async def catch_up_with_others(runner: ProjectionRunner) -> None:
    """Catch up together with the workers: whenever one of them was faster, start again from where it is."""
    while True:
        try:
            await runner.catch_up()
            return
        except SlotsMoved:
            continue


async def _count(queries: TagQueries, tags: Sequence[str], after: TagOffset | None, step: ProgressStep) -> int:
    count = 0
    async with aclosing(queries.events(tags, after=after)) as events:
        async for _ in events:
            count += 1
            step.advance()
    return count


class _Done:
    """Counts the events that a rebuild has handled or given up, and reports its progress."""

    def __init__(self, step: ProgressStep) -> None:
        self._step = step
        self.count = 0

    def add(self, count: int) -> None:
        """Count events and report them."""
        self.count += count
        self._step.advance(count)
