"""States on both tiers: operations, order of writes, times to live, compound keys, indexes, read-only copies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace.errors import (
    BadArgument,
    Fenced,
    KeyPresent,
    NotStorable,
    NotUnique,
    OperationFailed,
    RecordTooLarge,
    StateConflict,
    StateOffline,
    StateReadOnly,
    TransactionFailed,
    WrongStateTopic,
)
from headrace.model import Cleanup, NewRecord, Position, TopicConfig, TopicPartition, partition_of
from headrace.serde import open_registry
from headrace.state import JsonValues, StatePartition, StateSpec, declaration
from headrace.state.keys import encode_parts
from headrace.testing.conformance.log_setting import read_all
from headrace.testing.crashes import recording


async def everything(state: Any) -> list[tuple[Any, Any]]:
    return [item async for item in state.items()]


async def log_of(tier: Any, spec: StateSpec[Any, Any]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in await read_all(tier.log, spec.topic)]


async def test_the_operations_of_a_state(tier: Any) -> None:
    """S1: get, put, update, get_and_update, update_and_get, insert, delete, remove, scans in pages, count, iterate."""
    spec = tier.spec()
    things = (await tier.owned(spec)).state(spec)
    assert await things.get("a") is None
    await things.put("a", "1")
    await things.insert("b", "2")
    with pytest.raises(KeyPresent, match="'b'"):
        await things.insert("b", "3")
    await things.update("b", lambda old: f"{old}!")
    assert await things.get_and_update("b", lambda old: f"{old}?") == "2!"
    assert await things.update_and_get("new", lambda old: "made" if old is None else old) == "made"
    assert await things.remove("a") == "1"
    assert await things.remove("a") is None
    await things.delete("nobody")
    await things.put("bb", "4")
    await things.update("gone", lambda old: None)
    assert await everything(things) == [("b", "2!?"), ("bb", "4"), ("new", "made")]
    assert await things.count() == 3
    page = await things.range(limit=2)
    assert page == ([("b", "2!?"), ("bb", "4")], "bb")
    assert await things.range(after=page.next_after, limit=2) == ([("new", "made")], None)
    assert (await things.range("b", "c")).items == [("b", "2!?"), ("bb", "4")]
    assert (await things.range(limit=1, reverse=True)) == ([("new", "made")], "new")
    assert (await things.range(after="new", reverse=True)).items == [("bb", "4"), ("b", "2!?")]
    assert (await things.prefix("b")).items == [("b", "2!?"), ("bb", "4")]


async def test_a_copy_made_from_the_log_is_the_same(tier: Any) -> None:
    """S1: another process that reads the topic has what the owner has."""
    spec = tier.spec()
    things = (await tier.owned(spec)).state(spec)
    for n in range(20):
        await things.put(f"k{n % 7}", str(n))
    await things.delete("k3")
    copy = await tier.open(spec, store="rocksdb", node="b")
    assert await everything(copy.state(spec)) == await everything(things)
    assert await copy.state(spec).count() == 6


async def test_a_write_goes_to_the_log_then_to_the_store_then_to_subscribers(tier: Any) -> None:
    """S2: the steps come in this order, and a subscriber that is told finds the value in the store and in the log."""
    spec = tier.spec()
    partition = await tier.owned(spec)
    things = partition.state(spec)
    changes = things.changes("a")
    assert (await anext(changes)).is_present
    with recording() as points:
        waiting = asyncio.ensure_future(anext(changes))
        await things.put("a", "1")
        await waiting
    steps = [point for point in points if point.startswith("state.")]
    assert steps == ["state.before-commit", "state.after-commit", "state.after-apply"]
    assert await log_of(tier, spec) == [(b"a", b"1")]


class FailingWriter:
    """A writer that fails when it is told to, before or after it has written."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.error: Exception | None = None
        self.writes_before = False

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        error, self.error = self.error, None
        if error is None:
            return await self.writer.commit(records)
        if self.writes_before:
            await self.writer.commit(records)
        raise error


