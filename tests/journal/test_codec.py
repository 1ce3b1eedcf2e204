"""The bytes of journal records: pinned by hand, round-tripped at random, and never a crash for what is malformed."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgument, JournalHeld
from headrace.journal.append import AppendOptions, json_event_record, new_append, record_of
from headrace.model import MAX_SEQ_NR, Event, Headers, Record, TopicPartition
from headrace.protocol.actions import Action, Append, Delete, Mark, Poison, Purge, duration_of, duration_text
from headrace.protocol.entries import bare_entries, entry_of
from headrace.protocol.events import events_of_record, events_of_records
from headrace.protocol.headers import append_headers, decode_action, encode_action, user_headers
from headrace.protocol.limits import check_events
from headrace.protocol.payloads import (
    MAX_JSON_DEPTH,
    AppendValue,
    Encoded,
    binary_payload,
    checked_depth,
    decode_payload,
    decode_value,
    encode_binary_events,
    encode_events,
    encode_value,
)
from headrace.protocol.payloads import binary_event as one_binary_event
from headrace.store import Place

AT = TopicPartition("t", 0)


def record(headers: Headers, key: bytes | None = b"k", value: bytes | None = None) -> Record:
    return Record("t", 0, 5, 1_700_000_000_000, key, value, headers)


def action_of(text: str, *more: tuple[str, bytes | None]) -> Action | None:
    return decode_action(record((("journal.action", text.encode()), *more)))


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (
            Append(first=1, last=5, payload_format="json"),
            '{"append":{"range":{"from":1,"to":5},"payloadType":"json","metadata":{}}}',
        ),
        (
            Append(first=2, last=2, payload_format="binary", metadata=b'{"a":[1]}', origin="o", version="v"),
            (
                '{"append":{"range":{"from":2,"to":2},"origin":"o","version":"v","payloadType":"binary",'
                '"metadata":{"data":{"a":[1]}}}}'
            ),
        ),
        (Mark(id="x"), '{"mark":{"id":"x"}}'),
        (Mark(id="x", origin="o", version="v"), '{"mark":{"id":"x","origin":"o","version":"v"}}'),
        (Delete(to=3), '{"delete":{"to":3}}'),
        (Delete(to=3, origin="o"), '{"delete":{"to":3,"origin":"o"}}'),
        (Purge(), '{"purge":{}}'),
        (Purge(origin="o", version="v"), '{"purge":{"origin":"o","version":"v"}}'),
    ],
)
def test_headers_are_written_byte_for_byte_and_read_back(action: Any, text: str) -> None:
    """The header of each action is exactly this, and comes back as the action."""
    assert encode_action(action) == (("journal.action", text.encode()),)
    assert action_of(text) == action


def test_the_order_of_formats_is_read_too() -> None:
    """JSON objects have no order: the fields as the format lists them mean the same."""
    text = (
        '{"append":{"range":{"from":1,"to":5},"payloadType":"json","metadata":{"data":{"x":1}},'
        '"origin":"o","version":"1"}}'
    )
    expected = Append(first=1, last=5, payload_format="json", metadata=b'{"x":1}', origin="o", version="1")
    assert action_of(text) == expected


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (
            '{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}',
            Append(first=1, last=1, payload_format="json"),
        ),
        (
            '{"append":{"range":{"from":1,"to":1},"payloadType":"binary","metadata":{"data":null}}}',
            Append(first=1, last=1, payload_format="binary"),
        ),
        (
            '{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":null,"origin":null,"version":null}}',
            Append(first=1, last=1, payload_format="json"),
        ),
        (
            '{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":{"id":"x","data":{"a":1}}}}',
            Append(first=1, last=1, payload_format="json", metadata=b'{"a":1}'),
        ),
        ('{"mark":{"id":"x","origin":null}}', Mark(id="x")),
        ('{"delete":{"to":9223372036854775807}}', Delete(to=MAX_SEQ_NR)),
        ('{"purge":{"later":1}}', Purge()),
    ],
)
def test_older_and_newer_headers_are_understood(text: str, action: Action) -> None:
    """An append without metadata has empty metadata; fields nobody knows are passed over."""
    assert action_of(text) == action


def test_what_headrace_adds_stands_in_headers_of_its_own() -> None:
    """expected, append-id, append-digest and since; generation and segment-size; incarnation; last-append."""
    append = Append(first=1, last=1, payload_format="json", expected=0, append_id="a", digest="d", since=Place(0, 7))
    assert encode_action(append)[1:] == (
        ("headrace.expected", b"0"),
        ("headrace.append-id", b"a"),
        ("headrace.append-digest", b"d"),
        ("headrace.since", b"0:7"),
    )
    mark = Mark(id="x", generation=1, segment_size=2)
    purge = Purge(last_append=Place(1, 20))
    assert encode_action(purge)[1:] == (("headrace.last-append", b"1:20"),)
    delete = Delete(to=3, incarnation=UUID(int=5))
    assert encode_action(delete)[1:] == (("headrace.incarnation", b"00000000-0000-0000-0000-000000000005"),)
    for action in (append, mark, purge, delete):
        assert decode_action(record(encode_action(action))) == action


def test_user_headers_stand_beside_and_come_back() -> None:
    """Text to text, in any language; names of ours are refused."""
    headers = encode_action(Purge(), {"ключ": "значение", "b": ""})
    assert headers[1:] == (("ключ", "значение".encode()), ("b", b""))
    assert user_headers(record(headers)) == {"ключ": "значение", "b": ""}
    for taken in ("journal.action", "headrace.expected"):
        with pytest.raises(BadArgument, match=taken):
            encode_action(Purge(), {taken: "x"})


def test_records_of_others_are_no_actions() -> None:
    """No key, no header, an unknown kind: nobody's; the record is passed over."""
    assert decode_action(record((("journal.action", b'{"purge":{}}'),), key=None)) is None
    assert decode_action(record((("other", b"x"),))) is None
    assert decode_action(record(())) is None
    assert decode_action(record((("journal.action", None),))) is None
    assert action_of('{"compact":{"to":3}}') is None


