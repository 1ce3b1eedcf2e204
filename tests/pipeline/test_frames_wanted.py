"""What a query wants, told from its filters: pure, and never too little."""

from __future__ import annotations

import getpass
import operator
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from headrace.errors import BadArgument
from headrace.pipeline.tables.scans import (
    EVERYTHING,
    MOST_BYTES,
    Predicates,
    Span,
    predicates_of,
    predicates_of_all_scans,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS: dict[type[Any], Any] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, listed: value in listed,
}

numbers = st.integers(0, 6)
names = st.sampled_from(["a", "b", "c"])
times = st.integers(0, 6000).map(lambda micros: EPOCH + timedelta(microseconds=micros))


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    single = st.builds(
        lambda kind, value: kind((column,), value),
        st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
        values,
    )
    # Spark says that it hands over tuples, and hands over lists.
    listed = st.builds(
        lambda kind, found: In((column,), kind(found)),
        st.sampled_from([tuple, list]),
        st.lists(values, min_size=1, max_size=3),
    )
    return st.one_of(single, listed)


filters = st.one_of(
    comparisons("seq_nr", numbers),
    comparisons("offset", numbers),
    comparisons("partition", numbers),
    comparisons("timestamp", times),
    comparisons("key", names),
    comparisons("topic", names),
    comparisons("origin", names),
    st.just(IsNotNull(("key",))),
    names.map(lambda name: Not(EqualTo(("key",), name))),
)
rows = st.fixed_dictionaries(
    {"seq_nr": numbers, "offset": numbers, "partition": numbers, "timestamp": numbers, "key": names, "topic": names}
)


def holds(each: Filter, row: dict[str, Any]) -> bool:
    if isinstance(each, Not):
        return not holds(each.child, row)
    if isinstance(each, IsNotNull) or each.attribute == ("origin",):  # type: ignore[attr-defined]
        return True
    (column,) = each.attribute  # type: ignore[attr-defined]
    value = row[column]
    if column == "timestamp":
        value = EPOCH + timedelta(milliseconds=value)
    return bool(COMPARISONS[type(each)](value, each.value))  # type: ignore[attr-defined]


def may_be(wanted: Predicates, row: dict[str, Any]) -> bool:
    return (
        (wanted.topics is None or row["topic"] in wanted.topics)
        and (wanted.keys is None or row["key"] in wanted.keys)
        and (wanted.partitions is None or row["partition"] in wanted.partitions)
        and wanted.has(seq_nr=row["seq_nr"], offset=row["offset"], timestamp_ms=row["timestamp"])
    )


@given(given_filters=st.lists(filters, max_size=5), row=rows)
def test_what_the_filters_let_through_is_wanted(given_filters: list[Filter], row: dict[str, Any]) -> None:
    """K5: whatever filters are pushed down, no row that passes all of them is left out."""
    if all(holds(each, row) for each in given_filters):
        assert may_be(predicates_of(given_filters), row)


def test_filters_leave_little() -> None:
    """K5: equalities and ranges are taken over as they are, and the narrowest counts."""
    wanted = predicates_of(
        [
            EqualTo(("topic",), "t"),
            In(("key",), ["a", "b"]),  # type: ignore[arg-type]
            EqualTo(("key",), "b"),
            GreaterThanOrEqual(("offset",), 5),
            GreaterThan(("offset",), 3),
            LessThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ]
    )
    assert wanted.topics == {"t"}
    assert wanted.keys == {"b"}
    assert wanted.offset == Span(5, None)
    assert wanted.time_ms == Span(None, 999)


def test_what_is_not_understood_limits_nothing() -> None:
    """K5: a column without a meaning here, a negation and an odd literal leave everything wanted."""
    odd = [EqualTo(("offset",), "five"), Not(EqualTo(("key",), "a")), EqualTo(("payload", "x"), 1)]
    assert predicates_of(odd) == EVERYTHING


def test_scans_are_remembered_for_users_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under numbers that no list of users has; all scans of a frame are still read for."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000640000")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, two = Predicates(keys=frozenset({"a"})), Predicates(keys=frozenset({"b"}))

    assert predicates_of_all_scans("frame", one) == one
    assert predicates_of_all_scans("frame", two) == Predicates(keys=frozenset({"a", "b"}))


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To go on with a folder of its own for each scan would read the last scan's rows for all of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)

    with pytest.raises(BadArgument, match="set TMPDIR"):
        predicates_of_all_scans("frame", Predicates())


def size_of_scans(folder: Path) -> int:
    """Return how many bytes are kept of all frames."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_same_lookups_take_no_more_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP6: a frame that is asked again and again keeps what it was asked once, and counts as used."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lookups = [Predicates(keys=frozenset({f"k{n}"}), seq_nr=Span(n, None)) for n in range(5)]
    for wanted in lookups:
        predicates_of_all_scans("frame", wanted)
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    size_bytes = size_of_scans(tmp_path)
    os.utime(path, (0, 0))
    for wanted in lookups * 20:
        together = predicates_of_all_scans("frame", wanted)

    assert together == Predicates(keys=frozenset({f"k{n}" for n in range(5)}), seq_nr=Span(0, None))
    assert size_of_scans(tmp_path) == size_bytes
    assert path.stat().st_mtime > 0


def test_many_lookups_take_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP6: a frame of very many or very long keys wants all keys at last, and never one too few."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked: set[str] = set()
    for n in range(12):
        new = {f"{n}-{m}-{'x' * 5000}" for m in range(10)}
        asked |= new
        together = predicates_of_all_scans("frame", Predicates(topics=frozenset({"t"}), keys=frozenset(new)))
        assert together.topics == {"t"}
        assert together.keys is None or together.keys == asked
        assert size_of_scans(tmp_path) <= MOST_BYTES
    assert together.keys is None
    topics = frozenset(f"t{n}-{'x' * 200}" for n in range(2000))
    assert predicates_of_all_scans("frame", Predicates(topics=topics)) == EVERYTHING
    assert size_of_scans(tmp_path) < 1000


def test_scans_that_are_planned_at_once_are_all_read_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP6: two plannings at the same time do not undo each other's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def plan(nr: int) -> None:
        for each in range(20):
            predicates_of_all_scans("frame", Predicates(keys=frozenset({f"{nr}-{each}"})))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(plan, range(8)))

    everything = {f"{nr}-{each}" for nr in range(8) for each in range(20)}
    assert predicates_of_all_scans("frame", Predicates(keys=frozenset())).keys == everything
