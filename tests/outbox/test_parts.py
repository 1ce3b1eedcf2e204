"""Decisions without I/O: keys, headers, compaction, poison, who may be taken."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url

from headrace.errors import BadArgument, RecordTooLarge, TimedOut, UnknownTopic, Unreachable
from headrace.model import Record
from headrace.outbox.dialects import dialect_of
from headrace.outbox.engines import url_of
from headrace.outbox.leases import LaneQueue, LeaseTimes, WaitingLane, free_lanes, soonest_s
from headrace.outbox.messages import (
    EVENT_ID,
    Lane,
    PendingMessage,
    as_headers,
    bucket_of,
    dump_headers,
    encode_key,
    event_id_of,
    event_time_ms,
    load_headers,
    record_of,
    with_event_id,
)
from headrace.outbox.send import compact, is_about_a_record, keep_all, not_behind

MINUTE_MS = 60_000
TIMES = LeaseTimes.of(60, 10)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def pending(id_: int, key: bytes | None = None, partition_key: bytes | None = None) -> PendingMessage:
    return PendingMessage(id_, b"m", key, partition_key, None, f"e{id_}", None, 1)


def waiting(**changes: object) -> WaitingLane:
    found = WaitingLane(Lane("t", 0), is_known=True, locked_by=None, locked_at=None, retry_at=None, now=1_000_000)
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


class Number(int, enum.Enum):
    """Unlike an IntEnum, its text is its name."""

    ONE = 1


@dataclasses.dataclass
class Customer:
    name: str
    id: int


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        (None, None),
        (b"\x00", b"\x00"),
        ("ü", "ü".encode()),
        (7, b"7"),
        (Number.ONE, b"1"),
        ({"n": Number.ONE}, b'{"n":1}'),
        (uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        ({"b": 1, "a": [2, {"d": 1, "c": None}]}, b'{"a":[2,{"c":null,"d":1}],"b":1}'),
        (("x", 1), b'["x",1]'),
    ],
)
def test_a_key_has_one_encoding(key: object, encoded: bytes | None) -> None:
    """O5: bytes as they are, text and numbers as text, structures as JSON with sorted names."""
    assert encode_key(key) == encoded


@given(st.dictionaries(st.text(), st.integers() | st.text(), min_size=1))
def test_a_structured_key_does_not_depend_on_its_order(key: dict[str, int | str]) -> None:
    """O5: the same fields in any order are the same key."""
    assert encode_key(key) == encode_key(dict(reversed(list(key.items()))))


@pytest.mark.parametrize(
    ("one", "other", "encoded"),
    [
        (Decimal("10"), Decimal("10.00"), b"10"),
        (Decimal("10"), Decimal("1E+1"), b"10"),
        (Decimal("0"), Decimal("-0.0"), b"0"),
        (Decimal("0"), Decimal("0E-999999"), b"0"),
        (Decimal("1.5"), Decimal("1.50"), b"1.5"),
        ((7, Decimal("10")), (7, Decimal("10.00")), b'[7,"10"]'),
        ({"a": [Decimal("-2")]}, {"a": [Decimal("-2.0")]}, b'{"a":["-2"]}'),
    ],
)
def test_equal_decimals_are_one_key(one: object, other: object, encoded: bytes) -> None:
    """O5: a database returns 10 as 10.00 from a column with two places, and the order of a key must not break by it."""
    assert one == other
    assert encode_key(one) == encode_key(other) == encoded
    for bad in (Decimal("NaN"), Decimal("-Infinity"), (1, Decimal("sNaN")), Decimal("1E+999999"), Decimal("1E-999999")):
        with pytest.raises(BadArgument, match="key"):
            encode_key(bad)


def test_an_object_is_a_key_by_its_fields() -> None:
    """O5: a dataclass has the encoding of its fields; what has no form, or two, is refused."""
    assert encode_key(Customer("Ada", 1)) == encode_key({"id": 1, "name": "Ada"})
    for bad in (1.0, True, object(), {"a": float("nan")}, 10**5000):
        with pytest.raises(BadArgument):
            encode_key(bad)


@given(st.binary(max_size=8) | st.none(), st.uuids(), st.integers(1, 64))
def test_a_bucket_is_in_range_and_stable(key: bytes | None, event_id: uuid.UUID, buckets: int) -> None:
    """O5: a key is always in the same bucket; messages without one are spread by their event id."""
    found = bucket_of(key, str(event_id), buckets)
    assert 0 <= found < buckets
    if key is not None:
        assert found == bucket_of(key, str(uuid.uuid4()), buckets)


@given(st.lists(st.tuples(st.text(min_size=1), st.binary() | st.none() | st.text())))
def test_headers_come_back_as_they_were(given_headers: list[tuple[str, bytes | str | None]]) -> None:
    """O3: text, bytes and None survive the table, repeated names and their order too."""
    headers = as_headers(given_headers)
    assert load_headers(dump_headers(headers)) == headers


def test_a_record_carries_its_event_id() -> None:
    """L21: as the last header, where consumers find it."""
    headers = with_event_id(dump_headers((("a", b"1"),)), "id-1")
    assert headers == (("a", b"1"), (EVENT_ID, b"id-1"))
    assert event_id_of(headers) == "id-1"
    assert event_id_of(()) is None


def test_a_records_time_is_never_ahead_of_its_sender() -> None:
    """L24: the database's clock, or the application's, may be ahead; the log would refuse the record."""
    row = pending(1)._replace(event_time=5_000, created_at=9_000)
    assert record_of("t", row, partition=None, now_ms=7_000).timestamp_ms == 5_000
    assert record_of("t", row._replace(event_time=None), partition=None, now_ms=7_000).timestamp_ms == 7_000
    for bad in (0, -5):
        with pytest.raises(BadArgument):
            event_time_ms(bad)


@given(st.timedeltas(dt.timedelta(days=1), dt.timedelta(days=2_900_000)))
@example(dt.timedelta(seconds=1_076_758_687, milliseconds=166))
def test_an_event_time_keeps_its_millisecond(since: dt.timedelta) -> None:
    """O3: as a float of seconds some times lie just below their millisecond, and would be one too early."""
    assert event_time_ms(EPOCH + since) == since // dt.timedelta(milliseconds=1)


def test_compaction_keeps_the_last_of_each_key() -> None:
    """L13: keys 1, 2, 1 send rows 2 and 3 in order, and stand for all three; keyless messages are untouched."""
    batch = compact([pending(1, b"1"), pending(2, b"2"), pending(3, b"1"), pending(4), pending(5)])
    assert [row.id for row in batch.kept] == [2, 3, 4, 5]
    assert sorted(batch.ids_done([2, 3, 4, 5])) == [1, 2, 3, 4, 5]
    assert sorted(batch.ids_done([2, 4])) == [2, 4]


@given(st.lists(st.sampled_from([None, b"a", b"b", b"c"]), max_size=30))
def test_compaction_loses_and_reorders_nothing(keys: list[bytes | None]) -> None:
    """L13: what is kept rises in id, has each key once, and stands for every row."""
    found = [pending(n, key) for n, key in enumerate(keys, 1)]
    batch = compact(found)
    ids = [row.id for row in batch.kept]
    assert ids == sorted(ids)
    kept_keys = [row.key for row in batch.kept if row.key is not None]
    assert len(kept_keys) == len(set(kept_keys))
    assert sorted(batch.ids_done(ids)) == [row.id for row in found]
    assert sorted(keep_all(found).ids_done(row.id for row in found)) == [row.id for row in found]


def test_a_row_with_an_error_and_no_lock_can_be_taken() -> None:
    """L10: so can one whose lock has no time, one whose lease is over, one whose retry is due; others can't."""
    assert waiting().is_free(TIMES)
    assert waiting(locked_by="a", locked_at=None).is_free(TIMES)
    assert waiting(locked_by="a", locked_at=1_000_000 - MINUTE_MS - 1).is_free(TIMES)
    assert waiting(retry_at=1_000_000).is_free(TIMES)
    assert not waiting(retry_at=1_000_001).is_free(TIMES)
    assert not waiting(locked_by="a", locked_at=1_000_000 - MINUTE_MS).is_free(TIMES)
    assert not waiting(locked_by="a", locked_at=1_000_000 + MINUTE_MS).is_free(TIMES)
    assert not waiting(retry_at=1_011_000).is_free(TIMES)
    # The clock was set back.
    assert waiting(locked_by="a", locked_at=1_000_001 + MINUTE_MS).is_free(TIMES)
    assert waiting(retry_at=1_011_001).is_free(TIMES)
    assert free_lanes([waiting(), waiting(retry_at=1_010_000)], TIMES) == [Lane("t", 0)]