def test_a_key_that_is_no_text_is_nobodys() -> None:
    """An id is UTF-8; no client could ask for another, and no table could hold it."""
    assert decode_action(record((("journal.action", b'{"purge":{}}'),), key=b"\xff\xfe")) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"purge"',
        '{"append":{}}',
        '{"append":{"range":{"from":0,"to":1},"payloadType":"json"}}',
        '{"append":{"range":{"from":3,"to":2},"payloadType":"json"}}',
        '{"append":{"range":{"from":1,"to":9223372036854775808},"payloadType":"json"}}',
        '{"append":{"range":{"from":1,"to":99999999999999999999999},"payloadType":"json"}}',
        '{"append":{"range":{"from":1,"to":1},"payloadType":"avro"}}',
        '{"append":{"range":{"from":"1","to":1},"payloadType":"json"}}',
        '{"mark":{}}',
        '{"delete":{}}',
        '{"delete":{"to":0}}',
        '{"delete":{"to":-1}}',
        '{"delete":{"to":9223372036854775808}}',
        '{"delete":{"to":1.5}}',
        '{"purge":[]}',
        '{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":{"data":' + "[" * 100_000 + "}}",
    ],
)
def test_a_malformed_header_is_poison(text: str) -> None:
    """It names the reason; nothing is raised."""
    found = action_of(text)
    assert isinstance(found, Poison)
    assert found.reason


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ('{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', "headrace.expected", b"x"),
        ('{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', "headrace.since", b""),
        ('{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', "headrace.append-id", b"\xff"),
        ('{"mark":{"id":"x"}}', "headrace.segment-size", b"0"),
        ('{"mark":{"id":"x"}}', "headrace.segment-size", b"-3"),
        ('{"mark":{"id":"x"}}', "headrace.segment-size", b"99999999999"),
        ('{"mark":{"id":"x"}}', "headrace.generation", b"one"),
        ('{"purge":{}}', "headrace.last-append", b"5"),
        ('{"purge":{}}', "headrace.last-append", b"a:b"),
    ],
)
def test_a_malformed_header_of_ours_is_poison(kind: str, name: str, value: bytes) -> None:
    """A number that is none, or that no journal could have, stops the key; it is not guessed."""
    assert isinstance(action_of(kind, (name, value)), Poison)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([Event(1)], '{"events":[{"seqNr":1,"tags":[]}],"metadata":{}}'),
        (
            [Event(1, {"a": 1}, ("b", "a"))],
            '{"events":[{"seqNr":1,"tags":["b","a"],"payloadType":"json","payload":{"a":1}}],"metadata":{}}',
        ),
        (
            [Event(7, 'té"xt')],
            '{"events":[{"seqNr":7,"tags":[],"payloadType":"text","payload":"té\\"xt"}],"metadata":{}}',
        ),
        (
            [Event(1, 5), Event(2, [None]), Event(3, False)],
            (
                '{"events":[{"seqNr":1,"tags":[],"payloadType":"json","payload":5},'
                '{"seqNr":2,"tags":[],"payloadType":"json","payload":[null]},'
                '{"seqNr":3,"tags":[],"payloadType":"json","payload":false}],"metadata":{}}'
            ),
        ),
    ],
)
def test_json_values_are_written_byte_for_byte(events: list[Event], text: str) -> None:
    """No binary payload: the value is JSON, exactly this, and comes back."""
    encoded = encode_events(events)
    assert encode_value(AppendValue(encoded)) == ("json", text.encode())
    assert decode_value("json", text.encode()) == AppendValue(encoded)


