"""Appends without options are written by a shorter way: the same records, the same answers and the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from tests.suites.journal_setting import records_of

import headrace
from headrace.app import Headrace
from headrace.errors import BadArgument, HeadraceError, WrongSeqNr
from headrace.journal import Journal
from headrace.journal.append import AppendOptions, JournalWriter, new_append
from headrace.journal.topology import PartitionEnd, Route, Routed
from headrace.model import Event, TopicPartition
from headrace.protocol.limits import MAX_VALUE_BYTES

AT = TopicPartition("t", 3)


class Known:
    """A topology that knows the route of every key."""

    is_claimed = False

    def routed(self, _id: str) -> Routed:
        return Routed(Route(AT, 0), 0.0, PartitionEnd())


@settings(deadline=None)
@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=30)), min_size=1, max_size=4),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
)
def test_the_record_is_that_of_the_general_way(id_: str, steps: list[tuple[int, bytes]], origin: str | None) -> None:
    """Whatever id, numbers, payloads and origin: byte for byte."""
    events = [Event(sum(step for step, _ in steps[: n + 1]), payload) for n, (_, payload) in enumerate(steps)]
    nothing: Any = None
    found = JournalWriter(nothing, Known(), nothing).plain_record(id_, events, origin)  # type: ignore[arg-type]
    assert found is not None
    assert found[0] == new_append(events, AppendOptions(origin=origin)).record(AT, id_)


@pytest.fixture
async def hr(tmp_path: Path) -> AsyncIterator[Headrace]:
    async with headrace.connect(f"embedded:{tmp_path}") as opened:
        yield opened


APPENDS: Sequence[tuple[str, list[Event]]] = [
    ("a", [Event(1, b"x")]),
    ("a", [Event(2, b"y"), Event(4, b"")]),
    ("ä", [Event(7, b"x")]),
    ("b", [Event(1, b"x", ("tag",))]),
    ("b", [Event(2, "text"), Event(3, b"x")]),
    ("b", [Event(4)]),
    ("a", [Event(4, b"again")]),
    ("a", [Event(5, b"x"), Event(5, b"y")]),
    ("", [Event(1, b"x")]),
    ("a", []),
    ("c", [Event(1, b"x" * (MAX_VALUE_BYTES + 1))]),
    ("a", [Event(5, b"goes on")]),
]


async def outcome(journal: Journal, id_: str, events: list[Event], **options: Any) -> object:
    try:
        position = await journal.append(id_, events, **options)
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"
    return position.partition, position.offset, position.token.count(":")


async def test_answers_and_records_are_those_of_the_general_way(hr: Headrace) -> None:
    """The same appends, plain and with an option that adds nothing; some are refused."""
    plain, general = hr.journal("plain", partitions=2), hr.journal("general", partitions=2)
    for id_, events in APPENDS:
        assert await outcome(plain, id_, events) == await outcome(general, id_, events, headers={})
    for partition in range(2):
        written = [await records_of(hr.log, topic, partition) for topic in ("plain", "general")]
        one, other = [  # the marks of reads have ids of their own
            [(each.offset, each.key, each.value, each.headers if each.value else ()) for each in records]
            for records in written
        ]
        assert one == other


async def test_a_number_that_was_written_is_refused(hr: Headrace) -> None:
    """The instance remembers what the short way wrote; after a purge the numbers begin again."""
    journal = hr.journal("t")
    await journal.append("a", [Event(1, b"x")])
    await journal.append("a", [Event(2, b"x")])
    with pytest.raises(WrongSeqNr):
        await journal.append("a", [Event(2, b"x")])
    await journal.purge("a")
    await journal.append("a", [Event(1, b"y")])
    assert [event.payload async for event in journal.read("a")] == [b"y"]


async def test_each_append_is_timed_once(hr: Headrace) -> None:
    """The metric counts appends that were written and those that failed, and not those that were refused at once."""

    def count() -> float:
        labels = {"topic": "timed", "operation": "append"}
        return REGISTRY.get_sample_value("headrace_journal_operation_seconds_count", labels) or 0.0

    journal = hr.journal("timed")
    for n in range(1, 4):
        await journal.append("a", [Event(n, b"x")])
    with pytest.raises(BadArgument):
        await journal.append("", [Event(1, b"x")])
    assert count() == 3.0
    await hr.log.close()
    with pytest.raises(HeadraceError):
        await journal.append("a", [Event(4, b"x")])
    assert count() == 4.0
