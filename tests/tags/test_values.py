"""Timeuuids, offsets, buckets, numbers and sequences: the pure parts, for any values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import TagSettings
from headrace.errors import BadArgument, TagGap
from headrace.model import TopicPartition
from headrace.protocol.actions import Append
from headrace.protocol.fold import Entry
from headrace.store import EventRow, Place, TagNumber, TagTime, tag_time_of, timeuuid
from headrace.store.rows import LAST_TAG_TIME
from headrace.tags import Bucket, TaggedEvent, TagOffset, after_of, several
from headrace.tags.gaps import Sequences
from headrace.tags.key_states import KeyState
from headrace.tags.registry import TagFacts
from headrace.tags.seams import KnownSeam, Seam
from headrace.tags.several import PlaceWatch
from headrace.tags.write import Numbering

TIMES = st.builds(
    TagTime,
    st.integers(0, 4_000_000_000_000),
    st.integers(0, 9999),
    st.integers(0, (1 << 16) - 1),
    st.integers(0, (1 << 48) - 1),
)
OFFSETS = st.builds(TagOffset.of, TIMES, st.integers(1, 1 << 62), st.integers(1, 1 << 62))


def cassandra_order(timestamp: UUID) -> tuple[int, tuple[int, ...]]:
    """Sort as Cassandra's TimeUUIDType does: by time, then by the low bytes, each signed."""
    signed = tuple(byte - 256 if byte > 127 else byte for byte in timestamp.bytes[8:])
    return timestamp.time, signed


@given(TIMES, TIMES)
def test_timeuuids_sort_as_the_places_do(one: TagTime, two: TagTime) -> None:
    """T40: for any log times, topics, partitions and offsets, in Cassandra's order of timeuuids."""
    first, second = timeuuid(one), timeuuid(two)
    assert (one < two) == (cassandra_order(first) < cassandra_order(second))
    assert first.int >> 76 & 0xF == 1  # what Cassandra asks of a timeuuid


@given(TIMES)
def test_a_timeuuid_tells_its_place(time: TagTime) -> None:
    """T40: a replay writes the same row: nothing is lost or rounded."""
    assert tag_time_of(timeuuid(time)) == time


@pytest.mark.parametrize(
    "time", [TagTime(-1, 0, 0, 0), TagTime(0, 10_000, 0, 0), TagTime(0, 0, 1 << 16, 0), TagTime(0, 0, 0, 1 << 48)]
)
def test_what_no_timeuuid_can_hold_is_refused(time: TagTime) -> None:
    """T40: an error, not another row's key."""
    with pytest.raises(BadArgument):
        timeuuid(time)


@given(OFFSETS, OFFSETS)
def test_offsets_survive_being_stored(one: TagOffset, two: TagOffset) -> None:
    """T5: the text of an offset is read back as it was; the order is that of the events."""
    assert TagOffset.parse(str(one)) == one
    if (one.time, one.number) != (two.time, two.number):  # which names one event
        assert (one < two) == ((one.time, one.number) < (two.time, two.number))


@given(OFFSETS)
def test_a_time_comes_before_all_its_events(offset: TagOffset) -> None:
    """T5: resuming from a time includes the events of that millisecond, and none before."""
    assert TagOffset.at(offset.log_time_ms) < offset
    assert TagOffset.at(offset.log_time_ms + 1) > offset


def test_where_to_start_can_be_said_in_four_ways() -> None:
    """T5: nothing, an offset, its text, a time with its zone."""
    offset = TagOffset(1, 2, 3, 4, 5)
    assert after_of(None) is None
    assert after_of(offset) == after_of("1:2:3:4:5") == offset
    assert after_of(datetime(2026, 1, 1, tzinfo=UTC)) == TagOffset.at(1_767_225_600_000)
    with pytest.raises(BadArgument, match="time zone"):
        after_of(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(BadArgument, match="1970"):
        TagOffset.at(-1)


@pytest.mark.parametrize(
    "wrong",
    [5, True, b"1:2:3:4:5", "1" + "0" * 30 + ":0:0:0:1", "-5:0:0:0:1:1", "1:0:70000:0:1:1", f"1:0:0:{1 << 60}:1:1"],
)
def test_what_can_be_no_offset_is_refused(wrong: Any) -> None:
    """An error that names the argument, before anything is read; also for another type, and beyond every limit."""
    with pytest.raises(BadArgument, match="after"):
        after_of(wrong)


@given(OFFSETS, st.integers(1, 1 << 62))
def test_a_place_covers_its_event_whatever_its_number(offset: TagOffset, number: int) -> None:
    """Views that were lost are written with other numbers; the event is the same, and one with a higher seq_nr not."""
    assert offset.covers(offset._replace(number=number))
    assert not offset.covers(offset._replace(number=number, seq_nr=offset.seq_nr + 1))
    assert offset.covers(offset._replace(log_time_ms=offset.log_time_ms - 1, number=number))


@given(st.sampled_from(Bucket), st.integers(0, 4_000_000_000_000))
def test_a_time_lies_in_its_bucket(bucket: Bucket, time_ms: int) -> None:
    """W4: buckets begin at whole days, hours and minutes of UTC."""
    start = bucket.start_of(time_ms)
    assert start <= time_ms < start + bucket.value
    assert start % bucket.value == 0


def test_the_defaults_are_those_of_the_documentation() -> None:
    """T39: HOUR, 10 s, 5000."""
    settings = TagSettings()
    assert (settings.bucket, settings.gap_timeout_s, settings.gap_limit) == ("HOUR", 10.0, 5000)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sets(st.sampled_from("xyz"))), max_size=15), st.data())
