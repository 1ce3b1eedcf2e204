"""What every target of projections must do: move offsets with the handler's work, keep dead letters, begin again."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from headrace.errors import BadArgument, ProjectionChanged, ProjectionRebuilding, SlotsMoved
from headrace.projection import Delivery, EventFailed, Offsets, Target, current_delivery
from headrace.tags import TaggedEvent
from headrace.testing.conformance.target_setting import (
    SLOTS,
    Effects,
    OpenTarget,
    TargetSetting,
    event_of,
    id_in_slot,
    letter,
    only,
)

__all__ = ["TargetConformance"]

NOTHING: Offsets = dict.fromkeys(range(SLOTS))


class Moving(TargetSetting):
    """The tests of offsets and of the handler's work."""

    async def test_a_new_projection_has_handled_nothing(self, target: Target) -> None:
        """Every slot is there, and none has an offset."""
        assert await target.load() == NOTHING

    async def test_a_batch_is_handled_and_its_slots_move(
        self, target: Target, another: OpenTarget, effects: Effects
    ) -> None:
        """The events have their effects in order, and another worker finds the slots at the end of the batch."""
        events = [event_of(1, 1, at=10), event_of(2, 1, at=11), event_of(1, 2, at=12)]
        to = events[-1].tag_offset
        await target.handle(events, await target.load(), to)
        assert await effects.seen() == [(event.id, event.seq_nr) for event in events]
        assert await (await another()).load() == dict.fromkeys(range(SLOTS), to)

    async def test_only_the_given_slots_move(self, target: Target, another: OpenTarget) -> None:
        """A worker that has two of the slots leaves those of the others alone."""
        event = event_of(1, 1, at=10)
        await target.handle([event], only(await target.load(), 1, 3), event.tag_offset)
        assert await (await another()).load() == {**NOTHING, 1: event.tag_offset, 3: event.tag_offset}

    async def test_a_batch_without_events_moves_the_slots(self, target: Target, effects: Effects) -> None:
        """Events of other workers' journals are passed by moving alone."""
        to = event_of(0, 1, at=10).tag_offset
        await target.handle([], await target.load(), to)
        assert await target.load() == dict.fromkeys(range(SLOTS), to)
        assert await effects.seen() == []

    async def test_no_slot_moves_back(self, target: Target) -> None:
        """A slot that is further on than the end of a batch stays there, also if one of its events was found late."""
        late, early, later = event_of(1, 1, at=9), event_of(0, 1, at=10), event_of(1, 2, at=20)
        await target.handle([later], only(await target.load(), 1), later.tag_offset)
        await target.handle([late, early], await target.load(), early.tag_offset)
        assert await target.load() == {**dict.fromkeys(range(SLOTS), early.tag_offset), 1: later.tag_offset}

    async def test_a_worker_that_was_overtaken_is_refused(
        self, target: Target, another: OpenTarget, effects: Effects
    ) -> None:
        """Its batch has no effect and moves nothing, whether it holds events or not."""
        known, rival = await target.load(), await another()
        first, second = event_of(1, 1, at=10), event_of(1, 2, at=11)
        await rival.handle([first], await rival.load(), first.tag_offset)
        for events in ([first, second], []):
            with pytest.raises(SlotsMoved):
                await target.handle(events, known, second.tag_offset)
        assert await effects.seen() == [(first.id, 1)]
        assert await target.load() == dict.fromkeys(range(SLOTS), first.tag_offset)

    async def test_of_two_workers_at_once_one_is_refused(
        self, target: Target, another: OpenTarget, effects: Effects
    ) -> None:
        """Two workers that know the same offsets handle a batch at the same time: its events have one effect each."""
        rival = await another()
        events = [event_of(1, 1, at=10), event_of(2, 1, at=11)]
        calls = [each.handle(events, await each.load(), events[-1].tag_offset) for each in (target, rival)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "SlotsMoved"], outcomes
        assert await effects.seen() == [(event.id, event.seq_nr) for event in events]

    async def test_projections_do_not_touch_one_another(self, target: Target, another: OpenTarget) -> None:
        """One that has another name has offsets and letters of its own, also if only upper and lower case differ."""
        event = event_of(1, 1, at=10)
        unique = uuid.uuid4().hex[:12]
        names = [await another(name=f"{name}-{unique}") for name in ("totals", "TOTALS", "total")]
        await names[0].bury(letter(event), await names[0].load(), event.tag_offset)
        for other in (target, *names[1:]):
            assert await other.load() == NOTHING
            assert list(await other.letters.all()) == []

    async def test_other_slots_are_refused(self, target: Target, another: OpenTarget) -> None:
        """The number of slots is fixed once a projection has run."""
        event = event_of(1, 1, at=10)
        await target.handle([event], await target.load(), event.tag_offset)
        with pytest.raises(BadArgument, match="slots"):
            await (await another(slots=SLOTS + 1)).load()

    async def test_another_tag_is_refused_until_it_begins_again(
        self, target: Target, another: OpenTarget, effects: Effects
    ) -> None:
        """Offsets of one tag mean nothing for another; a worker of the old tag then moves nothing any more."""
        event = event_of(1, 1, at=10)
        known = await target.load()
        await target.handle([], known, event.tag_offset)
        changed = await another(tag="refunded")
        with pytest.raises(ProjectionChanged, match="refunded"):
            await changed.load()
        await changed.begin_again(None)
        assert await changed.load() == NOTHING
        with pytest.raises(SlotsMoved):
            await target.handle([event], known, event.tag_offset)
        assert await effects.seen() == []