def test_json_metadata_goes_behind_the_events() -> None:
    """expireAfter and data, as kafka-journal writes them."""
    payloads = AppendValue((Encoded(1),), "1 day", b'{"x":[1,2]}')
    text = '{"events":[{"seqNr":1,"tags":[]}],"metadata":{"expireAfter":"1 day","data":{"x":[1,2]}}}'
    assert encode_value(payloads) == ("json", text.encode())
    assert decode_value("json", text.encode()) == payloads


@pytest.mark.parametrize(
    ("text", "payloads"),
    [
        ('{"events":[{"seqNr":1}]}', AppendValue((Encoded(1),))),
        ('{"events":[{"seqNr":1,"payload":{"a":1}}]}', AppendValue((Encoded(1, (), "json", b'{"a":1}'),))),
        (
            '{"events":[{"seqNr":1,"payloadType":null,"payload":"x"}]}',
            AppendValue((Encoded(1, (), "json", b'"x"'),)),
        ),
        ('{"events":[{"seqNr":1,"payloadType":"json"}],"metadata":{}}', AppendValue((Encoded(1),))),
        ('{"events":[{"seqNr":1,"payloadType":"text","payload":null}],"metadata":null}', AppendValue((Encoded(1),))),
        ('{"events":[{"seqNr":1}],"metadata":{"expireAfter":null,"data":null}}', AppendValue((Encoded(1),))),
        (
            '{"events":[{"seqNr":1}],"metadata":{"expireAfter":90000}}',
            AppendValue((Encoded(1),), "90000 milliseconds"),
        ),
        (
            '{"metadata":{"data":null},"events":[{"tags":["a"],"seqNr":1}]}',
            AppendValue((Encoded(1, ("a",)),)),
        ),
    ],
)
def test_older_json_values_are_understood(text: str, payloads: AppendValue) -> None:
    """No payloadType means json, no payload none, no metadata the older form, a number of expireAfter milliseconds."""
    assert decode_value("json", text.encode()) == payloads


def binary_event(seq_nr: int, tags: bytes, kind: int, payload: bytes) -> bytes:
    body = struct.pack(">qi", seq_nr, len(tags)) + tags + bytes([kind]) + struct.pack(">i", len(payload)) + payload
    return struct.pack(">i", len(body)) + body


BINARY = bytes.fromhex(
    "01"  # version
    "00000004"  # count
    "00000014 0000000000000001 00000000 01 00000003 00ff80"  # binary, no tags
    "0000001c 0000000000000002 0000000b 00000001 61 00000002 c3a9 00 00000000"  # none, tags a and é
    "00000015 0000000000000003 00000000 02 00000004 74727565"  # json, true
    "00000013 0000000000000004 00000000 03 00000002 c3a9"  # text, é
    "7b7d"  # no metadata
)
BINARY_EVENTS = [Event(1, b"\x00\xff\x80"), Event(2, None, ("a", "é")), Event(3, True), Event(4, "é")]


def test_binary_values_are_written_byte_for_byte() -> None:
    """One binary payload makes the value binary: version 1, all four kinds, {} for no metadata."""
    encoded = encode_events(BINARY_EVENTS)
    assert encode_value(AppendValue(encoded)) == ("binary", BINARY)
    assert decode_value("binary", BINARY) == AppendValue(encoded)


def test_binary_metadata_goes_to_the_end() -> None:
    """As JSON, behind the events."""
    payloads = AppendValue((Encoded(1, (), "binary", b"x"),), "1 minute", b"5")
    form, value = encode_value(payloads)
    assert form == "binary"
    assert value.endswith(b'{"expireAfter":"1 minute","data":5}')
    assert decode_value(form, value) == payloads