def test_numbers_are_the_same_however_a_batch_is_cut_and_repeated(
    events: list[tuple[str, set[str]]], data: st.DataObject
) -> None:
    """W7, X5, X7: replays from any place, with progress lost or kept, give the rows of one run from the start."""
    rows = [_event(offset, tuple(sorted(tags))) for offset, (_, tags) in enumerate(events)]
    pids = [pid for pid, _ in events]
    numbering = Numbering("t", 0, Bucket.HOUR)
    expected = {pid: numbering.number(pid, _of(rows, pids, pid), {}).rows for pid in "ab"}
    for pid in "ab":
        mine, known, found = _of(rows, pids, pid), {}, {}
        position, losses = 0, data.draw(st.integers(0, 3))
        while position < len(mine):
            start = data.draw(st.integers(0, position))
            end = data.draw(st.integers(position + 1, len(mine)))
            done = numbering.number(pid, mine[start:end], known)
            found |= {(row.tag, row.offset): row for row in done.rows}
            if losses:  # the progress was lost, and the next try begins at or before here
                losses -= 1
                continue
            known |= done.numbers
            position = end
        assert sorted(found.values(), key=_key) == sorted(expected[pid], key=_key)


def test_numbers_go_on_after_progress_by_place() -> None:
    """W7, X7: what lies at or below the known place was numbered; a seq_nr that starts anew changes nothing."""
    known = TagNumber(topic="t", pid="a", tag="x", seq_nr=100, number=10, generation=0, offset=7)
    numbering = Numbering("t", 0, Bucket.HOUR)
    events = [_event(7, ("x",)), _event(8, ("x", "y", "x"), seq_nr=1), _event(2, ("x",), generation=1)]
    done = numbering.number("a", events, {"x": known})
    assert [(row.tag, row.offset, row.number) for row in done.rows] == [("x", 8, 11), ("y", 8, 1), ("x", 2, 12)]
    assert done.numbers["x"].place == Place(1, 2)


def test_sequences_say_what_is_missing() -> None:
    """T10, T14, T16: from the start of time a pid begins with 1; else with what is seen first, or was scanned."""
    from_start, resumed, scanned = Sequences(from_start=True), Sequences(from_start=False), Sequences(from_start=False)
    third = _tagged(3)
    missing = from_start.missing(third)
    assert missing is not None
    assert (missing.first, missing.size) == (1, 2)
    assert resumed.missing(third) is None
    scanned.expect({("t", "a"): 2})
    missing = scanned.missing(third)
    assert missing is not None
    assert (missing.first, missing.size) == (2, 1)
    resumed.saw(third)
    assert resumed.missing(_tagged(4)) is None


def test_only_what_was_given_ahead_of_its_turn_is_left_out() -> None:
    """FT1, FT5: a number that is not above the last is left out if a search gave that event before; else it is new."""
    sequences = Sequences(from_start=False)
    third, late = _tagged(3), _tagged(2)
    sequences.expect({("t", "a"): 3})
    assert not sequences.was_given_ahead(late)
    assert sequences.missing(late) is None
    sequences.saw(late)
    assert sequences.follows(third)
    stray = _tagged(9)
    sequences.saw(stray, before=third)
    assert sequences.was_given_ahead(stray)
    assert not sequences.was_given_ahead(stray)


