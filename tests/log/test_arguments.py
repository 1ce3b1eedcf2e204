"""Any argument whatever, to any call of a log: it is refused with a typed error, or it does what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgument, HeadraceError, Refused
from headrace.log import Log, Member, TransactionalProducer, checks, open_log
from headrace.model import NewRecord, Record, TopicConfig, TopicPartition
from headrace.testing.conformance.log_arguments import WRONG_RECORDS, Calls, wrong_arguments
from headrace.testing.conformance.log_setting import read_all

T = TypeVar("T")

TOPIC = "t"
texts = st.one_of(st.text(max_size=10), st.text(st.characters(categories=("Cs", "Cc", "Lu")), max_size=4))
numbers = st.one_of(
    st.integers(-3, 3), st.integers(), st.sampled_from([2**31, 2**32, 2**40, 2**63 - 1, 2**63, -(2**63)])
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(),
    texts,
    st.binary(max_size=10),
    st.binary(max_size=10).map(bytearray),
    st.binary(max_size=10).map(memoryview),
    st.just(TOPIC),
    st.builds(TopicPartition, st.one_of(st.just(TOPIC), texts), numbers),
    st.builds(object),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(texts, inner, max_size=2)
    ),
    max_leaves=5,
)
headers = st.one_of(anything, st.lists(st.tuples(scalars, scalars), max_size=3).map(tuple))
records = st.builds(
    NewRecord,
    topic=st.one_of(st.just(TOPIC), anything),
    key=st.one_of(st.binary(max_size=5), anything),
    value=st.one_of(st.binary(max_size=5), anything),
    headers=st.one_of(st.just(()), headers),
    partition=st.one_of(st.none(), st.integers(0, 1), anything),
    timestamp_ms=st.one_of(st.none(), st.integers(1, 10**12), anything),
)


class Driven:
    """A log with a member and an open transaction, driven from tests that have no loop of their own."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self.log: Log = self.run(open_log(f"embedded:{folder}"))
        self.run(self.log.admin.create(TOPIC, partitions=2, config=TopicConfig()))
        self.member: Member = self.run(self.log.groups.join("g", [TOPIC]))
        self.producer: TransactionalProducer = self.run(self.log.transactional("id"))
        self.run(self.producer.begin())
        self.calls = Calls(self.log, TOPIC, self.member, self.producer)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 30))

    def ends(self) -> list[int]:
        return [self.run(self.log.bounds(TopicPartition(TOPIC, partition))).end for partition in range(2)]

    def read_from(self, partition: int, start: int) -> list[Record]:
        return self.run(read_all(self.log, TOPIC, partition, start=start))

    def close(self) -> None:
        self.run(self.log.close())
        self._loop.close()


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    opened = Driven(tmp_path_factory.mktemp("driven"))
    yield opened
    opened.close()


many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(record=records)
def test_a_record_comes_back_as_it_was_or_is_refused(driven: Driven, record: NewRecord) -> None:
    """FL3: whatever the fields hold, an acknowledged record can be read, and a refused one left nothing."""
    before = driven.ends()
    try:
        (position,) = driven.run(driven.log.append([record]))
    except Refused:
        assert driven.ends() == before
        return
    (found,) = driven.read_from(position.partition, position.offset)
    assert (found.key, found.value, found.headers) == (record.key, record.value, tuple(record.headers))
    assert [end - start for start, end in zip(before, driven.ends(), strict=True)].count(1) == 1


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(record=records)
def test_a_record_is_taken_alone_as_it_is_beside_others(driven: Driven, record: NewRecord) -> None:
    """FL3: an append of one record is written by a shorter way; it is refused, or comes back, alike."""

    def outcome(records: list[NewRecord]) -> object:
        try:
            positions = driven.run(driven.log.append(records))
        except Refused as refusal:
            return f"{type(refusal).__name__}: {refusal}"
        found = [driven.read_from(each.partition, each.offset)[0] for each in positions]
        assert [(each.offset, each.timestamp_ms) for each in found] == [(p.offset, p.timestamp_ms) for p in positions]
        return {(each.key, each.value, each.headers, record.timestamp_ms and each.timestamp_ms) for each in found}

    assert outcome([record]) == outcome([record, record])


@many
@given(data=st.data())
def test_any_call_with_anything_ends_well_or_with_a_typed_error(driven: Driven, data: st.DataObject) -> None:
    """FL3: no call of the port answers with a raw exception, and the log can be read afterwards."""
    calls = driven.calls.all()
    name = data.draw(st.sampled_from(sorted(calls)))
    _, call = calls[name]
    with contextlib.suppress(HeadraceError, TimeoutError):  # a call that waits for more records has taken its argument
        drawn = data.draw(anything.filter(lambda drawn: drawn != TOPIC))  # or the topic would be deleted
        driven.run(asyncio.wait_for(call(drawn), 0.1))
    assert TOPIC in driven.run(driven.log.admin.topics())
    assert driven.read_from(0, driven.ends()[0]) == []


@pytest.mark.parametrize("field", sorted(WRONG_RECORDS))
def test_the_shared_checks_refuse_every_wrong_field(field: str) -> None:
    """The same function stands before every backend, so what it refuses is refused on all tiers."""
    for wrong in WRONG_RECORDS[field]:
        fields: dict[str, Any] = {"topic": TOPIC, field: wrong}
        with pytest.raises(BadArgument):
            checks.check_records([NewRecord(**fields)])


def test_every_kind_of_argument_has_wrong_values(driven: Driven) -> None:
    """The list of calls and the list of wrong values belong together."""
    for kind, _ in driven.calls.all().values():
        assert wrong_arguments(kind)
