"""A log under random use, held against a plain list: one hypothesis state machine for all backends.

machine = log_machine(lambda: "embedded:" + tempfile.mkdtemp())
TestMachine = machine.TestCase
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import Fenced
from headrace.log import Log, TransactionalProducer, open_log
from headrace.model import NewRecord, Record, TopicPartition
from headrace.testing.conformance.log_setting import new_topic, read_all

__all__ = ["LogMachine"]

T = TypeVar("T")

PARTITIONS = 2
payloads = st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.one_of(st.none(), st.binary(max_size=20))), max_size=4)
Payloads = list[tuple[int, bytes | None]]


class LogMachine(RuleBasedStateMachine):
    """Appends, transactions of two owners of one id, truncation, re-opening. A backend says where its logs are."""

    def make_address(self) -> str:
        raise NotImplementedError("override make_address")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.producer: TransactionalProducer | None = None
        self.pending: Payloads | None = None
        self.is_fenced = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    @initialize()
    def start(self) -> None:
        self.address = self.make_address()
        self.log: Log = self.run(open_log(self.address))
        self.topic = self.run(new_topic(self.log, partitions=PARTITIONS))

    @rule(content=payloads)
    def append(self, content: Payloads) -> None:
        positions = self.run(self.log.append(self.records(content)))
        assert [position.partition for position in positions] == [partition for partition, _ in content]
        self.settle(content)

    @rule()
    def take_over(self) -> None:
        old, self.producer = self.producer, self.run(self.log.transactional(f"id-{self.topic}"))
        if old is not None:
            self.run(old.close())
        self.pending = None

    @precondition(lambda self: self.producer is not None and self.pending is None)
    @rule()
    def begin(self) -> None:
        assert self.producer is not None
        self.run(self.producer.begin())
        self.pending = []

    @precondition(lambda self: self.pending is not None)
    @rule(content=payloads)
    def append_in_transaction(self, content: Payloads) -> None:
        assert self.producer is not None
        assert self.pending is not None
        self.run(self.producer.append(self.records(content)))
        self.pending += content

    @precondition(lambda self: self.pending is not None)
    @rule(is_fenced=st.booleans())
    def commit(self, is_fenced: bool) -> None:
        assert self.producer is not None
        assert self.pending is not None
        content, self.pending = self.pending, None
        if not is_fenced:
            assert len(self.run(self.producer.commit())) == len(content)
            self.settle(content)
            return
        old, self.producer = self.producer, self.run(self.log.transactional(f"id-{self.topic}"))
        try:
            self.run(old.commit())
        except Fenced:
            self.run(old.close())
        else:
            raise AssertionError("a fenced owner committed")

    @precondition(lambda self: self.pending is not None)
    @rule()
    def abort(self) -> None:
        assert self.producer is not None
        self.run(self.producer.abort())
        self.pending = None

    @rule(partition=st.integers(0, PARTITIONS - 1), keep=st.integers(0, 3))
    def truncate(self, partition: int, keep: int) -> None:
        found = self.read(partition)
        if len(found) > keep and self.pending is None:
            before = found[len(found) - keep - 1].offset + 1
            self.run(self.log.retention.truncate(TopicPartition(self.topic, partition), before=before))
            del self.model[partition][: len(found) - keep]

    @rule()
    def reopen(self) -> None:
        if self.producer is not None:
            self.run(self.producer.close())
        self.producer, self.pending = None, None
        self.run(self.log.close())
        self.log = self.run(open_log(self.address))

    @invariant()
    def the_log_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "topic"):
            return
        for partition in range(PARTITIONS):
            found = self.read(partition)
            assert [record.value for record in found] == self.model[partition]
            offsets = [record.offset for record in found]
            assert offsets == sorted(set(offsets))

    def teardown(self) -> None:
        if hasattr(self, "log"):
            if self.producer is not None:
                self.run(self.producer.close())
            self.run(self.log.close())
        self.loop.close()

    def records(self, content: Payloads) -> list[NewRecord]:
        return [NewRecord(self.topic, b"k", value, partition=partition) for partition, value in content]

    def settle(self, content: Payloads) -> None:
        for partition, value in content:
            self.model[partition].append(value)

    def read(self, partition: int) -> list[Record]:
        return self.run(read_all(self.log, self.topic, partition))