class SlowWriter:
    """A writer that counts its commits, and waits in each for as long as it is told to."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.sizes: list[int] = []
        self.is_committing = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        self.sizes.append(len(records))
        self.is_committing.set()
        await self.go_on.wait()
        found: Sequence[Position] = await self.writer.commit(records)
        return found


async def failing(tier: Any, spec: StateSpec[Any, Any]) -> tuple[StatePartition, FailingWriter]:
    partition = await tier.open(spec)
    writer = FailingWriter(await tier.writer(spec))
    partition.own(writer)
    return partition, writer


async def test_a_failed_append_leaves_the_store_untouched(tier: Any) -> None:
    """S2: the caller gets the error, the value is the old one, and the next write goes on."""
    spec = tier.spec()
    partition, writer = await failing(tier, spec)
    things = partition.state(spec)
    await things.put("a", "1")
    writer.error = TransactionFailed("id", "no answer")
    with pytest.raises(TransactionFailed):
        await things.put("a", "2")
    assert await things.get("a") == "1"
    await things.put("a", "3")
    assert await log_of(tier, spec) == [(b"a", b"1"), (b"a", b"3")]


@pytest.mark.parametrize("error", [TransactionFailed("id", "late", outcome_known=False), Fenced("id")])
@pytest.mark.parametrize("is_written", [True, False])
async def test_after_an_unknown_outcome_nothing_is_served_before_the_log_was_read(
    error: Exception, is_written: bool, embedded: Any
) -> None:
    """S2: the store is right whether the commit happened or not, and until that is known it answers nobody."""
    spec = embedded.spec()
    partition, writer = await failing(embedded, spec)
    things = partition.state(spec)
    await things.put("a", "1")
    writer.error, writer.writes_before = error, is_written
    with pytest.raises(type(error)):
        await things.put("a", "2")
    for call in (things.get("a"), things.put("a", "3"), things.count(), things.range()):
        with pytest.raises(StateOffline):
            await call
    await partition.catch_up()
    assert await things.get("a") == ("2" if is_written else "1")
    await things.put("a", "3")
    assert await things.get("a") == "3"


async def test_a_store_holds_exactly_the_successes(tier: Any, request: pytest.FixtureRequest) -> None:
    """S10: a third of 1000 writes fail; store and log hold what was acknowledged, no more and no less."""
    spec = tier.spec()
    partition, writer = await failing(tier, spec)
    things, chance, kept = partition.state(spec), random.Random(10), dict[str, str]()

    async def put(n: int) -> None:
        with contextlib.suppress(TransactionFailed):
            await things.put(f"k{n % 400}", str(n))
            kept[f"k{n % 400}"] = str(n)

    at_once = 20 if "kafka" in request.node.name else 1  # a broker takes some milliseconds for each transaction
    for start in range(0, 1000, at_once):
        if chance.random() < 1 / 3:
            writer.error = TransactionFailed("id", "refused")
        await asyncio.gather(*(put(n) for n in range(start, start + at_once)))
    assert 100 < len(kept) < 400
    assert dict(await everything(things)) == kept
    copy = await tier.open(spec)
    assert dict(await everything(copy.state(spec))) == kept


async def test_an_equal_value_writes_nothing_and_tells_nobody(tier: Any) -> None:
    """S3: update with an equal value leaves the log alone, also if the function changed the value that it was given."""
    spec = tier.spec(value=JsonValues(dict))
    things = (await tier.owned(spec)).state(spec)
    await things.put("a", {"x": 1, "y": 2})
    changes = things.changes("a")
    await anext(changes)
    await things.update("a", lambda old: {"y": 2, "x": 1})
    await things.update("none", lambda old: None)
    assert len(await log_of(tier, spec)) == 1

    def grow(value: Any) -> Any:
        value["x"] += 1
        return value

    await things.update("a", grow)
    assert (await anext(changes)).value == {"x": 2, "y": 2}
    assert len(await log_of(tier, spec)) == 2


async def test_values_live_for_as_long_as_they_were_given(tier: Any) -> None:
    """S4: with a ttl of 5 s and values aged 9, 3 and 0 s the first is absent, iteration gives 2, count is 2."""
    for ttl, left in ((5, ["b", "c"]), (None, ["a", "b", "c"])):
        spec = tier.spec(ttl=ttl)
        partition = await tier.owned(spec)
        things = partition.state(spec)
        await things.put("a", "9 s")
        tier.clock.advance(6)
        await things.put("b", "3 s")
        tier.clock.advance(3)
        await things.put("c", "0 s")
        standby = (await tier.open(spec)).state(spec)
        for state in (standby, things):
            assert [key for key, _ in await everything(state)] == left
            assert await state.count() == len(left)
            assert (await state.get("a") is None) == ("a" not in left)
        tombstones = [key for key, value in await log_of(tier, spec) if value is None]
        assert tombstones == ([b"a"] if ttl else []), "what the owner did not show has a tombstone"


async def test_a_time_to_live_can_belong_to_a_key_or_to_a_write(embedded: Any) -> None:
    """S4: the write's own counts, else the key's, else the state's; one that is over already is a deletion."""
    spec = embedded.spec(ttl="1h", longest_ttl="2h", ttl_of=lambda key, value: 10 if key == "short" else None)
    partition = await embedded.owned(spec)
    things = partition.state(spec)
    await things.put("short", "10 s")
    await things.put("own", "20 s", ttl=20)
    await things.put("usual", "1 h")
    await things.put("gone", "there")
    await things.put("gone", "over", ttl=0)
    with pytest.raises(BadArgument, match="longest_ttl"):
        await things.put("own", "forever", ttl="3h")
    seen = []
    for seconds in (0, 10, 10, 3580):
        embedded.clock.advance(seconds)
        copy = await embedded.open(spec)
        seen.append([key for key, _ in await everything(copy.state(spec))])
    assert seen == [["own", "short", "usual"], ["own", "usual"], ["usual"], []]
    assert (await log_of(embedded, spec))[-1] == (b"gone", None)


async def test_expiry_is_told_and_leaves_tombstones(embedded: Any) -> None:
    """S4: the owner turns what is due into tombstones that carry the present time, and subscribers learn of them."""
    spec = embedded.spec(ttl=5)
    partition = await embedded.owned(spec)
    things = partition.state(spec)
    await things.put("a", "1")
    changes = things.changes("a")
    await anext(changes)
    embedded.clock.advance(100)
    assert await partition.expire_due() == 1
    assert await partition.expire_due() == 0
    change = await anext(changes)
    assert (change.value, change.is_expiry) == (None, True)
    (_, tombstone) = await read_all(embedded.log, spec.topic)
    assert (tombstone.value, tombstone.timestamp_ms) == (None, embedded.clock.now_ms())
    assert partition.replicas[spec.name].key_count == 0


