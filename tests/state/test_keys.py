"""Keys as bytes: the order of the keys, there and back, and the same bytes as any Kafka producer's."""

from __future__ import annotations

import datetime
import types
import uuid
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgument, NotReadable, NotStorable
from headrace.state import OrderedKeys, index_row
from headrace.state.keys import after_prefix, decode_parts, encode_parts

INTS = st.integers(-(2**64) + 1, 2**64 - 1)
TIMES = st.datetimes(timezones=st.just(datetime.UTC))
PARTS: list[tuple[type, st.SearchStrategy[Any]]] = [
    (str, st.text()),
    (bytes, st.binary()),
    (int, INTS),
    (bool, st.booleans()),
    (uuid.UUID, st.uuids()),
    (datetime.date, st.dates()),
    (datetime.datetime, TIMES),
]


@given(st.data())
def test_compound_keys_come_back_and_keep_their_order(data: st.DataObject) -> None:
    """S8: for tuples of any types, of one length or with one the beginning of the other, bytes compare as keys do."""
    kinds = data.draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4))
    left, right = (tuple(data.draw(strategy) for _, strategy in kinds) for _ in range(2))
    left = left[: data.draw(st.integers(0, len(left)))]
    assert decode_parts(encode_parts(left)) == left
    assert (encode_parts(left) < encode_parts(right)) == (_comparable(left) < _comparable(right))
    assert (encode_parts(left) == encode_parts(right)) == (left == right)


