"""Whatever callers give: a typed error and nothing written, or something that can be read back and replicated."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.suites.journal_setting import read, replicate

import headrace
from headrace.app import Headrace
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, Refused
from headrace.journal import UNCHECKED, Journal
from headrace.model import MAX_SEQ_NR, Event, TopicPartition
from headrace.protocol.limits import (
    MAX_EXPIRY,
    MAX_HEADERS_BYTES,
    MAX_ID_BYTES,
    MAX_TAG_BYTES,
    MAX_TAGS,
    MAX_TEXT_BYTES,
    MAX_TIMESTAMP_MS,
    MAX_VALUE_BYTES,
)

AT = TopicPartition("t", 0)

no_texts = st.sampled_from(
    [5, 1.5, True, b"x", bytearray(b"x"), memoryview(b"x"), object(), (), [], {}, uuid.uuid4(), "\ud800", "a\udfff"]
)
no_numbers = st.sampled_from(
    [None, True, False, 1.0, 2.5, float("nan"), float("inf"), "1", b"1", Decimal(1), 1 + 0j, object(), [], (1,), -1]
)
no_seq_nrs = no_numbers | st.sampled_from([0, -(1 << 70), MAX_SEQ_NR + 1, 1 << 5000])
no_ids = no_texts | st.sampled_from([None, "", "x" * (MAX_ID_BYTES + 1), "ключ" * MAX_ID_BYTES])
no_json = st.sampled_from(
    [
        object(),
        float("nan"),
        {"a": [1, {"b": float("inf")}]},
        {"x": None, "y": -float("inf")},
        {"a": "\ud800"},
        {"\ud800": 1},
        {None: 1},
        {(1, 2): 3},
        10**5000,
        msgspec.Raw(b'{"a":'),
        msgspec.Raw(b'"\xff"'),
        {"a": msgspec.Raw(b"")},
    ]
)
no_tags = st.sampled_from(
    [
        None,
        "vip",
        5,
        b"x",
        {"a": 1},
        {"a"},
        iter(("a",)),
        (None,),
        (5,),
        (b"x",),
        ("",),
        ("ok", "\ud800"),
        ("x" * (MAX_TAG_BYTES + 1),),
        tuple(map(str, range(MAX_TAGS + 1))),
        ("\0mine",),
    ]
)
no_events = st.one_of(
    st.sampled_from([None, 5, "events", b"events", {}, {1: Event(1)}, Event(1), object(), (), [], iter(())]),
    st.sampled_from([[None], [1], ["x"], [{"seq_nr": 1}], [(1, "x")], [Event], [Event(1), None]]),
    st.sampled_from([[Event(2), Event(2)], [Event(3), Event(1)], [Event(1, bytes(MAX_VALUE_BYTES))]]),
    no_seq_nrs.map(lambda seq_nr: [Event(seq_nr)]),
    no_tags.map(lambda tags: [Event(1, None, tags)]),
    no_json.map(lambda payload: [Event(1, payload)]),
    st.just([Event(1, "\ud800")]),
)
no_headers = st.sampled_from(
    [
        5,
        "h",
        b"h",
        ["h"],
        [("h", "v")],
        {5: "v"},
        {"h": 5},
        {"h": None},
        {"h": b"v"},
        {"": "v"},
        {"\ud800": "v"},
        {"h": "\ud800"},
        {"headrace.expected": "1"},
        {"journal.action": "{}"},
        {"x" * (MAX_TEXT_BYTES + 1): ""},
        {"h": "x" * (MAX_HEADERS_BYTES + 1)},
        {str(n): "x" * 2000 for n in range(900)},
    ]
)
no_durations = st.sampled_from(
    [
        *(5, 1.5, True, b"1 day", object(), timedelta(0), timedelta(days=-1), timedelta.max),
        *("", "soon", "1", "-1 day", "1 fortnight", "0 s", "99999999999 days", "\ud800", "9" * 400 + " days"),
        MAX_EXPIRY + timedelta(days=1),
    ]
)
no_options = no_texts | st.just("x" * (MAX_TEXT_BYTES + 1))
no_append_ids = no_options | st.just("")
no_times = st.sampled_from([True, 1.0, "1", b"1", -1, MAX_TIMESTAMP_MS + 1, object(), float("nan"), Decimal(1)])

WRONG: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "append": {
        "id_": no_ids,
        "events": no_events,
        "expected": no_numbers.filter(lambda given: given is not None) | st.sampled_from([MAX_SEQ_NR + 1, 1 << 5000]),
        "append_id": no_append_ids,
        "attempt": no_texts | st.sampled_from(["", "{}", "null", "[" * 5000, '{"topic":"t"}']),
        "metadata": no_json,
        "payload_metadata": no_json,
        "headers": no_headers,
        "expire_after": no_durations,
        "origin": no_options,
        "version": no_options,
    },
    "append_next": {
        "id_": no_ids,
        "payloads": st.sampled_from([None, 5, "x", b"x", {}, (), [], [Event(1)], [object()], [float("nan")]]),
        "tags": no_tags,
    },
    "prepare": {"id_": no_ids},
    "read": {
        "id_": no_ids,
        "from_seq_nr": no_numbers | st.just(0),
        "to_seq_nr": no_numbers.filter(lambda given: given is not None) | st.just(0),
    },
    "pointer": {"id_": no_ids},
    "delete": {"id_": no_ids, "to": no_seq_nrs},
    "purge": {"id_": no_ids},
    "mark": {"id_": no_ids, "mark_id": no_options | st.none()},
    "history": {"id_": no_ids},
    "snapshots.save": {
        "id_": no_ids,
        "seq_nr": no_seq_nrs,
        "payload": no_json | st.sampled_from(["\ud800", bytes(MAX_VALUE_BYTES + 1)]),
        "timestamp_ms": no_times,
    },
    "snapshots.load": {"id_": no_ids, "max_seq_nr": no_numbers.filter(bool), "max_timestamp_ms": no_times},
    "snapshots.delete": {"id_": no_ids, "max_seq_nr": no_numbers.filter(bool)},
}
RIGHT: dict[str, dict[str, Any]] = {
    "append": {"id_": "k", "events": [Event(2, "x")]},
    "append_next": {"id_": "k", "payloads": ["x"]},
    "delete": {"id_": "k", "to": 1},
    "mark": {"id_": "k", "mark_id": "m"},
    "snapshots.save": {"id_": "k", "seq_nr": 1, "payload": {"a": 1}},
}


class Here:
    """A journal of one event, on a loop of its own."""

    def __init__(self, hr: Headrace, runner: asyncio.Runner) -> None:
        self.hr = hr
        self.run = runner.run
        self.journal = hr.journal("t", partitions=1)
        self.run(self.journal.append("k", [Event(1)]))

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call it to its end."""
        call: Callable[..., Any] = self.journal
        for part in name.split("."):
            call = getattr(call, part)
        return self.run(_to_the_end(call, arguments))

    async def written(self) -> tuple[object, ...]:
        """Return what there is: the log's end, and the snapshots."""
        return await self.hr.log.bounds(AT), await self.hr.store.snapshots.load("t", "k")