async def test_two_clocks_never_disagree_about_an_expired_key(tier: Any) -> None:
    """S17: what one owner said is gone stays gone for the next one, though its clock is a minute behind."""
    spec = tier.spec(ttl=5)
    behind = type(tier.clock)(tier.clock.now_ms() - 60_000)
    first = await tier.owned(spec)
    await first.state(spec).put("a", "1")
    tier.clock.advance(6)
    assert await first.state(spec).get("a") is None
    second = await tier.owned(spec, clock=behind)
    assert await second.state(spec).get("a") is None
    await second.state(spec).put("c", "3")
    records = await read_all(tier.log, spec.topic)
    stamps = [record.timestamp_ms for record in records]
    assert stamps == sorted(stamps), "an owner never stamps earlier than its partition"
    assert await second.state(spec).get("c") == "3"
    tier.clock.advance(6)
    third = await tier.owned(spec)
    assert await third.state(spec).get("c") is None
    fourth = await tier.owned(spec, clock=behind)
    assert await fourth.state(spec).get("c") is None


async def test_an_owner_writes_on_though_its_clock_was_put_back(embedded: Any) -> None:
    """S17: it stamps no earlier than its partition, and lives of values count from there."""
    spec = embedded.spec(ttl=60)
    things = (await embedded.owned(spec)).state(spec)
    await things.put("a", "1")
    embedded.clock.set(embedded.clock.now_ms() - 3_600_000)
    await things.put("b", "2")
    first, second = await read_all(embedded.log, spec.topic)
    assert first.timestamp_ms == second.timestamp_ms
    assert await things.count() == 2


async def test_an_owner_that_was_replaced_can_not_say_that_a_key_is_gone(tier: Any) -> None:
    """S17: a read that finds a due key commits its tombstone first, which a former owner can't."""
    spec = tier.spec(ttl=5)
    first = await tier.owned(spec)
    await first.state(spec).put("a", "1")
    await tier.owned(spec)
    tier.clock.advance(6)
    with pytest.raises(Fenced):
        await first.state(spec).get("a")


async def test_an_owner_that_was_replaced_goes_on_as_a_standby(tier: Any) -> None:
    """S17: it gives the partition up, follows the log, and shows what the next owner writes."""
    spec = tier.spec()
    first = await tier.owned(spec)
    await first.state(spec).put("a", "1")
    second = await tier.owned(spec)
    await second.state(spec).put("a", "2")
    with pytest.raises(Fenced):
        await first.state(spec).put("a", "never")
    with pytest.raises(StateOffline):
        await first.state(spec).get("a")
    with pytest.raises(BadArgument, match="catch_up"):
        first.own(await tier.writer(tier.spec()))
    await first.disown()
    first.follow()
    written = second.replicas[spec.name].entry(b"a").offset  # type: ignore[union-attr]
    await asyncio.wait_for(first.replicas[spec.name].wait_past(written), 20)
    assert await first.state(spec).get("a") == "2"


async def test_ranges_of_compound_keys(tier: Any) -> None:
    """S8: range(1000) 3, range(1000, x) 2, range(2000) 2, range(3000, "!") none."""
    spec = tier.spec(key=tuple[int, str, int])
    things = (await tier.owned(spec)).state(spec)
    keys = [(1000, "x", 1), (1000, "x", 2), (1000, "y", 1), (2000, "x", -1), (2000, "z", 0)]
    for key in reversed(keys):
        await things.put(key, "v")
    asked = [(1000,), (1000, "x"), (2000,), (3000, "!")]
    assert [len((await things.prefix(prefix)).items) for prefix in asked] == [3, 2, 2, 0]
    assert [key for key, _ in await everything(things)] == keys
    between = await things.range((1000, "x", 2), (2000, "y"))
    assert [key for key, _ in between.items] == keys[1:4]


async def test_an_external_topic_is_read_and_never_written(tier: Any) -> None:
    """S9: a state over somebody else's topic shows what is there; writes are refused and the topic's settings stay."""
    config = TopicConfig(retention_ms=1_000_000)
    await tier.log.admin.create("theirs" + (topic := tier.spec().topic), partitions=1, config=config)
    spec = tier.spec(topic="theirs" + topic, is_external=True)
    await tier.log.append([NewRecord(spec.topic, b"a", b"1"), NewRecord(spec.topic, b"b", b"2")])
    await tier.log.append([NewRecord(spec.topic, b"a", None), NewRecord(spec.topic, None, b"no key")])
    partition = await tier.open(spec)
    things = partition.state(spec)
    assert await everything(things) == [("b", "2")]
    partition.own(await tier.writer(spec))
    for call in (things.put("c", "3"), things.delete("b"), things.update("b", str)):
        with pytest.raises(StateReadOnly, match="only read"):
            await call
    assert (await tier.log.admin.describe(spec.topic)).config.retention_ms == 1_000_000


async def test_an_owner_follows_the_topics_of_others(tier: Any) -> None:
    """S9: beside states that it writes, an owner sees what others write; it hides what is due and deletes nothing."""
    theirs = tier.spec("theirs", is_external=True, ttl=5)
    await tier.log.admin.create(theirs.topic, partitions=1, config=TopicConfig())
    mine = tier.spec("mine")
    partition = await tier.owned(mine, theirs)
    await partition.state(mine).put("a", "1")
    now_ms = tier.clock.now_ms()
    await tier.log.append([NewRecord(theirs.topic, b"b", b"2", timestamp_ms=now_ms)])
    await asyncio.wait_for(partition.replicas["theirs"].wait_past(0), 20)
    assert await partition.state(theirs).get("b") == "2"
    tier.clock.advance(6)
    assert await partition.state(theirs).get("b") is None
    assert (await partition.state(theirs).count(), await partition.expire_due()) == (0, 0)
    assert len(await log_of(tier, theirs)) == 1