class Failing(TargetSetting):
    """The tests of handlers that raise, and of what they are told."""

    async def test_a_handler_that_raises_stops_the_batch_before_its_event(
        self, another: OpenTarget, effects: Effects
    ) -> None:
        """EventFailed has the event's index. With transactions nothing was done; without, what came before is kept."""
        events = [event_of(1, seq_nr, at=10 + seq_nr) for seq_nr in (1, 2, 3)]
        target = await another(handler=_failing_at(2, effects))
        with pytest.raises(EventFailed) as failed:
            await target.handle(events, await target.load(), events[-1].tag_offset)
        assert failed.value.index == 1
        assert isinstance(failed.value.error, ValueError)
        offsets, seen = await target.load(), await effects.seen()
        if target.is_transactional:
            assert (offsets, seen) == (NOTHING, [])
        else:
            assert (offsets[1], seen) == (events[0].tag_offset, [(events[0].id, 1)])

    async def test_a_group_is_handled_by_one_call(self, another: OpenTarget, effects: Effects) -> None:
        """A grouped handler gets a list; if it raises, no index is known and no slot has moved."""
        calls: list[list[int]] = []

        def handle(*arguments: Any) -> None:  # noqa: ANN401
            group: list[TaggedEvent] = arguments[-1]
            calls.append([event.seq_nr for event in group])
            if len(calls) == 1:
                raise ValueError("not this time")

        events = [event_of(1, seq_nr, at=10 + seq_nr) for seq_nr in (1, 2)]
        target = await another(handler=handle, grouped=True)
        with pytest.raises(EventFailed) as failed:
            await target.handle(events, await target.load(), events[-1].tag_offset)
        assert failed.value.index is None
        assert await target.load() == NOTHING
        await target.handle(events, await target.load(), events[-1].tag_offset)
        assert calls == [[1, 2], [1, 2]]

    async def test_handlers_learn_how_an_event_comes(self, another: OpenTarget) -> None:
        """The attempt is what the caller says; what was handled before a rebuild, and nothing above, is a replay."""
        told: list[Delivery] = []
        target = await another(handler=lambda *_: told.append(current_delivery()))
        first, second = event_of(1, 1, at=10), event_of(1, 2, at=11)
        await target.handle([first], await target.load(), first.tag_offset, attempt=3)
        await target.begin_again(None)
        await target.handle([first, second], await target.load(), second.tag_offset)
        await target.put({1: None})
        await target.handle([second], await target.load(), second.tag_offset)
        assert told == [Delivery(False, 3), Delivery(True, 1), Delivery(False, 1), Delivery(True, 1)]


class SettingAside(TargetSetting):
    """The tests of dead letters."""

    async def test_a_letter_is_kept_and_the_slots_move(self, target: Target, another: OpenTarget) -> None:
        """Another worker finds the letter, and the slots behind its event."""
        event = event_of(1, 1, at=10)
        await target.bury(letter(event), await target.load(), event.tag_offset)
        other = await another()
        assert list(await other.letters.all()) == [letter(event)]
        assert await other.load() == dict.fromkeys(range(SLOTS), event.tag_offset)

    async def test_a_worker_that_was_overtaken_moves_nothing_by_a_letter(
        self, target: Target, another: OpenTarget
    ) -> None:
        """SlotsMoved; with transactions the letter is not stored either."""
        known, rival = await target.load(), await another()
        first, second = event_of(1, 1, at=10), event_of(1, 2, at=11)
        await rival.handle([first], await rival.load(), first.tag_offset)
        with pytest.raises(SlotsMoved):
            await target.bury(letter(second), known, second.tag_offset)
        assert await target.load() == dict.fromkeys(range(SLOTS), first.tag_offset)
        if target.is_transactional:
            assert list(await target.letters.all()) == []

    async def test_letters_come_in_the_order_of_their_events(self, target: Target) -> None:
        """One letter for each event, however often it is stored: the last one counts."""
        events = [event_of(slot, 1, at=10 + slot) for slot in (2, 0, 1)]
        for event in events:
            await target.bury(letter(event), only(await target.load(), event.tag_offset.offset - 10), event.tag_offset)
        again = letter(events[0], attempts=5)
        await target.bury(again, await target.load(), events[0].tag_offset)
        assert list(await target.letters.all()) == [letter(events[1]), letter(events[2]), again]

    async def test_letters_are_removed_once(self, target: Target) -> None:
        """The answer is how many there were."""
        kept, gone = event_of(1, 1, at=10), event_of(1, 2, at=11)
        for event in (kept, gone):
            await target.bury(letter(event), await target.load(), event.tag_offset)
        assert await target.letters.remove([letter(gone)]) == 1
        assert await target.letters.remove([letter(gone)]) == 0
        assert list(await target.letters.all()) == [letter(kept)]

    async def test_a_letter_is_replayed_once(self, another: OpenTarget, effects: Effects) -> None:
        """A handler that still raises keeps the letter; one that does not removes it; then it is gone."""
        event = event_of(1, 1, at=10)
        failing = await another(handler=_failing_at(1, effects))
        await failing.bury(letter(event), await failing.load(), event.tag_offset)
        with pytest.raises(EventFailed):
            await failing.letters.replay(letter(event), event)
        assert list(await failing.letters.all()) == [letter(event)]
        fixed = await another()
        assert await fixed.letters.replay(letter(event), event)
        assert not await fixed.letters.replay(letter(event), event)
        assert await effects.seen() == [(event.id, 1)]
        assert list(await fixed.letters.all()) == []
        assert await fixed.load() == dict.fromkeys(range(SLOTS), event.tag_offset)