async def _to_the_end(call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    called = call(**arguments)
    if isinstance(called, AsyncIterator):
        return [item async for item in called]
    return await called


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        given = {"log": {"embedded": {"fsync": False}}, "store": {"embedded": {"fsync": False}}}
        connecting = headrace.connect(
            f"embedded:{tmp_path_factory.mktemp('data')}", settings=HeadraceSettings.model_validate(given)
        )
        hr = runner.run(connecting.__aenter__())
        stack.callback(lambda: runner.run(connecting.__aexit__(None, None, None)))
        yield Here(hr, runner)


@pytest.mark.parametrize("name", WRONG)
def test_every_call_can_be_called(here: Here, name: str) -> None:
    """The arguments that the next test takes one by one and makes wrong are right."""
    here.call(name, RIGHT.get(name, {"id_": "k"}))
    here.run(here.journal.purge("k"))
    here.run(here.journal.append("k", [Event(1)]))


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name in WRONG for argument in WRONG[name]])
def test_a_wrong_argument_is_refused_and_nothing_is_written(here: Here, name: str, argument: str) -> None:
    """FJ4: of every public call, for every argument: wrong types, sizes and encodings are a Refused of ours."""

    @settings(max_examples=40, deadline=None, database=None)
    @given(WRONG[name][argument])
    def check(wrong: object) -> None:
        before = here.run(here.written())
        with pytest.raises(Refused) as refused:
            here.call(name, {**RIGHT.get(name, {"id_": "k"}), argument: wrong})
        assert len(str(refused.value)) < 2000
        assert here.run(here.written()) == before

    check()