def test_binary_version_0_has_no_metadata() -> None:
    """The older form ends with the events."""
    value = b"\x00" + struct.pack(">i", 2) + binary_event(1, b"", 1, b"abc") + binary_event(2, b"", 0, b"")
    assert decode_value("binary", value) == AppendValue((Encoded(1, (), "binary", b"abc"), Encoded(2)))


@pytest.mark.parametrize("version", [0, 2, 100])
@pytest.mark.parametrize("behind", [b"", b'{"expireAfter":"1 day"}', b"\xff\x00"])
def test_other_binary_versions_are_read_up_to_their_events(version: int, behind: bytes) -> None:
    """E9: as kafka-journal reads them; what another version has behind the events is not ours to know."""
    value = bytes([version]) + struct.pack(">i", 1) + binary_event(1, b"", 3, b"abc") + behind
    assert decode_value("binary", value) == AppendValue((Encoded(1, (), "text", b"abc"),))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01" + struct.pack(">i", 1),
        b"\x01" + struct.pack(">i", -1) + b"{}",
        b"\x01" + struct.pack(">i", 1) + struct.pack(">i", -4) + b"{}",
        b"\x01" + struct.pack(">i", 1) + struct.pack(">i", 3) + b"abc{}",
        b"\x01" + struct.pack(">i", 1) + binary_event(1, b"", 9, b"") + b"{}",
        b"\x01" + struct.pack(">i", 1) + binary_event(1, struct.pack(">i", 99) + b"a", 0, b"") + b"{}",
        b"\x01" + struct.pack(">i", 1) + binary_event(1, struct.pack(">i", -5) + b"a", 0, b"") + b"{}",
        b"\x01" + struct.pack(">i", 1) + binary_event(1, struct.pack(">i", 1) + b"\xff", 0, b"") + b"{}",
        b"\x01" + struct.pack(">i", 1) + binary_event(1, b"", 1, b"abc"),
        b"\x01" + struct.pack(">i", 1) + binary_event(1, b"", 3, b"\xff") + b"{}",
        b"\x01" + struct.pack(">i", 1) + binary_event(1, b"", 2, b"{") + b"{}",
        b"\x01" + struct.pack(">i", 1) + struct.pack(">iqi", 17, 1, -9) + bytes(5) + b"{}",
        BINARY[:-2],
        BINARY[:40],
    ],
)
def test_a_malformed_binary_value_is_refused(value: bytes) -> None:
    """With a ValueError, whatever is wrong, and never with an endless loop."""
    with pytest.raises(ValueError, match=r"."):
        decode_value("binary", value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"{}",
        b"[]",
        b'{"events":[{"tags":[]}]}',
        b'{"events":[{"seqNr":"1"}]}',
        b'{"events":[{"seqNr":1,"payloadType":"text","payload":5}]}',
        b'{"events":[{"seqNr":1,"payloadType":"binary","payload":"x"}]}',
        b'{"events":[{"seqNr":1,"tags":"vip"}]}',
        b'{"events":[{"seqNr":1,"payload":"\xff"}]}',
        b'{"events":[{"seqNr":1,"payload":' + b"[" * 100_000 + b"}]}",
        b'{"events":[{"seqNr":1,"payload":' + b"[" * 3000 + b"]" * 3000 + b"}]}",
        b'{"events":[{"seqNr":1}],"metadata":{"data":{"a":"\xff"}}}',
        b'{"events":[{"seqNr":1}],"metadata":{"expireAfter":-1}}',
        b'{"events":[{"seqNr":1}],"metadata":{"expireAfter":true}}',
    ],
)
def test_a_malformed_json_value_is_refused(value: bytes | None) -> None:
    """With a ValueError, so that replication holds the key and goes on with the others."""
    with pytest.raises(ValueError, match=r"."):
        decode_value("json", value)


def test_reading_a_value_that_contradicts_its_header_names_the_offset() -> None:
    """A reader of the log refuses what replication would hold."""
    good = record_of(AT, "k", [Event(1), Event(2)], AppendOptions())
    for value, header in (
        (b'{"events":[{"seqNr":1}]}', good.headers),
        (b'{"events":[{"seqNr":1},{"seqNr":1},{"seqNr":2}]}', good.headers),
        (b'{"events":[]}', good.headers),
        (b'{"events":[{"seqNr":1},{"seqNr":2}],"metadata":{"expireAfter":"soon"}}', good.headers),
        (None, good.headers),
    ):
        written = record(header, value=value)
        action = decode_action(written)
        assert isinstance(action, Append)
        with pytest.raises(JournalHeld) as held:
            events_of_record("k", written, action)
        assert held.value.offset == 5


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8")),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
payloads = st.one_of(st.none(), st.binary(max_size=30), texts, json_values)
tags = texts.filter(lambda tag: tag and tag[0] != "\0")
event_lists = st.lists(st.tuples(st.integers(1, 5), payloads, st.lists(tags, max_size=3)), min_size=1, max_size=5).map(
    lambda given: [
        Event(sum(step for step, _, _ in given[: n + 1]), payload, tuple(tags))
        for n, (_, payload, tags) in enumerate(given)
    ]
)