_SHORT = st.text("\x00\x02a", max_size=3)
_VALUES = st.lists(_SHORT | st.binary(max_size=2) | st.integers(-1, 300), max_size=3).map(tuple)
_KEYS = st.lists(st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x15", b"\xff", b"a"]), max_size=6).map(b"".join)


@settings(max_examples=300)
@given(_VALUES, _VALUES, _KEYS)
def test_a_row_of_an_index_has_one_meaning(left: tuple[Any, ...], right: tuple[Any, ...], key: bytes) -> None:
    """S1: whatever the values of an index and the bytes of the keys, the row of a value and a key begins with no other
    value, so that two different pairs have different rows."""
    assert (index_row("i", left) + key).startswith(index_row("i", right)) == (left == right)


def _comparable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Text is ordered by its UTF-8, which is the order of code points."""
    return tuple(part.encode() if isinstance(part, str) else part for part in key)


@pytest.mark.parametrize(("kind", "strategy"), PARTS, ids=[kind.__name__ for kind, _ in PARTS])
def test_single_keys_come_back_and_keep_their_order(kind: type, strategy: st.SearchStrategy[Any]) -> None:
    """S8: a key that stands alone has the same properties."""
    keys = OrderedKeys[Any](kind)

    @given(strategy, strategy)
    def check(left: Any, right: Any) -> None:
        assume(not any(str(key).startswith(("\0hr", "b'\\x00hr")) for key in (left, right)))
        one, other = (keys.encode(key) for key in (left, right))
        assert keys.decode(one) == left
        assert (one < other) == (_comparable((left,)) < _comparable((right,)))

    check()


@given(st.text(min_size=1), st.integers(-5, 5))
def test_a_text_is_its_bytes_and_a_tuple_is_routed_by_its_first_part(text: str, number: int) -> None:
    """C1: a plain Kafka producer agrees on the key of a text, and a compound key lies where its first part does."""
    if not text.startswith("\0hr"):
        assert OrderedKeys(str).encode(text) == OrderedKeys(str).routing_bytes(text) == text.encode()
    assert OrderedKeys(tuple[str, int]).routing_bytes((text, number)) == text.encode()
    assert OrderedKeys(tuple[int, str]).routing_bytes((number, text)) == OrderedKeys(int).encode(number)


@given(st.binary(), st.binary())
def test_a_prefix_range_holds_what_begins_so(prefix: bytes, key: bytes) -> None:
    """S8: bytes lie in the range of a prefix if and only if they begin with it."""
    end = after_prefix(prefix)
    assert key.startswith(prefix) == (prefix <= key and (end is None or key < end))


def test_ints_of_all_sizes_are_in_order() -> None:
    """S8: around every power of 256, on both sides of zero."""
    numbers = sorted({sign * (256**n + d) for n in range(8) for d in (-1, 0, 1) for sign in (-1, 1)})
    encoded = [OrderedKeys(int).encode(n) for n in numbers]
    assert encoded == sorted(encoded)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (str, b"bytes"),
        (str, 1),
        (int, True),
        (int, 2**64),
        (bool, 1),
        (str, "\ud800"),
        (datetime.date, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        (datetime.datetime, datetime.datetime(2026, 1, 1)),  # noqa: DTZ001
        (tuple[str, int], ("a",)),
        (tuple[str, int], ("a", "b")),
        (tuple[str, int], ("a", 1, 2)),
        (tuple[str, int], "a"),
    ],
)
def test_a_key_of_another_type_is_refused(kind: Any, key: Any) -> None:
    """What does not fit the declared type is named; nothing is converted in passing."""
    with pytest.raises(NotStorable, match="key"):
        OrderedKeys(kind).encode(key)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_utc_can_not_show_is_no_key(text: str) -> None:
    """It could be written and never be read: one such key made every list of the state fail."""
    time = datetime.datetime.fromisoformat(text)
    for kind, key in ((datetime.datetime, time), (tuple[str, datetime.datetime], ("a", time))):
        with pytest.raises(NotStorable, match="years 1 to 9999 of UTC"):
            OrderedKeys[Any](kind).encode(key)


@pytest.mark.parametrize("kind", [float, list, tuple, tuple[float, str], dict[str, int], tuple[()]])
def test_types_without_an_order_are_refused_when_declared(kind: Any) -> None:
    """The types that keys can have are named."""
    with pytest.raises(BadArgument, match="UUID"):
        OrderedKeys(kind)


def test_reserved_keys_are_refused() -> None:
    """Keys that begin as the machinery's do can't be a state's; as a part of a compound key they are harmless."""
    for kind, key in ((str, "\0hr-mine"), (bytes, b"\0hr")):
        with pytest.raises(BadArgument, match="reserved"):
            OrderedKeys[Any](kind).encode(key)
    assert not OrderedKeys(tuple[str, int]).encode(("\0hr", 1)).startswith(b"\0hr")


@pytest.mark.parametrize("data", [b"\x02text", b"\x30short", b"\x99", b"\x15", b"\x02\xff\x00", b"\x41" + b"\xff" * 8])
def test_bytes_that_are_no_key_are_refused(data: bytes) -> None:
    """Another program's keys raise a typed error, whatever they are."""
    with pytest.raises(NotReadable):
        OrderedKeys(tuple[str, int]).decode(data)


@given(st.binary())
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    """Any bytes are a key or a typed error."""
    try:
        decode_parts(data)
    except NotReadable:
        return


@given(st.data())
def test_a_prefix_of_a_compound_key_holds_the_keys_with_these_parts(data: st.DataObject) -> None:
    """S8: those whose first parts are equal, and no others: not a part that goes on behind a NUL."""
    kinds = data.draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3))
    prefix, key = (tuple(data.draw(strategy) for _, strategy in kinds) for _ in range(2))
    prefix = prefix[: data.draw(st.integers(0, len(prefix)))]
    if prefix and type(prefix[-1]) in (str, bytes):
        nul, more = ("\0", data.draw(st.text())) if isinstance(prefix[-1], str) else (b"\0", data.draw(st.binary()))
        key = data.draw(st.sampled_from([(*prefix[:-1], prefix[-1] + nul + more, *key[len(prefix) :]), key]))
    keys = OrderedKeys[Any](types.GenericAlias(tuple, tuple(kind for kind, _ in kinds)))
    start, end = keys.prefix_range(prefix)
    for each in (key, prefix + key[len(prefix) :]):
        encoded = keys.encode(each)
        assert (start <= encoded and (end is None or encoded < end)) == (each[: len(prefix)] == prefix)


def test_a_key_without_prefixes_says_so() -> None:
    """Numbers have ranges, not prefixes; an empty prefix of a text is everything."""
    with pytest.raises(BadArgument, match="range"):
        OrderedKeys(int).prefix_range(1)
    assert OrderedKeys(str).prefix_range("") == (b"", None)


def test_the_vectors_of_the_documented_format() -> None:
    """S8: the bytes that docs/formats.md writes down."""
    vectors = {
        ("a", 1): "02 61 00 15 01",
        ("", -1): "02 00 13 FE",
        (b"\0", True): "01 00 FF 00 27",
        (256,): "16 01 00",
        (0, -256): "14 12 FE FF",
        (datetime.date(1, 1, 1),): "40 00 00 00 01",
        (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),): "41 80 00 00 00 00 00 00 00",
    }
    assert {key: encode_parts(key).hex(" ").upper() for key in vectors} == vectors
