"""A log under random use, compared with a plain list: one hypothesis state machine for all backends.

machine = log_machine(lambda: "embedded:" + tempfile.mkdtemp())
TestMachine = machine.TestCase
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import Fenced, NotOwner
from headrace.log import Log, Member, TransactionalProducer, open_log
from headrace.model import NewRecord, Record, TopicPartition
from headrace.testing.conformance.log_setting import new_topic, read_all

__all__ = ["LogMachine"]

T = TypeVar("T")

PARTITIONS = 2
GROUPS = 2
MAX_OFFSET = 9
payloads = st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.one_of(st.none(), st.binary(max_size=20))), max_size=4)
Payloads = list[tuple[int, bytes | None]]
groups = st.integers(0, GROUPS - 1)
offsets = st.dictionaries(groups, st.integers(0, MAX_OFFSET), min_size=1)
Offsets = dict[int, int]


class LogMachine(RuleBasedStateMachine):
    """Appends, transactions of two owners of one id with offsets of two groups, truncation, re-opening.

    A backend says where its logs are.
    """

    def make_address(self) -> str:
        raise NotImplementedError("override make_address")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.producer: TransactionalProducer | None = None
        self.pending: Payloads | None = None
        self.committed: list[dict[TopicPartition, int]] = [{} for _ in range(GROUPS)]

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    @initialize()
    def start(self) -> None:
        self.address = self.make_address()
        self.log: Log = self.run(open_log(self.address))
        self.topic = self.run(new_topic(self.log, partitions=PARTITIONS))
        self.source = TopicPartition(self.run(new_topic(self.log)), 0)
        self.run(self.log.append([NewRecord(self.source.topic, b"k") for _ in range(MAX_OFFSET)]))
        self.join_all()

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

    @rule(offsets=offsets, leavers=st.sets(groups, max_size=1))
    def commit_with_offsets(self, offsets: Offsets, leavers: set[int]) -> None:
        """Commit; with offsets of a member that has left its group since, nothing of it may count."""
        if self.producer is None:
            self.take_over()
        if self.pending is None:
            self.begin()
        assert self.producer is not None
        assert self.pending is not None
        content, self.pending = self.pending, None
        for group, offset in offsets.items():
            self.run(self.producer.commit_offsets(self.members[group], {self.source: offset}))
        for group in leavers:
            self.run(self.members[group].leave())
            self.members[group] = self.join(group)
        if leavers & offsets.keys():
            with pytest.raises(NotOwner):
                self.run(self.producer.commit())
            return
        assert len(self.run(self.producer.commit())) == len(content)
        self.settle(content)
        for group, offset in offsets.items():
            self.committed[group] = {self.source: offset}

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
        for member in self.members:
            self.run(member.leave())
        self.run(self.log.close())
        self.log = self.run(open_log(self.address))
        self.join_all()

    @invariant()
    def the_log_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "topic"):
            return
        for partition in range(PARTITIONS):
            found = self.read(partition)
            assert [record.value for record in found] == self.model[partition]
            offsets = [record.offset for record in found]
            assert offsets == sorted(set(offsets))

    @invariant()
    def the_groups_are_where_their_members_committed(self) -> None:
        if not hasattr(self, "members"):
            return
        for group in range(GROUPS):
            assert self.run(self.log.groups.committed(self.group_name(group), [self.source])) == self.committed[group]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            if self.producer is not None:
                self.run(self.producer.close())
            self.run(self.log.close())
        self.loop.close()

    def join_all(self) -> None:
        self.members = [self.join(group) for group in range(GROUPS)]

    def join(self, group: int) -> Member:
        """Become the only member of a group, which owns the source."""
        member = self.run(self.log.groups.join(self.group_name(group), [self.source.topic]))
        while self.source not in member.assignment:
            self.run(member.poll(timeout_s=0))
        return member

    def group_name(self, group: int) -> str:
        return f"group-{group}-{self.topic}"

    def records(self, content: Payloads) -> list[NewRecord]:
        return [NewRecord(self.topic, b"k", value, partition=partition) for partition, value in content]

    def settle(self, content: Payloads) -> None:
        for partition, value in content:
            self.model[partition].append(value)

    def read(self, partition: int) -> list[Record]:
        return self.run(read_all(self.log, self.topic, partition))