@settings(deadline=None)
@given(
    event_lists,
    st.one_of(st.none(), json_values),
    st.one_of(st.none(), json_values),
    st.one_of(st.none(), st.integers(1, 10**9).map(lambda ms: timedelta(milliseconds=ms))),
    st.dictionaries(
        texts.filter(lambda name: name and not name.startswith(("headrace.", "journal.action"))), texts, max_size=3
    ),
    st.one_of(st.none(), texts),
)
def test_what_is_written_is_read_back(
    events: list[Event],
    metadata: Any,
    payload_metadata: Any,
    expire_after: timedelta | None,
    headers: dict[str, str],
    origin: str | None,
) -> None:
    """Any events, metadata, expiry and headers survive the record."""
    options = AppendOptions(
        metadata=metadata,
        payload_metadata=payload_metadata,
        expire_after=expire_after,
        headers=headers,
        origin=origin,
        version=origin,
    )
    new = record_of(AT, "k", events, options, expected=3)
    written = record(new.headers, new.key, new.value)
    action = decode_action(written)
    assert isinstance(action, Append)
    assert (action.first, action.last, action.expected) == (events[0].seq_nr, events[-1].seq_nr, 3)
    found = events_of_record("k", written, action)
    assert [(e.seq_nr, e.payload, e.tags) for e in found] == [(e.seq_nr, e.payload, e.tags) for e in events]
    for event in found:
        assert (event.metadata, event.payload_metadata, event.headers) == (metadata, payload_metadata, headers)
        assert (event.origin, event.version) == (origin, origin)
        assert (duration_of(event.expire_after) if event.expire_after else None) == expire_after


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["json", "binary"]))
@example(b"\x01\x7f\xff\xff\xff", "binary")
def test_random_bytes_never_crash_the_decoder(value: bytes, form: Any) -> None:
    """They are a value, or a ValueError."""
    with contextlib.suppress(ValueError):
        decode_value(form, value)


