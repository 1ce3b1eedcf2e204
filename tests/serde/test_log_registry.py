"""The registry in the log: the order of the log decides, whoever races, dies or compacts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import IncompatibleData, OffsetOutOfRange, TimedOut, UnknownSchema
from headrace.log import Log, open_log
from headrace.model import NewRecord, Position, Record, TopicPartition
from headrace.serde import Level, Version
from headrace.serde.registries.in_log import Entries, LogRegistry, entry_of_level, entry_of_version
from headrace.serde.registries.memory import RegistryContents
from headrace.testing.conformance.log_setting import eventually, read_all
from headrace.testing.conformance.registry_setting import record
from headrace.testing.processes import running_function

TOPIC = "headrace-schemas"


@pytest_asyncio.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    opened = await open_log(f"embedded:{tmp_path / 'log'}")
    yield opened
    await opened.close()


def schema_nr(number: int) -> Any:
    return record(f"R{number}", id="string")


async def everything(log: Log) -> dict[str, Sequence[Version]]:
    """What a node that has seen nothing yet finds."""
    fresh = LogRegistry(log, TOPIC)
    return {subject: await fresh.versions(subject) for subject in await fresh.subjects()}


async def test_compaction_changes_no_id(log: Log) -> None:
    """V5: nodes that race leave void entries; after compaction a new node finds every id as it was."""
    nodes = [LogRegistry(log, TOPIC) for _ in range(4)]
    await asyncio.gather(
        *(node.register(f"s{(n + p) % 6}", schema_nr((n + p) % 6)) for n in range(6) for p, node in enumerate(nodes))
    )
    for level in (Level.NONE, Level.FULL):
        await asyncio.gather(*(node.levels.put("s1", level) for node in nodes))
    before = await everything(log)
    written = len(await read_all(log, TOPIC))
    await log.retention.enforce()
    after = await everything(log)
    assert after == before
    assert len(before) == 6
    assert await LogRegistry(log, TOPIC).levels.get("s1") is Level.FULL
    assert len(await read_all(log, TOPIC)) <= written


class Interrupted:
    """A log whose appends may be written without an answer, as a broken connection leaves them."""

    def __init__(self, log: Log, outcomes: Sequence[str]) -> None:
        self._log = log
        self._outcomes = list(outcomes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        outcome = self._outcomes.pop(0) if self._outcomes else "written"
        if outcome == "lost":
            raise TimedOut("append", 1, outcome_known=False)
        positions = await self._log.append(records)
        if outcome == "unanswered":
            raise TimedOut("append", 1, outcome_known=False)
        return positions


@pytest.mark.parametrize("outcomes", [["lost"], ["unanswered"], ["lost", "unanswered"], ["unanswered", "lost"]])
async def test_an_append_without_an_answer_registers_once(log: Log, outcomes: list[str]) -> None:
    """V5: whether it was written or not, there is one version in the end, and everybody agrees on it."""
    made = await LogRegistry(Interrupted(log, outcomes), TOPIC).register("s", schema_nr(1))  # type: ignore[arg-type]
    await LogRegistry(log, TOPIC).register("s2", schema_nr(2))
    assert (await everything(log))["s"] == (made,)
    assert len(await everything(log)) == 2


async def test_a_node_that_waits_sees_what_others_write(log: Log) -> None:
    """V5: ids that came after it read last are found by reading on; ids that never came are unknown."""
    reader, writer = LogRegistry(log, TOPIC), LogRegistry(log, TOPIC)
    with pytest.raises(UnknownSchema):
        await reader.schema(1)
    made = await writer.register("s", schema_nr(1))
    assert await reader.schema(made.schema_id) == schema_nr(1)


async def test_a_known_schema_costs_no_request(log: Log) -> None:
    """V5: registering what is known is a look into memory."""

    class Silent:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the log was asked for {name}")

    node = LogRegistry(log, TOPIC)
    made = await node.register("s", schema_nr(1))
    node._log = Silent()  # type: ignore[assignment]
    assert await node.register("s", schema_nr(1)) == made
    assert await node.schema(made.schema_id) == schema_nr(1)


async def test_foreign_records_and_lost_entries_are_told(log: Log) -> None:
    """V5: a topic that holds something else, or was cut, or made anew, is an error and never a wrong id."""
    node = LogRegistry(log, TOPIC)
    for number in range(3):
        await node.register(f"s{number}", schema_nr(number))
    at = TopicPartition(TOPIC, 0)
    await log.retention.truncate(at, before=1)
    with pytest.raises(IncompatibleData, match="entry 2 without entry 1"):
        await LogRegistry(log, TOPIC).subjects()
    await log.append([NewRecord(TOPIC, b"k", b"hello", partition=0)])
    with pytest.raises(IncompatibleData, match="no entry of a schema registry"):
        await node.subjects()
    await log.admin.delete(TOPIC)
    await LogRegistry(log, TOPIC).register("s", schema_nr(0))
    with pytest.raises(OffsetOutOfRange):
        await node.subjects()


def test_entries_of_a_newer_format_are_refused() -> None:
    """V5: an older node stops rather than guess."""
    newer = Record(TOPIC, 0, 4, 0, b"k", b'{"format": 2, "nr": 1}')
    with pytest.raises(IncompatibleData, match=r"offset 4 can't be used: found format 2"):
        Entries(RegistryContents("r", Level.NONE)).apply(newer)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["read", "decide", "append", "compact"])), max_size=60),
    st.randoms(),
)
def test_any_interleaving_gives_every_node_the_same_ids(steps: list[tuple[int, str]], chance: random.Random) -> None:
    """V5: nodes read, decide and write in any order, entries are lost to compaction when void: one history for all."""
    topic: list[Record] = []
    nodes = [_Node(topic) for _ in range(4)]
    given_back: set[bytes | None] = set()
    for number, step in steps:
        node = nodes[number]
        if step == "read":
            node.read(chance.randint(0, len(topic)))
        elif step == "decide":
            node.decide(chance.randint(0, 5))
        elif step == "append" and node.pending is not None:
            topic.append(Record(TOPIC, 0, len(topic), 0, *node.pending))
            node.pending = None
        elif step == "compact":
            full = _Node(topic)
            full.read(len(topic))
            given_back = {each.key for each in topic if not full.entries.counts(each.key or b"")}
    for node in nodes:
        node.read(len(topic))
    compacted = _Node([each for each in topic if each.key not in given_back])
    compacted.read(len(topic))
    views = [node.view() for node in [*nodes, compacted]]
    assert all(view == views[0] for view in views)
    found = [version for versions in views[0].values() for version in versions]
    schemas = {(version.schema_id, version.schema) for version in found}
    assert sorted(schema_id for schema_id, _ in schemas) == list(range(1, len(schemas) + 1))
    assert len({schema for _, schema in schemas}) == len(schemas)
    for versions in views[0].values():
        assert [version.version for version in versions] == list(range(1, len(versions) + 1))


class _Node:
    """A node without a log: what it has read of the topic, and the entry it is about to write."""

    def __init__(self, topic: list[Record]) -> None:
        self.topic = topic
        self.at = 0
        self.catalogue = RegistryContents("r", Level.NONE)
        self.entries = Entries(self.catalogue)
        self.pending: tuple[bytes, bytes] | None = None

    def read(self, to: int) -> None:
        while self.at < min(to, len(self.topic)):
            self.entries.apply(self.topic[self.at])
            self.at += 1

    def decide(self, choice: int) -> None:
        nr, subject = self.entries.next_nr, f"s{choice % 2}"
        if choice == 5:
            entry = entry_of_level(nr, subject, Level.FULL)
        elif self.catalogue.find(subject, schema_nr(choice)) is None:
            self.catalogue.set_level(subject, Level.NONE)
            entry = entry_of_version(nr, self.catalogue.next_version(subject, schema_nr(choice)))
        else:
            return
        self.pending = (entry.key, entry.value)

    def view(self) -> dict[str, Sequence[Version]]:
        return {subject: self.catalogue.versions(subject) for subject in self.catalogue.subjects()}


CHILD = "headrace.testing.conformance.registry_children:register_many"


@pytest.mark.parametrize("kind", ["log", "folder"])
async def test_processes_agree_even_when_some_are_killed(kind: str, tmp_path: Path) -> None:
    """V5: four processes register at once, one is killed with -9 half-way; the others and the folder agree."""
    address = "log:headrace-schemas" if kind == "log" else f"folder:{tmp_path / 'schemas'}"
    log_address = f"embedded:{tmp_path / 'log'}" if kind == "log" else ""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(running_function(CHILD, address, log_address, seed)) for seed in range(4)]
        await eventually(lambda: _has_lines(children[0].stdout, 3), what="three registrations", within_s=60)
        children[0].kill()
        for child in children[1:]:
            await asyncio.to_thread(child.wait_for_line, "done", 60.0)
        told = {line for child in children for line in child.stdout.splitlines() if line.count(" ") == 1}
    assert len(told) == 12, told
    assert len({line.split()[1] for line in told}) == 12


async def _has_lines(text: str, count: int) -> bool:
    return text.count("\n") >= count


@pytest.mark.servers
async def test_kafkas_topic_is_compacted_and_kept(kafka: Any) -> None:
    """V5: one partition, compacted, without an end of retention."""
    opened = await open_log(f"kafka://{kafka.address}")
    try:
        topic = f"schemas-{uuid.uuid4().hex[:12]}"
        await LogRegistry(opened, topic).register("s", schema_nr(1))
        described = await opened.admin.describe(topic)
        assert (described.partitions, described.config.cleanup.compacts, described.config.retention_ms) == (
            1,
            True,
            None,
        )
    finally:
        await opened.close()
