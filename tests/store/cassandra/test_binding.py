"""What goes over the wire is what the driver's own binding would send."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from cassandra import cqltypes
from cassandra.query import UNSET_VALUE, PreparedStatement
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.cassandra.requests import Binding, unlogged

TEXTS = cqltypes.ListType.apply_parameters([cqltypes.UTF8Type])
MAP = cqltypes.MapType.apply_parameters([cqltypes.UTF8Type, cqltypes.UTF8Type])
PLACE = cqltypes.TupleType.apply_parameters([cqltypes.Int32Type, cqltypes.LongType])

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
MILLISECONDS = st.integers(0, 1 << 45)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COLUMNS: dict[Any, st.SearchStrategy[Any]] = {
    cqltypes.LongType: LONG,
    cqltypes.Int32Type: INT,
    cqltypes.DateType: MILLISECONDS,
    cqltypes.TimestampType: MILLISECONDS,
    cqltypes.UUIDType: st.uuids(),
    cqltypes.TimeUUIDType: st.uuids(version=1),
    cqltypes.UTF8Type: TEXT,
    cqltypes.BytesType: st.binary(max_size=8),
    cqltypes.BooleanType: st.booleans(),
    TEXTS: st.lists(TEXT, max_size=3),
    MAP: st.dictionaries(TEXT, TEXT, max_size=3),
    PLACE: st.tuples(INT, LONG),
}


class Column(NamedTuple):
    """A column as the server describes it."""

    keyspace_name: str
    table_name: str
    name: str
    type: Any


def prepared(kinds: list[Any]) -> Any:
    """Return a statement with the columns of a key and then those."""
    columns = [Column("k", "t", f"c{nr}", kind) for nr, kind in enumerate([*KEY, *kinds])]
    return PreparedStatement(columns, b"id", [0, 1], "INSERT …", "k", 4, None, None)


KEY = (cqltypes.UTF8Type, cqltypes.LongType)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, tuple[Any, ...], list[tuple[Any, ...]]]:
    """Draw a statement, a key, and rows for its other columns."""
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), max_size=6))
    absent = st.sampled_from([None, UNSET_VALUE])
    rows = draw(st.lists(st.tuples(*(COLUMNS[kind] | absent for kind in kinds)), max_size=4))
    return prepared(kinds), (draw(TEXT), draw(LONG)), rows


@given(tables())
def test_values_are_encoded_as_by_the_driver(table: tuple[Any, tuple[Any, ...], list[tuple[Any, ...]]]) -> None:
    """Each value of each type, absent and unset ones too, becomes the same bytes, alone and in a batch."""
    statement, key, rows = table
    binding = Binding(statement)
    wanted = [statement.bind(key + row) for row in rows]
    for row, by_the_driver in zip(rows, wanted, strict=True):
        bound = binding.bound(key + row)
        assert bound.values == by_the_driver.values
        assert bound.routing_key == by_the_driver.routing_key
        assert str(bound) == str(by_the_driver)

    ours, theirs = unlogged(), unlogged()
    binding.fill(ours, key, rows)
    for by_the_driver in wanted:
        theirs.add(by_the_driver)
    assert ours._statements_and_parameters == theirs._statements_and_parameters
    assert ours.routing_key == theirs.routing_key


@pytest.mark.parametrize("values", [("a",), ("a", 1, 2, 3)])
def test_a_wrong_number_of_values_is_refused(values: tuple[Any, ...]) -> None:
    """A column too few would be left unset without a word."""
    with pytest.raises(ValueError, match="zip"):
        Binding(prepared([cqltypes.LongType])).bound(values)