def test_an_offset_finds_its_event_among_other_numbers() -> None:
    """FT5: by its seq_nr; what was given of a record stays given, the rest is not. Older texts keep their number."""
    offset = TagOffset(1, 0, 0, 4, 6, 12)
    assert offset.renumbered([(5, 11), (6, 12), (7, 13)]) == offset
    assert offset.renumbered([(1, 11), (2, 12), (3, 13)]).number == 2
    assert offset.renumbered([(8, 13), (9, 14)]).number == 7
    assert offset.renumbered([(1, 11)]).number == 1
    assert offset.renumbered([]) == offset
    old = TagOffset.parse("1:0:0:4:6")
    assert old.renumbered([(1, 11), (2, 12)]) == old
    assert str(old) == "1:0:0:4:6"
    assert not offset > old
    assert TagOffset(1, 0, 0, 4, 7, 13) > old


def test_a_seam_leaves_to_the_log_what_lies_above_it() -> None:
    """T34: a row whose partition's replicated offset has not passed it is the log's to give; so is an unknown one."""
    known = KnownSeam(TopicPartition("t", 0), 0, Place(1, 5), 100)
    seam = Seam({known.at: known}, {}, TagFacts("HOUR", "e"))
    numbering = Numbering("t", 0, Bucket.HOUR)
    for offset, generation, is_covered in ((5, 1, True), (6, 1, False), (9, 0, True), (0, 2, False)):
        row = numbering.row("a", _event(offset, ("x",), generation=generation), "x", 1)
        assert seam.covers(row) is is_covered
    assert seam.horizon == TagTime(100, 0, 0, 6)
    assert not Seam({}, {}, TagFacts("HOUR", "e")).covers(row)
    assert Seam({known.at: known}, {}, TagFacts("HOUR", "e"), frozenset({"t"})).horizon is None


def test_what_the_numbering_has_counted_is_not_counted_again() -> None:
    """X5: a key's head is folded on; events that its stored number covers already don't raise it once more."""
    state = KeyState("x", None, 2, Place(0, 6))
    entries = [_entry(offset, seq_nr) for seq_nr, offset in ((1, 5), (2, 6), (3, 7), (4, 8))]
    state.carry_on(entries, {entry.place: 1 for entry in entries})
    assert state.number == 4
    assert state.meta is not None
    assert state.meta.seq_nr == 4


def _entry(offset: int, seq_nr: int) -> Entry:
    append = Append(first=seq_nr, last=seq_nr, payload_format="json")
    return Entry(topic="t", id="a", generation=0, partition=0, offset=offset, timestamp_ms=1, action=append)


def _event(offset: int, tags: tuple[str, ...], *, seq_nr: int | None = None, generation: int = 0) -> EventRow:
    return EventRow(
        segment=0,
        seq_nr=offset + 1 if seq_nr is None else seq_nr,
        generation=generation,
        partition=0,
        offset=offset,
        log_time_ms=1_000 + offset,
        timestamp_ms=1_000,
        record_id=UUID(int=1),
        tags=tags,
    )


def _of(rows: list[EventRow], pids: list[str], pid: str) -> list[EventRow]:
    return [row for row, owner in zip(rows, pids, strict=True) if owner == pid]


def _key(row: object) -> tuple[str, int]:
    return row.tag, row.offset  # type: ignore[attr-defined]


def _tagged(number: int) -> TaggedEvent:
    offset = TagOffset(number, 0, 0, number, number)
    return TaggedEvent(
        number, None, (), 0, number, number, tag="x", topic="t", id="a", number=number, tag_offset=offset
    )


def test_an_event_that_is_found_late_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """T10: a missing row that was found may be of an event that another tag's query has given; who can't know fails."""
    monkeypatch.setattr(several, "_REMEMBERED", 3)

    def event_of(n: int) -> TaggedEvent:
        offset = TagOffset(100, 0, 0, n, n, n)
        return TaggedEvent(n, None, ("x",), 0, n, 100, tag="x", topic="t", id="a", number=n, tag_offset=offset)

    queue = {"x": [event_of(1), event_of(2), event_of(5), event_of(4)], "y": [event_of(3), event_of(4), event_of(6)]}
    assert asyncio.run(_merged(queue)) == [1, 2, 3, 4, 5, 6]
    late = {"x": [event_of(n) for n in (2, 3, 4, 5, 6, 1)]}
    with pytest.raises(TagGap, match="expected 1"):
        asyncio.run(_merged(late))


async def _merged(queue: dict[str, list[TaggedEvent]]) -> list[int]:
    """Merge queries that give these events, and then have passed all places."""

    async def query(tag: str, _: TagOffset | None, watch: PlaceWatch) -> AsyncGenerator[TaggedEvent, None]:
        for event in queue[tag]:
            yield event
        watch.report_passed(LAST_TAG_TIME)
        watch.report_spent()
        await asyncio.Event().wait()

    async with asyncio.timeout(5):
        return [event.seq_nr async for event in several.merge_tags(tuple(queue), None, query)]