@settings(deadline=None)
@given(st.data())
def test_damaged_values_never_crash_the_decoder(data: st.DataObject) -> None:
    """A value with bytes changed or cut off decodes to something that can be shown, or is refused."""
    events = data.draw(event_lists)
    form, value = encode_value(AppendValue(encode_events(events)))
    damaged = bytearray(value[: data.draw(st.integers(0, len(value)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_value(form, bytes(damaged))
    except ValueError:
        return
    for event in decoded.events:
        decode_payload(event.payload_type, event.payload)
        msgspec.json.encode(event.tags)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_random_headers_never_crash_the_decoder(text: bytes) -> None:
    """They are an action, poison, or nobody's."""
    decode_action(record((("journal.action", text),)))


@pytest.mark.parametrize(
    ("events", "offender"),
    [
        ([], "at least one event"),
        ([Event(0)], "0"),
        ([Event(-1)], "-1"),
        ([Event(MAX_SEQ_NR + 1)], str(MAX_SEQ_NR)),
        ([Event(True)], "True"),
        ([Event(1), Event(1)], "above 1"),
        ([Event(2), Event(1)], "above 2"),
        ([Event(1, None, "vip")], "vip"),  # type: ignore[arg-type]
        ([Event(1, None, (5,))], "5"),  # type: ignore[arg-type]
        ([Event(1, None, ("\ud800",))], "tag"),
    ],
)
def test_events_that_could_not_be_read_back_are_refused(events: list[Event], offender: str) -> None:
    """J27: nothing is written that would hold the journal later."""
    with pytest.raises(BadArgument, match=offender):
        check_events(events)


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize("payload", [object(), "\ud800", {"a": {1, object()}}, deep(100_000), deep(3000)])
def test_a_payload_that_no_record_can_carry_is_refused(payload: Any) -> None:
    """J27: with the number of its event."""
    with pytest.raises(BadArgument, match="event 3"):
        encode_events([Event(3, payload)])


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": object()},
        {"metadata": deep(100_000)},
        {"payload_metadata": object()},
        {"headers": {"a": 5}},
        {"headers": {"a": "\ud800"}},
        {"headers": {5: "a"}},
        {"expire_after": "soon"},
        {"expire_after": timedelta(0)},
        {"expire_after": "99999999999999999 days"},
        {"origin": "\ud800"},
    ],
)
def test_options_that_no_record_can_carry_are_refused(options: dict[str, Any]) -> None:
    """J27: whatever goes with the events is checked before it is written."""
    with pytest.raises(BadArgument):
        record_of(AT, "k", [Event(1)], AppendOptions(**options))


@pytest.mark.parametrize(
    ("text", "duration", "written"),
    [
        ("1 day", timedelta(days=1), "1 day"),
        ("24 hours", timedelta(days=1), "1 day"),
        ("90s", timedelta(seconds=90), "90 seconds"),
        ("1 minute", timedelta(minutes=1), "1 minute"),
        ("1500 millis", timedelta(milliseconds=1500), "1500 milliseconds"),
        ("2h", timedelta(hours=2), "2 hours"),
    ],
)
def test_durations_are_scalas(text: str, duration: timedelta, written: str) -> None:
    """A number and a unit, long or short; written in the largest unit that is exact."""
    assert duration_of(text) == duration
    assert duration_text(duration) == written


OPTIONS = st.none() | st.text(max_size=5)
NUMBERS = st.integers(1, MAX_SEQ_NR)


@given(NUMBERS, NUMBERS, st.sampled_from(["json", "binary"]), OPTIONS, OPTIONS, st.none() | st.integers(0, MAX_SEQ_NR))
def test_the_short_way_to_a_header_writes_the_same(
    one: int, other: int, form: Any, origin: str | None, version: str | None, expected: int | None
) -> None:
    """The header of a plain append is the same bytes, whichever way it is made, and comes back the same."""
    first, last = sorted((one, other))
    append = Append(first=first, last=last, payload_format=form, origin=origin, version=version, expected=expected)
    headers = append_headers(first, last, form, origin, version, expected)
    assert headers == encode_action(append)
    for _ in range(2):
        assert decode_action(record(headers)) == append


TAILS = (
    ',"payloadType":"json","metadata":{}}}',
    ',"payloadType":"binary","metadata":{"data":{"a":1}}}}',
    ',"origin":"o","payloadType":"json"}}',
    ',"payloadType":"json","range":{"from":7,"to":9}}}',
    ',"payloadType":"json","r\\u0061nge":{"from":7,"to":9}}}',
    ',"payloadType":"json"},"append":{"range":{"from":7,"to":9}}}',
    ',"payloadType":"json"},"app\\u0065nd":{"range":{"from":7,"to":9}}}',
    ',"payloadType":"json"},"mark":{"id":"x"}}',
    ',"payloadType":"other"}}',
    ',"payloadType":"json"}',
    "}}",
    "",
)
RANGES = (
    "1,2",
    "2,1",
    "01,2",
    "0,1",
    "-1,1",
    "1.0,2",
    "1e0,2",
    " 1,2",
    "1,9223372036854775807",
    "1,9223372036854775808",
)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("numbers", RANGES)
def test_the_short_way_out_of_a_header_reads_the_same(numbers: str, tail: str) -> None:
    """A header that only looks like ours is understood as its JSON says: keys that come twice, escapes, odd numbers."""
    first, _, last = numbers.partition(",")
    text = f'{{"append":{{"range":{{"from":{first},"to":{last}}}{tail}'
    found = action_of(text)
    # A second header of ours takes the long way; of what it adds nothing is looked at here.
    expected = decode_action(record((("journal.action", text.encode()), ("headrace.unknown", b"1"))))
    assert type(found) is type(expected)
    assert found == expected or isinstance(found, Poison)


@given(st.lists(st.tuples(st.integers(1, 1000), st.binary(max_size=40)), min_size=1, max_size=4))
def test_the_short_way_to_a_binary_value_writes_the_same(given_events: list[tuple[int, bytes]]) -> None:
    """Untagged binary events: the same bytes as the general way, and read back alike, one or many."""
    events = [Event(seq_nr, payload) for seq_nr, payload in given_events]
    form, value = encode_value(AppendValue(encode_events(events)))
    assert (form, encode_binary_events(events)) == ("binary", value)
    assert decode_value("binary", value) == AppendValue(encode_events(events))
    assert one_binary_event(value) == ((events[0].seq_nr, events[0].payload) if len(events) == 1 else None)


@given(st.integers(1, MAX_SEQ_NR - 1), st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.text(max_size=5))))
def test_the_short_way_to_a_json_event_writes_the_same(seq_nr: int, payload: dict[str, str | None]) -> None:
    """One untagged event whose payload is JSON already: the same record as the general way makes of it."""
    at, data = TopicPartition("t", 3), msgspec.json.encode(payload)
    new = new_append([Event(seq_nr, msgspec.Raw(data))], AppendOptions(origin="bank"))
    short = json_event_record(at, "a", seq_nr, data, origin="bank", expected=seq_nr - 1)
    assert short == new.record(at, "a", expected=seq_nr - 1)
    assert new.value == new_append([Event(seq_nr, payload)], AppendOptions()).value