def test_the_next_look_comes_when_the_first_hold_ends() -> None:
    """L9: no later than asked, no earlier than needed."""
    assert soonest_s([waiting(retry_at=1_000_100), waiting(retry_at=1_000_300)], 0.5) == 0.1
    assert soonest_s([waiting(), waiting(retry_at=999_000)], 0.5) == 0.5


async def test_lanes_get_fair_turns_and_one_worker_each() -> None:
    """L1, L2: a lane is queued once while a worker has it, and with more messages it comes behind the others."""
    queue, (a, b) = LaneQueue(), (Lane("a", 0), Lane("b", 0))

    assert await queue.add([a, b])
    assert not await queue.add([a, b])
    assert await queue.take() == a
    assert not await queue.add([a])
    assert await queue.give_back(a, has_more=True)
    assert [await queue.take(), await queue.take()] == [b, a]
    assert not await queue.give_back(b, has_more=False)
    assert await queue.add([b])
    await queue.close()
    assert not await queue.give_back(a, has_more=True)
    assert await queue.take() is None


def test_only_a_record_can_be_poison() -> None:
    """L12: size and form are the record's own; a broker that is away and a missing topic are not."""
    assert is_about_a_record(RecordTooLarge("t", 2, 1))
    assert is_about_a_record(BadArgument("key", None, "needed"))
    for other in (Unreachable("a", "b"), TimedOut("x", 1), UnknownTopic("t"), RuntimeError()):
        assert not is_about_a_record(other)