@pytest.mark.parametrize(
    "arguments",
    [{"topic": topic} for topic in (None, 5, b"t", "", "a b", "x" * 250, "ключ", "..", ["t"])]
    + [{"partitions": count} for count in (0, -1, True, 1.0, "1")]
    + [{"origin": origin} for origin in (5, b"x", "\ud800", "x" * (MAX_TEXT_BYTES + 1))],
    ids=lambda arguments: f"{next(iter(arguments))}={next(iter(arguments.values()))!r:.20}",
)
def test_a_journal_of_wrong_arguments_is_refused(here: Here, arguments: dict[str, Any]) -> None:
    """FJ4: names that no topic has, numbers of partitions that are none, origins that are no text."""
    with pytest.raises(BadArgument):
        here.hr.journal(**{"topic": "t", **arguments})


class Tag(StrEnum):
    VIP = "vip"


class Text(str):
    __slots__ = ()


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 80), 1 << 80),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["\ud800", "\0", 10**4000, b"bytes", Decimal("1.5"), Text("text"), Tag.VIP, object(), uuid.uuid4()]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3),
    max_leaves=6,
)
tags = st.lists(st.text(max_size=3) | st.sampled_from([Tag.VIP, Text("sub"), "\0x", "\ud800", 5]), max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(anything, tags | tags.map(tuple)), min_size=1, max_size=2),
    st.none() | anything,
    st.none() | anything,
    st.none()
    | st.dictionaries(st.text(max_size=3) | st.just(Text("h")), st.text(max_size=3) | st.just(Tag.VIP), max_size=2),
    st.sampled_from([UNCHECKED, None, 0]),
    st.none() | st.text(max_size=3),
)
def test_what_is_taken_can_be_read_and_replicated(
    here: Here,
    payloads: list[tuple[Any, Any]],
    metadata: Any,
    payload_metadata: Any,
    headers: dict[str, str] | None,
    expected: Any,
    append_id: str | None,
) -> None:
    """FJ4: an append of anything is refused with nothing written, or its journal reads the same from log and store."""
    here.run(_append_and_read(here, payloads, metadata, payload_metadata, headers, expected, append_id))


async def _append_and_read(
    here: Here,
    payloads: list[tuple[Any, Any]],
    metadata: Any,
    payload_metadata: Any,
    headers: dict[str, str] | None,
    expected: Any,
    append_id: str | None,
) -> None:
    id_, before = uuid.uuid4().hex, await here.written()
    events = [Event(n, payload, tags) for n, (payload, tags) in enumerate(payloads, 1)]
    options = {"metadata": metadata, "payload_metadata": payload_metadata, "headers": headers}
    try:
        await here.journal.append(id_, iter(events), expected=expected, append_id=append_id, **options)
    except Refused:
        assert await here.written() == before
        return
    from_log = await read(here.journal, id_)
    await replicate(here.hr.log, here.hr.store, "t")
    assert await read(here.journal, id_) == from_log
    assert [event.tags for event in from_log] == [tuple(event.tags) for event in events]
    assert [type(tag) for event in from_log for tag in event.tags] == [str for event in events for _ in event.tags]


async def test_any_iterable_of_events_is_an_append(tmp_path: Path) -> None:
    """FJ4: a generator, a tuple, a dict's values; they are taken once, before anything else happens."""
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        journal: Journal = hr.journal("t")
        await journal.append("a", (Event(n) for n in (1, 2)))
        await journal.append("a", {"x": Event(3), "y": Event(4)}.values())
        await journal.append("a", map(Event, (5, 6)), expected=4, append_id="a")
        assert [event.seq_nr async for event in journal.read("a")] == [1, 2, 3, 4, 5, 6]