class BeginningAgain(TargetSetting):
    """The tests of rebuilds and of offsets that an operator puts."""

    async def test_a_rebuild_takes_everything_back(self, target: Target, another: OpenTarget, effects: Effects) -> None:
        """Effects, offsets and letters go, and a worker that had loaded before is refused."""
        first, second = event_of(1, 1, at=10), event_of(1, 2, at=11)
        await target.handle([first], await target.load(), first.tag_offset)
        await target.bury(letter(second), await target.load(), second.tag_offset)
        known = await target.load()
        await (await another()).begin_again(None)
        third = event_of(1, 3, at=12)
        with pytest.raises(SlotsMoved):
            await target.handle([third], known, third.tag_offset)
        assert await effects.seen() == []
        assert await target.load() == NOTHING
        assert list(await target.letters.all()) == []

    async def test_a_rebuild_from_a_place_keeps_the_letters_up_to_it(self, target: Target) -> None:
        """Letters whose events come again go; that of the place itself and those before stay."""
        events = [event_of(1, seq_nr, at=10 + seq_nr) for seq_nr in (1, 2, 3)]
        for event in events:
            await target.bury(letter(event), await target.load(), event.tag_offset)
        await target.begin_again(events[1].tag_offset)
        assert await target.load() == dict.fromkeys(range(SLOTS), events[1].tag_offset)
        assert list(await target.letters.all()) == [letter(events[0]), letter(events[1])]

    async def test_a_rebuild_that_failed_is_done_again(self, another: OpenTarget, effects: Effects) -> None:
        """A reset that raises leaves the offsets as they were or taken, never at the new place; the next one ends."""

        def reset(*arguments: Any) -> None:  # noqa: ANN401
            raise RuntimeError("the reset failed")

        event = event_of(1, 1, at=10)
        target = await another(reset=reset)
        await target.handle([event], await target.load(), event.tag_offset)
        with pytest.raises(RuntimeError, match="the reset failed"):
            await target.begin_again(None)
        try:
            assert await target.load() == dict.fromkeys(range(SLOTS), event.tag_offset)
        except ProjectionRebuilding:
            assert not target.is_transactional
        await (await another()).begin_again(None)
        assert await target.load() == NOTHING
        assert await effects.seen() == []

    async def test_offsets_are_put_without_touching_the_work(self, target: Target, effects: Effects) -> None:
        """The named slots stand at their new places, the others stay; only letters whose events come again go."""
        one, two = event_of(1, 1, at=10), event_of(2, 1, at=11)
        for event in (one, two):
            await target.bury(letter(event), await target.load(), event.tag_offset)
        handled = event_of(3, 1, at=12)
        await target.handle([handled], await target.load(), handled.tag_offset)
        known = await target.load()
        await target.put({1: None, 2: two.tag_offset})
        assert await target.load() == {**known, 1: None, 2: two.tag_offset}
        assert list(await target.letters.all()) == [letter(two)]
        assert await effects.seen() == [(id_in_slot(3), 1)]
        later = event_of(1, 2, at=13)
        with pytest.raises(SlotsMoved):
            await target.handle([later], known, later.tag_offset)


class TargetConformance(Moving, Failing, SettingAside, BeginningAgain):
    """The whole exam of a projection's target; `make_target` is what a backend overrides."""


def _failing_at(seq_nr: int, effects: Effects) -> Any:  # noqa: ANN401
    def handle(*arguments: Any) -> None:  # noqa: ANN401
        if arguments[-1].seq_nr == seq_nr:
            raise ValueError(f"no {seq_nr}")
        effects.handle(*arguments)

    return handle