@pytest.mark.parametrize("event", [Event(1, b"x", ("tag",)), Event(1, "text"), Event(1), Event(1, bytearray(b"x"))])
def test_the_short_way_is_for_untagged_bytes_only(event: Event) -> None:
    """Anything else takes the general way, alone and beside others."""
    assert encode_binary_events([event]) is None
    assert encode_binary_events([Event(1, b"x"), event]) is None


@given(st.data())
def test_a_damaged_value_is_never_taken_for_one_event(data: st.DataObject) -> None:
    """What the short way reads, the general way reads alike: a flipped byte, a cut, a byte more."""
    value = bytearray(encode_binary_events([Event(3, b"some payload")]) or b"")
    at = data.draw(st.integers(0, len(value) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "more"]))
    if damage == "flip":
        value[at] ^= data.draw(st.integers(1, 255))
    elif damage == "cut":
        del value[at:]
    else:
        value[at:at] = data.draw(st.binary(min_size=1, max_size=3))
    found = one_binary_event(bytes(value))
    if found is not None:
        assert decode_value("binary", bytes(value)) == AppendValue((Encoded(found[0], (), "binary", found[1]),))


def from_deep_inside(calls: int, work: Callable[[], Any]) -> Any:
    return work() if calls == 0 else from_deep_inside(calls - 1, work)


def test_what_one_process_can_read_every_process_can() -> None:
    """J27: the limit of nested JSON is a number, and does not depend on how many calls lead to the writer or reader."""
    (written,) = encode_events([Event(1, deep(MAX_JSON_DEPTH - 1))])
    payload_format, value = encode_value(AppendValue((written,), metadata=written.payload))
    read = from_deep_inside(250, lambda: decode_value(payload_format, value))
    assert read == decode_value(payload_format, value)
    assert from_deep_inside(250, lambda: decode_payload("json", written.payload)) == deep(MAX_JSON_DEPTH - 1)
    with pytest.raises(BadArgument, match="nested too deeply"):
        encode_events([Event(1, deep(MAX_JSON_DEPTH))])


def test_a_program_that_is_too_deep_itself_holds_no_journal() -> None:
    """E9: a record is held for what it is, in every process alike, and not for the calls that lead to its reader."""
    (written,) = encode_events([Event(1, deep(MAX_JSON_DEPTH - 1))])
    payload_format, value = encode_value(AppendValue((written,)))
    with pytest.raises(RecursionError):
        from_deep_inside(700, lambda: decode_value(payload_format, value))
    too_deep = value.replace(b"[[", b"[[[").replace(b"]]", b"]]]")
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_value(payload_format, too_deep)


@pytest.mark.parametrize(
    "number", ["1e400", "-1E+309", "12.5e0400", "1" + "0" * 310 + ".5", "1" + "0" * 299 + "e50", "9" * 5000]
)
def test_a_number_that_no_reader_can_decode_holds_its_journal(number: str) -> None:
    """E9: numbers are copied as they are, so one that is out of range must be found before readers meet it."""
    raw = f'{{"a":["e5",{number}]}}'.encode()
    event = b'{"events":[{"seqNr":1,"payload":%b}],"metadata":{"data":%b}}'
    for value in (event % (raw, b"{}"), event % (b"{}", raw)):
        with pytest.raises(ValueError, match="out of range"):
            decode_value("json", value)
    with pytest.raises(ValueError, match="out of range"):
        decode_value("binary", b"\x01" + struct.pack(">i", 1) + binary_event(1, b"", 2, raw) + b"{}")
    header = b'{"append":{"range":{"from":1,"to":1},"payloadType":"json","metadata":{"data":%b}}}' % raw
    assert isinstance(decode_action(record((("journal.action", header),))), Poison)
    with pytest.raises(BadArgument, match="out of range"):
        encode_events([Event(1, msgspec.Raw(raw))])