async def test_changes_of_a_topic_that_may_hide_them_are_refused(embedded: Any) -> None:
    """S9: without a minimum lag compaction could remove a change before anybody reads it; values can be read."""
    spec = embedded.spec(is_external=True)
    await embedded.log.admin.create(spec.topic, partitions=1, config=TopicConfig(cleanup=Cleanup.COMPACT))
    await embedded.log.append([NewRecord(spec.topic, b"a", b"1")])
    things = (await embedded.open(spec)).state(spec)
    assert await things.read("a") == ("1", None, 0)
    with pytest.raises(WrongStateTopic, match=r"min\.compaction\.lag\.ms is 0"):
        await anext(things.changes("a"))


async def test_a_copy_that_is_not_the_owner_refuses_writes(embedded: Any) -> None:
    """S9: a standby says who takes writes, and so does an owner that gave the partition up."""
    spec = embedded.spec()
    partition = await embedded.open(spec)
    with pytest.raises(StateReadOnly, match="owner"):
        await partition.state(spec).put("a", "1")
    partition.own(await embedded.writer(spec))
    await partition.state(spec).put("a", "1")
    await partition.disown()
    with pytest.raises(StateReadOnly, match="given the partition up"):
        await partition.state(spec).put("a", "2")
    assert await partition.state(spec).get("a") == "1"


async def test_the_topic_is_made_and_brought_into_line(tier: Any) -> None:
    """S12: compacted, deleted by age only if every value has a ttl, re-configured when the declaration changes."""
    spec = tier.spec(topic_config=TopicConfig(max_record_bytes=5000))
    await tier.open(spec)
    made = (await tier.log.admin.describe(spec.topic)).config
    assert (made.cleanup, made.retention_ms) == (Cleanup.COMPACT, None)
    assert made.min_compaction_lag_ms > 0
    again = StateSpec(name="things", topic=spec.topic, key=str, value=str, ttl="30d", longest_ttl="60d")
    await tier.open(again)
    made = (await tier.log.admin.describe(spec.topic)).config
    assert made.cleanup is Cleanup.COMPACT_DELETE
    assert made.retention_ms == 60 * 86_400_000 + made.tombstone_retention_ms


async def test_a_topic_that_can_not_be_changed_is_named(tier: Any) -> None:
    """S12: another number of partitions is an error with both numbers and what to do."""
    spec = tier.spec(partitions=3)
    await tier.log.admin.create(spec.topic, partitions=2, config=TopicConfig())
    with pytest.raises(WrongStateTopic, match=r"has 2 partitions.*declared with 3.*copy the state"):
        await tier.open(spec)


async def test_a_delta_reaches_subscribers_and_the_store_has_the_whole_value(tier: Any) -> None:
    """S11: the increment is pushed beside the value, at the owner and at a copy; a read gives the whole value."""
    spec = tier.spec(value=int, delta=int)
    partition = await tier.owned(spec)
    counts = partition.state(spec)
    copy = await tier.open(spec)
    copy.follow()
    subscriptions = [counts.changes("a"), copy.state(spec).changes("a")]
    for changes in subscriptions:
        assert (await anext(changes)).value is None
    for increment in (5, 7):
        await counts.add_delta("a", increment, lambda value, delta: (value or 0) + delta)
    assert await counts.get("a") == 12
    for changes in subscriptions:
        pushed = [await asyncio.wait_for(anext(changes), 20) for _ in range(2)]
        assert [(change.delta, change.value) for change in pushed] == [(5, 5), (7, 12)]
        await changes.aclose()