def test_what_poison_holds_back() -> None:
    """L12: nothing, what comes behind it in its key, or what comes behind it."""
    found = [pending(1, b"a"), pending(2, b"b"), pending(3, b"a"), pending(4), pending(5, b"x", b"a")]
    held = {
        policy: [row.id for row in found if not not_behind({1: "bad"}, found, policy)(row)]
        for policy in ("skip", "block_key", "block_topic")
    }
    assert held["skip"] == []
    assert held["block_key"] == [1, 3, 5]
    assert held["block_topic"] == [1, 2, 3, 4, 5]
    assert [row.id for row in found if not_behind({3: "bad"}, found, "block_key")(row)] == [1, 2, 4]


def test_a_foreign_record_is_known_by_its_place() -> None:
    """L21: the inbox takes events that have no id by topic, partition and offset."""
    from headrace.outbox import Inbox

    assert Inbox("c")._row(Record("t", 2, 7, 0))["event_id"] == "t[2]@7"


def test_a_session_is_told_what_the_url_asks_and_what_we_need() -> None:
    """L8: the URL's own words win, and a server's patience goes with the lease."""
    url = make_url("postgresql+psycopg://h/db?options=-csearch_path%3Dshop&keepalives_idle=7")

    asked = dialect_of("postgresql").session_options(url, patience_s=59.5)["connect_args"]

    assert "keepalives_idle" not in asked
    assert asked["keepalives_count"] == 3
    mysql = dialect_of("mysql").session_options(make_url("mysql+pymysql://h/db"), patience_s=0.5)
    assert mysql["pool_recycle"] == 1  # the least that MySQL can wait is a second, and we stay well below
    assert "pool_recycle" not in dialect_of("mysql").session_options(make_url("mysql+pymysql://h/db"), patience_s=None)


def test_a_pooler_in_transaction_mode_is_asked_for_nothing_it_can_not_keep() -> None:
    """FO7: no setting at the start of a session, and no statement that stays prepared in it."""
    asked = dialect_of("postgresql").session_options(make_url("postgresql+psycopg://h/db"), patience_s=60)[
        "connect_args"
    ]

    assert "options" not in asked
    assert asked["prepare_threshold"] is None


@pytest.mark.parametrize(
    ("given_url", "used"),
    [
        (
            "postgresql+asyncpg://me:pw@h:1/db?ssl=true&prepared_statement_cache_size=0&timeout=1.5&application_name=a",
            "postgresql+psycopg://me:pw@h:1/db?application_name=a&connect_timeout=2&sslmode=require",
        ),
        (
            "postgresql+asyncpg://h/db?ssl=verify-full&command_timeout=5&target_session_attrs=primary",
            "postgresql+psycopg://h/db?sslmode=verify-full&target_session_attrs=primary",
        ),
        ("postgresql+psycopg://h/db?sslmode=require", "postgresql+psycopg://h/db?sslmode=require"),
        ("postgresql://h/db?service=x", "postgresql+psycopg://h/db?service=x"),
        ("mysql+aiomysql://h/db?charset=utf8mb4&echo=1", "mysql+pymysql://h/db?charset=utf8mb4"),
        ("sqlite+aiosqlite:///f.db", "sqlite:///f.db"),
    ],
)
def test_a_relay_understands_the_arguments_of_other_drivers(given_url: str, used: str) -> None:
    """FO4: an application's URL may have words that only its own driver knows."""
    found, wanted = url_of(given_url), make_url(used)
    assert found.set(query={}) == wanted.set(query={})
    assert dict(found.query) == dict(wanted.query)


def test_a_bad_argument_of_another_driver_is_named() -> None:
    """FO4: a time that is no number is refused before anybody connects."""
    with pytest.raises(BadArgument, match="timeout"):
        url_of("postgresql+asyncpg://h/db?timeout=soon")