@pytest.mark.parametrize("number", ["1.5e308", "1e-400", "0e999", "0.0001e311", "1" + "0" * 400, "-1E+0007"])
def test_other_numbers_are_read(number: str) -> None:
    """J20: what is not out of range, however it is written."""
    raw = f'[{number},"1e999"]'.encode()
    decoded = decode_value("json", b'{"events":[{"seqNr":1,"payload":%b}]}' % raw)
    assert decoded == AppendValue((Encoded(1, (), "json", raw),))
    assert decode_payload("json", raw) == msgspec.json.decode(raw)


@pytest.mark.parametrize("text", ["[[[", '"[', "\\", '\\"[', "}]", '"]["', "\\\\"])
def test_brackets_in_texts_are_no_levels(text: str) -> None:
    """J27: the levels of JSON are counted exactly, whatever its texts hold."""
    raw = msgspec.json.encode([[{text: text, "more": [text]}], text])
    assert checked_depth(raw, 4) == raw
    with pytest.raises(ValueError, match="nested too deeply"):
        checked_depth(raw, 3)


@given(st.data())
def test_the_short_way_to_a_payload_reads_the_same(data: st.DataObject) -> None:
    """The payload of one plain event of a known number: what the other short way finds, and nothing else."""
    value = bytearray(encode_binary_events([Event(3, data.draw(st.binary(max_size=20)))]) or b"")
    for _ in range(data.draw(st.integers(0, 2))):
        value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(0, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)) | st.just(len(value)))])
    for seq_nr in (3, 4):
        found = one_binary_event(cut)
        assert binary_payload(cut, seq_nr) == (found[1] if found is not None and found[0] == seq_nr else None)


KEYS = st.sampled_from([b"k", b"other", b"\xff\xfe", "ä".encode(), None])
WRITTEN = st.one_of(
    st.sampled_from([b'{"purge":{}}', b'{"mark":{"id":"x"}}', b'{"delete":{"to":3}}', b'{"compact":{}}', b"{", None]),
    st.builds(
        lambda numbers, tail: '{{"append":{{"range":{{"from":{},"to":{}}}{}'.format(*numbers.split(","), tail).encode(),
        st.sampled_from(RANGES),
        st.sampled_from(TAILS),
    ),
)
BESIDE = st.sampled_from([(), (("h", b"v"),), (("headrace.expected", b"0"),), (("traceparent", b"00"),)])
NAMES = st.sampled_from(["journal.action", "journal.action", "journal.actions", "other"])


@given(st.lists(st.tuples(KEYS, NAMES, WRITTEN, BESIDE), max_size=6))
def test_the_short_way_out_of_many_records_reads_the_same(
    given_records: list[tuple[bytes | None, str, bytes | None, Headers]],
) -> None:
    """Whatever stands in a log: the entries of the general way, without the records."""
    records = [
        Record("t", 2, offset, 1000 + offset, key, b"v", ((name, written), *beside))
        for offset, (key, name, written, beside) in enumerate(given_records)
    ]
    general = [entry_of(each, 7) for each in records]
    expected = [msgspec.structs.replace(entry, record=None) for entry in general if entry is not None]
    assert bare_entries(records, 7) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(event_lists, OPTIONS, st.booleans(), st.booleans()), max_size=4))
def test_the_short_way_to_many_events_reads_the_same(
    appends: list[tuple[list[Event], str | None, bool, bool]],
) -> None:
    """Events of single and of many binary payloads, of JSON, with metadata and headers: as each record alone gives."""
    records, actions = [], []
    for events, origin, has_metadata, has_headers in appends:
        options = AppendOptions(
            origin=origin, metadata={"m": 1} if has_metadata else None, headers={"h": "v"} if has_headers else None
        )
        new = record_of(AT, "k", events, options)
        written = record(new.headers, new.key, new.value)
        action = decode_action(written)
        assert isinstance(action, Append)
        records.append(written)
        actions.append(action)
    one_by_one = [events_of_record("k", *pair) for pair in zip(records, actions, strict=True)]
    assert events_of_records("k", records, actions) == [event for events in one_by_one for event in events]


def test_the_short_way_holds_a_journal_too() -> None:
    """One plain event whose number is not that of its header: the journal is held, as the general way says."""
    value = encode_binary_events([Event(4, b"x")])
    action = Append(first=3, last=3, payload_format="binary")
    with pytest.raises(JournalHeld):
        events_of_records("k", [record(encode_action(action), b"k", value)], [action])