async def test_a_unit_of_work_commits_all_its_states_or_none(tier: Any) -> None:
    """S2: writes to several states are one transaction; the unit reads its own writes, others see them together."""
    left, right = tier.spec("left"), tier.spec("right", key=tuple[str, int], value=int)
    partition = await tier.owned(left, right)
    async with partition.unit_of_work() as unit:
        texts, numbers = partition.state(left, unit), partition.state(right, unit)
        await texts.put("a", "1")
        await numbers.put(("a", 1), 10)
        await numbers.put(("a", 2), 20)
        await numbers.delete(("a", 1))
        assert await texts.get("a") == "1"
        assert await everything(numbers) == [(("a", 2), 20)]
        assert (await texts.count(), await numbers.count()) == (1, 1)
        assert await partition.state(left).get("a") is None

    async def fail() -> None:
        async with partition.unit_of_work() as unit:
            await partition.state(left, unit).put("a", "2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await partition.state(left).get("a") == "1"
    assert await everything(partition.state(right)) == [(("a", 2), 20)]
    assert await log_of(tier, left) == [(b"a", b"1")]


async def test_a_unit_of_work_is_refused_if_a_key_it_read_has_changed(embedded: Any) -> None:
    """S2: nothing of it is written then, and what it saw in the meantime does not count."""
    spec = embedded.spec()
    partition = await embedded.owned(spec)

    async def be_overtaken() -> None:
        async with partition.unit_of_work() as unit:
            mine = partition.state(spec, unit)
            await mine.put("b", f"saw {await mine.get('a')}")
            await partition.state(spec).put("a", "other")

    with pytest.raises(StateConflict, match="'a'"):
        await be_overtaken()
    assert await everything(partition.state(spec)) == [("a", "other")]


async def test_updates_of_one_key_at_once_all_count(embedded: Any) -> None:
    """S1: 50 increments at the same time, and transfers between two keys by units that try again, lose nothing."""
    spec = embedded.spec(value=int)
    partition = await embedded.owned(spec)
    counts = partition.state(spec)
    await asyncio.gather(*(counts.update("a", lambda value: (value or 0) + 1) for _ in range(50)))
    assert await counts.get("a") == 50

    async def transfer() -> None:
        while True:
            try:
                async with partition.unit_of_work() as unit:
                    mine = partition.state(spec, unit)
                    await mine.put("a", (await mine.get("a") or 0) - 1)
                    await asyncio.sleep(0)
                    await mine.put("b", (await mine.get("b") or 0) + 1)
                return
            except StateConflict:
                continue

    await asyncio.gather(*(transfer() for _ in range(10)))
    assert (await counts.get("a"), await counts.get("b")) == (40, 10)


async def test_units_that_wait_share_a_transaction(embedded: Any) -> None:
    """S2: writes that come while one is being committed go into the next one together, in their order."""
    spec = embedded.spec()
    partition = await embedded.open(spec)
    sizes: list[int] = []

    class Counting(FailingWriter):
        async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
            sizes.append(len(records))
            return await super().commit(records)

    partition.own(Counting(await embedded.writer(spec)))
    await asyncio.gather(*(partition.state(spec).put(f"k{n}", str(n)) for n in range(100)))
    assert sum(sizes) == 100
    assert len(sizes) <= 3
    assert await partition.state(spec).count() == 100


async def test_puts_of_one_key_share_a_transaction_and_each_is_published(embedded: Any) -> None:
    """S7: a put depends on nothing that was there before, so a hundred of one key need not wait for each other."""
    spec = embedded.spec()
    partition = await embedded.open(spec)
    writer = SlowWriter(await embedded.writer(spec))
    partition.own(writer)
    things, published = partition.state(spec), partition.replica(spec.name).feed
    subscription = published.subscribe(b"a", after=None)
    await anext(subscription)
    await asyncio.gather(*(things.put("a", str(n)) for n in range(100)))
    assert len(writer.sizes) <= 3
    assert [(await anext(subscription)).value for _ in range(100)] == [str(n).encode() for n in range(100)]
    assert await things.get("a") == "99"
    assert await log_of(embedded, spec) == [(b"a", str(n).encode()) for n in range(100)]


async def test_a_put_reads_its_key_at_most_once_when_it_is_applied(embedded: Any) -> None:
    """S2: it looks at the store only to find which rows it replaces, and not at all if it wrote the key lately."""
    spec = embedded.spec()
    partition = await embedded.owned(spec)
    things, store, reads = partition.state(spec), partition._stores[0], list[bytes]()
    real = store.get

    def counted(key: bytes) -> bytes | None:
        reads.append(key)
        return real(key)

    store.get = counted  # type: ignore[method-assign]
    await things.put("a", "1")
    await things.put("a", "2")
    assert reads == [b"da"]


async def test_a_key_that_was_removed_or_got_a_ttl_is_not_taken_for_what_it_was(embedded: Any) -> None:
    """S2: what the owner remembers of the rows that it wrote follows removals, and keys that are due some day."""
    spec = embedded.spec()
    partition = await embedded.owned(spec)
    things = partition.state(spec)
    await things.put("a", "1")
    await things.remove("a")
    assert await things.count() == 0
    await things.put("a", "2")
    assert (await things.count(), await things.get("a")) == (1, "2")
    await things.put("a", "3", ttl="1h")
    await things.put("a", "4")
    assert (await things.count(), await things.get("a")) == (1, "4")
    assert partition._stores[0].count(b"x", b"y") == 0, "no row is left that makes the key due"


async def test_an_update_gets_its_turn_while_others_put_the_same_key(embedded: Any) -> None:
    """S1: puts go behind an update that waits, or a key that is put all the time could never be updated."""
    spec = embedded.spec(value=int)
    partition = await embedded.open(spec)
    writer = SlowWriter(await embedded.writer(spec))
    partition.own(writer)
    counts, is_over = partition.state(spec), asyncio.Event()

    async def put_on() -> None:
        while not is_over.is_set():
            await counts.put("a", 0)

    async def transfer() -> None:
        """Do as a handler does: read, write, and begin again after a conflict, without the locks of single updates."""
        for _ in range(20):
            with contextlib.suppress(StateConflict):
                async with partition.unit_of_work() as unit:
                    mine = partition.state(spec, unit)
                    await mine.put("a", (await mine.get("a") or 0) + 1)
                return
        raise AssertionError("it never got its turn")

    putting = [asyncio.create_task(put_on()) for _ in range(20)]
    try:
        async with asyncio.timeout(5):
            for update in (transfer, lambda: counts.update("a", lambda value: (value or 0) + 1), transfer):
                writer.is_committing.clear()
                await writer.is_committing.wait()
                await update()
    finally:
        is_over.set()
        await asyncio.gather(*putting)


async def test_a_put_gets_its_turn_while_others_update_the_same_key(embedded: Any) -> None:
    """S1: a put waits for the units that were there before it, and not for those that come after it."""
    spec = embedded.spec(value=int)
    partition = await embedded.open(spec)
    writer = SlowWriter(await embedded.writer(spec))
    partition.own(writer)
    is_over = asyncio.Event()

    async def update_on() -> None:
        while not is_over.is_set():
            with contextlib.suppress(StateConflict):
                async with partition.unit_of_work() as unit:
                    mine = partition.state(spec, unit)
                    await mine.put("a", (await mine.get("a") or 0) + 1)

    updating = [asyncio.create_task(update_on()) for _ in range(5)]
    try:
        async with asyncio.timeout(5):
            for _ in range(3):
                writer.is_committing.clear()
                await writer.is_committing.wait()
                await partition.state(spec).put("a", 0)
    finally:
        is_over.set()
        await asyncio.gather(*updating)


async def test_a_unit_waits_for_a_write_whose_caller_has_given_up(embedded: Any) -> None:
    """S2: the caller is gone, the write is not: what depends on the key sees it."""
    spec = embedded.spec(value=int)
    partition = await embedded.open(spec)
    writer = SlowWriter(await embedded.writer(spec))
    partition.own(writer)
    counts = partition.state(spec)
    writer.go_on.clear()
    writing = asyncio.ensure_future(counts.put("a", 10))
    await writer.is_committing.wait()
    updating = asyncio.ensure_future(counts.update("a", lambda value: (value or 0) + 1))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    assert not updating.done()
    writer.go_on.set()
    await updating
    assert await counts.get("a") == 11


async def test_a_caller_that_gives_up_does_not_undo_a_commit(embedded: Any) -> None:
    """S2: a cancelled write is committed or not, and the store says which."""
    spec = embedded.spec()
    partition = await embedded.owned(spec)
    things = partition.state(spec)
    writing = asyncio.ensure_future(things.put("a", "1"))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await things.put("b", "2")
    assert await log_of(embedded, spec) == [(key.encode(), value.encode()) for key, value in await everything(things)]


async def test_a_record_that_is_too_large_fails_alone(embedded: Any) -> None:
    """S10: it is refused before it meets the records of others."""
    spec = embedded.spec(topic_config=TopicConfig(max_record_bytes=2000))
    things = (await embedded.owned(spec)).state(spec)
    results = await asyncio.gather(
        things.put("a", "small"), things.put("b", "x" * 3000), things.put("c", "small"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), RecordTooLarge, type(None)]
    assert [key for key, _ in await everything(things)] == ["a", "c"]


async def test_a_store_that_fails_after_the_commit_stops_answering(embedded: Any) -> None:
    """S18: what is committed and not applied is not hidden: the copy is offline until it has read the log again."""
    spec = embedded.spec()
    partition = await embedded.owned(spec)
    things, store = partition.state(spec), partition._stores[0]
    await things.put("a", "1")
    real, store.write = store.write, full_disk  # type: ignore[method-assign]
    with pytest.raises(OperationFailed, match="may or may not have happened"):
        await things.put("a", "2")
    store.write = real  # type: ignore[method-assign]
    with pytest.raises(StateOffline):
        await things.get("a")
    await partition.catch_up()
    assert await things.get("a") == "2"


def full_disk(*_: object, **__: object) -> None:
    from headrace.errors import StateDiskFull

    raise StateDiskFull("./state", "No space left on device")


async def test_keys_of_another_partition_are_refused(embedded: Any) -> None:
    """C1: a key is written where every Kafka client looks for it, or not at all."""
    spec = embedded.spec(partitions=4)
    things = (await embedded.owned(spec)).state(spec)
    ours = next(key for key in map(str, range(40)) if partition_of(key.encode(), 4) == 0)
    other = next(key for key in map(str, range(40)) if partition_of(key.encode(), 4) == 3)
    await things.put(ours, "v")
    with pytest.raises(BadArgument, match="belongs to partition 3 of 4, this is 0"):
        await things.put(other, "v")
    with pytest.raises(NotStorable):
        await things.put(1, "v")


@dataclass
class Person:
    name: str
    email: str | None = None
    groups: tuple[str, ...] = ()
    age: int = 0


class People(JsonValues[Person]):
    """Persons as JSON."""

    def __init__(self) -> None:
        super().__init__(Person)


def people(setting: Any, **declared: Any) -> StateSpec[str, Person]:
    return setting.spec(
        "people",
        value=People(),
        index={"by_group": lambda p: list(p.groups), "by_age": lambda p: (p.age // 10, p.age)},
        unique={"email": lambda p: p.email},
        **declared,
    )


async def test_indexes_follow_the_values(tier: Any) -> None:
    """S1: an index finds the keys of a value, in pages, at the owner and at a copy; changes and deletions move rows."""
    spec = people(tier)
    partition = await tier.owned(spec)
    state = partition.state(spec)
    await state.put("ann", Person("Ann", "a@x", ("red", "blue"), 31))
    await state.put("bob", Person("Bob", "b@x", ("red",), 35))
    await state.put("cid", Person("Cid", None, ("red",), 42))
    await state.update("ann", lambda p: Person("Ann", "a@x", ("blue",), 32))
    await state.delete("cid")
    await state.put("dan", Person("Dan", None, ("red",), 9))
    for seen in (state, (await tier.open(spec, store="rocksdb", node="b")).state(spec)):
        assert [key for key, _ in (await seen.find("by_group", "red")).items] == ["bob", "dan"]
        assert (await seen.find("by_group", "red", limit=1)).next_after == "bob"
        assert [key for key, _ in (await seen.find("by_group", "red", after="bob")).items] == ["dan"]
        assert [key for key, _ in (await seen.find("by_age", (3, 32))).items] == ["ann"]
        assert (await seen.find("by_age", 3)).items == [], "a part of a compound value is another value"
        assert [p.name for _, p in (await seen.find("email", "b@x")).items] == ["Bob"]
        with pytest.raises(BadArgument, match="by_group"):
            await seen.find("by_name", "Ann")


async def test_unique_values_are_refused_within_a_partition(embedded: Any) -> None:
    """S1: the holder is named; in one unit, at the same time, and after it gave the value up, it is as one expects."""
    spec = people(embedded, ttl=60)
    partition = await embedded.owned(spec)
    state = partition.state(spec)
    await state.put("ann", Person("Ann", "a@x"))
    with pytest.raises(NotUnique, match=r"'bob'.*email 'a@x' belongs to 'ann'"):
        await state.put("bob", Person("Bob", "a@x"))
    await state.put("ann", Person("Anna", "a@x"))
    results = await asyncio.gather(
        state.put("cid", Person("Cid", "c@x")), state.put("dan", Person("Dan", "c@x")), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "NotUnique"]
    async with partition.unit_of_work() as unit:  # an exchange within one unit
        mine = partition.state(spec, unit)
        await mine.put("ann", Person("Ann", "new@x"))
        await mine.put("bob", Person("Bob", "a@x"))

    async def claim_twice() -> None:
        async with partition.unit_of_work() as unit:
            mine = partition.state(spec, unit)
            await mine.put("eve", Person("Eve", "e@x"))
            await mine.put("fay", Person("Fay", "e@x"))

    with pytest.raises(NotUnique):
        await claim_twice()
    await state.delete("bob")
    await state.put("gus", Person("Gus", "a@x"))
    embedded.clock.advance(61)
    await state.put("hal", Person("Hal", "a@x"))
    assert [key for key, _ in (await state.find("email", "a@x")).items] == ["hal"]


async def test_a_key_is_not_taken_for_a_part_of_the_value_before_it(embedded: Any) -> None:
    """S1: in a row of an index the key follows the value: keys of bytes that look like the rest of a longer text, or
    like another part, stay apart from those that have the longer value."""
    pairs = {
        b"\xffb\x00k": ("a",),
        b"k": ("a\x00b",),
        b"\x02c\x00k": ("a",),
        b"\x00k": ("a", "c"),
        b"\xff": ("a",),
    }
    of_key: dict[bytes, tuple[str, ...]] = {}
    kinds = {"by_path": lambda value: tuple(value.split("/"))}
    spec = embedded.spec(key=bytes, value=str, index=kinds)
    unique = embedded.spec("unique", key=bytes, value=str, unique=kinds)
    state = (await embedded.owned(spec)).state(spec)
    for key, parts in pairs.items():
        await state.put(key, "/".join(parts))
        of_key[key] = parts
        for value in set(pairs.values()):
            found = [each for each, _ in (await state.find("by_path", value)).items]
            assert found == sorted(each for each, its in of_key.items() if its == value)
    await state.delete(b"k")
    assert [each for each, _ in (await state.find("by_path", "a")).items] == [b"\x02c\x00k", b"\xff", b"\xffb\x00k"]
    alone = (await embedded.owned(unique)).state(unique)
    await alone.put(b"k", "a\x00b")
    await alone.put(b"\xffb\x00k", "a")
    with pytest.raises(NotUnique):
        await alone.put(b"other", "a\x00b")


async def test_rows_of_an_older_format_are_made_again(embedded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: a folder whose index rows have no end behind the value is rebuilt; one without indexes is not."""
    spec = embedded.spec("old", value=str, index={"by_value": lambda value: value})
    plain = embedded.spec("plain", value=str)
    with monkeypatch.context() as before:
        before.setattr(declaration, "INDEX_FORMAT", 1)
        before.setattr(declaration, "index_row", lambda index, value: index.encode() + b"\0" + encode_parts((value,)))
        old = StateSpec(name="old", topic=spec.topic, key=str, value=str, index=spec.index)
        partition = await embedded.owned(old, store="rocksdb")
        await partition.state(old).put("k", "a")
        await partition.close()
        layout = StateSpec(name="plain", topic=plain.topic, key=str, value=str).layout
    partition = await embedded.open(spec, store="rocksdb")
    assert [key for key, _ in (await partition.state(spec).find("by_value", "a")).items] == ["k"]
    assert plain.layout == layout


async def test_other_indexes_rebuild_the_copy(embedded: Any) -> None:
    """S6: rows of indexes are made of the log; a declaration with another index makes the store again."""
    plain = embedded.spec("people", value=People())
    partition = await embedded.owned(plain, store="rocksdb")
    await partition.state(plain).put("ann", Person("Ann", "a@x"))
    await partition.close()
    spec = StateSpec(name="people", topic=plain.topic, key=str, value=People(), index={"name": lambda p: p.name})
    partition = await embedded.open(spec, store="rocksdb")
    assert [key for key, _ in (await partition.state(spec).find("name", "Ann")).items] == ["ann"]


async def test_a_value_that_nobody_can_decode_harms_its_own_key_only(embedded: Any) -> None:
    """S9: another program's nonsense is in no index, raises when it is read, and stops nothing else."""
    spec = people(embedded)
    partition = await embedded.owned(spec)
    await partition.state(spec).put("ann", Person("Ann", "a@x"))
    await embedded.log.append([NewRecord(spec.topic, b"bad", b"{", partition=0)])
    copy = (await embedded.open(spec)).state(spec)
    with pytest.raises(Exception, match="JSON"):
        await copy.get("bad")
    assert (await copy.get("ann")).name == "Ann"
    assert len((await copy.find("email", "a@x")).items) == 1


@pytest.mark.parametrize("kind", ["index", "unique"])
async def test_a_value_that_an_index_fails_for_is_refused_before_it_is_written(embedded: Any, kind: str) -> None:
    """S2: after the commit it would be too late: the copy could not take it, now and after every restart."""
    spec = embedded.spec(value=int, **{kind: {"share": lambda value: 100 // value}})
    partition = await embedded.owned(spec)
    state = partition.state(spec)
    await state.put("ann", 5)
    with pytest.raises(NotStorable, match="'share' fails for it: ZeroDivisionError"):
        await state.put("bob", 0)
    with pytest.raises(NotStorable, match="'share' fails for it"):
        await state.update("ann", lambda _: 0)
    unit = partition.begin()
    await partition.state(spec, unit).put("cid", 2)
    await partition.state(spec, unit).put("bob", 0)
    with pytest.raises(NotStorable, match="'share' fails for it"):
        await unit.commit()
    await state.put("bob", 10)
    assert [await state.get(key) for key in ("ann", "bob", "cid")] == [5, 10, None]
    assert [key for key, _ in (await state.find("share", 10)).items] == ["bob"]
    assert [each.key for each in await read_all(embedded.log, spec.topic)] == [b"ann", b"bob"]


@pytest.mark.parametrize("kind", ["index", "unique"])
async def test_stored_values_that_a_new_index_fails_for_stop_nothing(embedded: Any, kind: str) -> None:
    """S9: they were written before there was such an index; they are in it as soon as they are written again."""
    before = embedded.spec(value=int)
    partition = await embedded.owned(before)
    for key, value in (("ann", 5), ("bob", 0), ("cid", 4)):
        await partition.state(before).put(key, value)
    await partition.close()
    spec = StateSpec(
        name=before.name, topic=before.topic, key=str, value=int, **{kind: {"share": lambda value: 100 // value}}
    )
    state = (await embedded.owned(spec)).state(spec)
    assert [await state.get(key) for key in ("ann", "bob", "cid")] == [5, 0, 4]
    assert [key for key, _ in (await state.find("share", 25)).items] == ["cid"]
    await state.put("bob", 2)
    await state.delete("cid")
    assert [key for key, _ in (await state.find("share", 50)).items] == ["bob"]


class Account(msgspec.Struct):
    owner: str
    balance: int = 0


async def test_values_of_a_class_are_avro(tier: Any) -> None:
    """S1: a class needs no codec: its schema is registered, and any Confluent client can read the topic."""
    registry = await open_registry("log:schemas-" + tier.spec().topic, log=tier.log)
    spec = tier.spec("accounts", value=Account, index={"owner": lambda account: account.owner})

    async def open_partition() -> StatePartition:
        from headrace.state.memory import MemoryStore

        async def open_store(_: Any) -> MemoryStore:
            return MemoryStore()

        opened = await StatePartition.open(tier.log, [spec], 0, open_store=open_store, registry=registry)
        tier.opened.append(opened)
        await opened.catch_up()
        return opened

    partition = await open_partition()
    partition.own(await tier.writer(spec))
    await partition.state(spec).put("a", Account("ann", 5))
    assert await partition.state(spec).update_and_get("a", lambda old: Account(old.owner, old.balance + 1)) == Account(
        "ann", 6
    )
    copy = (await open_partition()).state(spec)
    assert (await copy.find("owner", "ann")).items == [("a", Account("ann", 6))]
    (record, *_) = await read_all(tier.log, spec.topic)
    assert (record.value or b"")[0] == 0
    with pytest.raises(BadArgument, match="registry"):
        await tier.open(spec)


async def test_reserved_records_are_skipped(tier: Any) -> None:
    """S16: epochs and releases lie in the changelog under reserved keys; they are no keys of the state."""
    spec = tier.spec()
    partition = await tier.owned(spec)
    things = partition.state(spec)
    await things.put("a", "1")
    headers = (("headrace.batch", b"7:3"),)
    await tier.log.append([NewRecord(spec.topic, b"\0hr-epoch", b"{}", headers, partition=0)])
    seen: list[Any] = []
    copy = await tier.open(spec)
    copy.replicas[spec.name]._on_reserved = seen.append
    await tier.log.append([NewRecord(spec.topic, b"\0hr-release", None, (("headrace.batch", b"7:4"),), partition=0)])
    await copy.catch_up()
    assert await everything(copy.state(spec)) == [("a", "1")]
    assert await copy.state(spec).count() == 1
    assert copy.replicas[spec.name].last_batch == (7, 4)
    assert [record.key for record in seen] == [b"\0hr-release"]
    assert copy.replicas[spec.name].complete_offset == (await tier.log.bounds(TopicPartition(spec.topic, 0))).end


async def test_a_unique_value_is_found_among_longer_ones(embedded: Any) -> None:
    """Values of an index may be the beginning of others; of however many."""
    spec = embedded.spec(value=str, unique={"path": lambda value: tuple(value.split("/"))})
    things = (await embedded.owned(spec)).state(spec)
    await things.put("z", "a")
    for number in range(100):
        await things.put(f"k{number}", f"a/{number}")
    with pytest.raises(NotUnique, match="'z'"):
        await things.put("other", "a")


async def test_values_that_json_has_for_nothing_end_no_page(embedded: Any) -> None:
    """Others may write null; what comes behind is read all the same."""
    spec = embedded.spec(is_external=True, value=JsonValues(Any))
    await embedded.log.admin.create(spec.topic, partitions=1, config=TopicConfig(cleanup=Cleanup.COMPACT))
    nulls = [NewRecord(spec.topic, b"k%03d" % number, b"null", partition=0) for number in range(300)]
    await embedded.log.append([*nulls, NewRecord(spec.topic, b"z", b"1", partition=0)])
    assert await everything((await embedded.open(spec)).state(spec)) == [("z", 1)]


async def test_a_topic_of_others_that_was_made_again_is_read_again(embedded: Any) -> None:
    """S15: also one that ends before what was read of the one before, and whoever follows sees no error of it."""
    spec = embedded.spec(is_external=True)

    async def make(*values: bytes) -> None:
        await embedded.log.admin.create(spec.topic, partitions=1, config=TopicConfig(cleanup=Cleanup.COMPACT))
        await embedded.log.append([NewRecord(spec.topic, each, each, partition=0) for each in values])

    await make(b"a", b"b", b"c")
    copy = await embedded.open(spec)
    await embedded.log.admin.delete(spec.topic)
    await make(b"new")
    await copy.catch_up()
    assert await everything(copy.state(spec)) == [("new", "new")]
