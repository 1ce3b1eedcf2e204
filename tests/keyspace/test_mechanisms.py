"""Single mechanisms of a keyspace, each in a history that can't be left to chance."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.keyspace.accounts import GATES, RUNS, Accounts, Deposit, Emit, Forward, SlowAdd
from tests.keyspace.setting import Place, Served, new_key, serving

from headrace.cluster import Committed, PartitionRequest
from headrace.errors import OperationFailed, RequestFailed, TimedOut, TransactionFailed
from headrace.keyspace.messages import Call, ChangesPage, PollChanges, encode
from headrace.keyspace.partition import KeyspacePartition, in_order
from headrace.keyspace.reads import change_page
from headrace.model import NewRecord, Position, TopicPartition
from headrace.state import BatchName
from headrace.testing.conformance.log_setting import eventually, new_topic, read_all

CHANGELOG = TopicPartition("c", 0)


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    place = Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))
    async with serving(place, "a", Accounts) as served:
        yield served


def partition_of(served: Served, number: int) -> KeyspacePartition:
    host = served.node._hosting.host("accounts", number)
    assert isinstance(host, KeyspacePartition)
    return host


def test_positions_of_records_that_were_found_by_reading() -> None:
    """What went to other topics has no place then, with a chosen partition or without; changelogs have their own."""
    records = [NewRecord("other", None, b"", partition=0), NewRecord("c", b"k", b"1", partition=0)]
    records += [NewRecord("other", None, b""), NewRecord("c", b"l", b"2", partition=0)]
    found = in_order(records, [Position("c", 0, 7, 1), Position("c", 0, 8, 1)], [CHANGELOG])
    assert [each.offset for each in found] == [-1, 7, -1, 8]
    with pytest.raises(OperationFailed, match=r"c\[0\]"):
        in_order(records, [Position("c", 0, 7, 1)], [CHANGELOG])


async def test_a_commit_without_an_answer_is_told_as_computed(served: Served) -> None:
    """Rule 8: the owner finds its batch by reading; caller, states and other topics agree that it was done, once."""
    key, log = new_key(0), served.headrace.log
    output = await new_topic(log)
    await served.client.ask(Deposit(key, 1))
    with _losing_an_answer(served, output):
        assert await served.client.ask(Emit(key, output, 5, partition=0)) == 5
    assert await served.client.get("balances", key) == 5
    assert [record.value for record in await read_all(log, output)] == [bytes(5)]


@contextlib.contextmanager
def _losing_an_answer(served: Served, topic: str) -> Iterator[None]:
    """Let the first commit of partition 0 with a record for a topic succeed, and its answer be lost.

    Whichever producer commits it: on a busy machine the owner takes its id again, with a new one, at any time.
    """
    owner = partition_of(served, 0)._owner
    assert owner is not None
    write, lost = owner._claimant.write, 0

    async def unsure(records: Sequence[NewRecord]) -> Sequence[Position]:
        nonlocal lost
        positions = await write(records)
        if lost or not any(record.topic == topic for record in records):
            return positions
        lost += 1
        raise TransactionFailed("id", "no answer", outcome_known=False)

    with _replaced(owner._claimant, "write", unsure):
        yield
    assert lost == 1


async def test_a_reply_waits_as_long_as_the_tenure_that_committed_it(served: Served) -> None:
    """Rule 2(f): a node that lost the partition and took it again meanwhile does not forget the wait of before."""
    key = new_key(0)
    host = partition_of(served, 0)
    owner, writer = host._owner, host._writer
    assert owner is not None
    assert writer is not None
    gates: list[Committed] = []
    commit, gate = writer.commit, owner.reply_gate

    async def commit_and_lose(records: Sequence[NewRecord]) -> Sequence[Position]:
        positions = await commit(records)
        host._writer = type(writer)(owner, host.changelogs)  # another tenure has begun
        return positions

    async def note(committed: Committed) -> None:
        gates.append(committed)
        await gate(committed)

    writer.commit, owner.reply_gate = commit_and_lose, note  # type: ignore[method-assign]
    assert await served.client.ask(Deposit(key, 1)) == 1
    assert gates == [writer.last]
    assert isinstance(gates[0].batch, BatchName)


async def test_an_owner_reads_its_own_values_at_once(served: Served) -> None:
    """A value that this process owns is read without a turn of the loop: the same version and token as any read has."""
    key, client = new_key(0), served.client
    await client.put("balances", key, 7)
    read, found = await client.read("balances", key), client.read_at_once("balances", key)
    assert found is not None
    assert (client.decode_at_once("balances", found.data), found.version, found.token) == (7, read.version, read.token)
    assert client.read_at_once("balances", new_key(0)) is None
    await client.put("balances", key, 8)
    again = client.read_at_once("balances", key)
    assert again is not None
    assert client.decode_at_once("balances", again.data) == 8


async def test_gets_from_the_own_node_in_a_loop_leave_time_for_others(served: Served) -> None:
    """C8: they send no request, show what was put before them, and let other tasks run."""
    key, client, turns = new_key(0), served.client, 0
    await client.put("balances", key, 1)
    assert await client.get("balances", key) == 1

    async def run_beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    owner = partition_of(served, 0)._owner
    assert owner is not None
    beside = asyncio.create_task(run_beside())
    # Without a lease a get has to wait for one, as a request does; on a busy machine it may be late.
    with _replaced(owner, "may_serve", lambda: True), _replaced(served.node._hosting.router, "ask", None):
        for _ in range(10):
            assert await client.get("balances", key) == 1
    assert turns >= 10
    beside.cancel()
    await client.put("balances", key, 2)
    assert await client.get("balances", key) == 2


async def test_nobody_but_the_owner_reads_at_once(served: Served) -> None:
    """Without a valid lease, or with a commit that is not settled, a read has to wait, and says nothing at once."""
    key, client, host = new_key(0), served.client, partition_of(served, 0)
    await client.put("balances", key, 7)
    owner = host._owner
    assert owner is not None
    with _replaced(owner, "may_serve", lambda: False):
        assert client.read_at_once("balances", key) is None
    with _replaced(host, "_is_owned", False):
        assert client.read_at_once("balances", key) is None
    with _replaced(host._states._queue, "_unsettled", TransactionFailed("id", "no answer", outcome_known=False)):
        assert client.read_at_once("balances", key) is None
    layouts = served.node._keyspaces._layouts
    with _replaced(layouts, "_layouts", {"accounts": layouts._layouts["accounts"].in_phase("paused")}):
        assert client.read_at_once("balances", key) is None
    assert client.read_at_once("balances", key) is not None


async def test_the_lease_is_looked_at_behind_the_read(served: Served) -> None:
    """An owner that was stopped between its look and its read would show what another one has replaced meanwhile."""
    key, host = new_key(0), partition_of(served, 0)
    await served.client.put("balances", key, 7)
    owner, replica, steps = host._owner, host.states.replica("balances"), list[str]()
    assert owner is not None
    may_serve, entry = owner.may_serve, replica.entry
    with (
        _replaced(owner, "may_serve", lambda: steps.append("lease") or may_serve()),
        _replaced(replica, "entry", lambda key: steps.append("read") or entry(key)),
    ):
        assert served.client.read_at_once("balances", key) is not None
    assert steps == ["read", "lease"]


async def test_a_value_that_is_due_is_not_read_at_once(served: Served) -> None:
    """Rule 10: nobody says that a key is gone, nor shows its value, before its tombstone is committed."""
    key, replica = new_key(0), partition_of(served, 0).states.replica("balances")
    await served.client.put("balances", key, 7, ttl=3600)
    assert served.client.read_at_once("balances", key) is not None
    with _replaced(replica, "_timestamp_ms", replica.now_ms + 3_601_000):
        assert served.client.read_at_once("balances", key) is None


@contextlib.contextmanager
def _replaced(what: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute while the block runs."""
    before = getattr(what, name)
    setattr(what, name, value)
    try:
        yield
    finally:
        setattr(what, name, before)


async def test_asks_of_handlers_wait_until_this_node_may_tell(served: Served) -> None:
    """Rule 2: while the last owner may still answer, nothing leaves a new one, the asks of its handlers included."""
    first, second = new_key(0), new_key(1)
    owner = partition_of(served, 0)._owner
    assert owner is not None
    may_serve, is_waiting = owner.may_serve, True
    owner.may_serve = lambda: not is_waiting and may_serve()  # type: ignore[method-assign]
    asking = asyncio.create_task(served.client.ask(Forward(first, [second]), message_id="m"))

    async def has_begun() -> bool:
        return RUNS[first] == 1

    await eventually(has_begun, every_s=0.001, what="the handler")
    for n in range(3):  # time enough for the ask to arrive, if it had left
        await served.client.ask(Deposit(second, 1), message_id=f"later-{n}")
    assert RUNS[second] == 0
    is_waiting = False
    assert await asking == [first, second]
    assert RUNS[second] == 1


async def test_a_subscriber_of_another_topic_begins_with_the_present_value(served: Served) -> None:
    """G13: an offset of a topic that was deleted means nothing; the next poll goes on from the new topic's offsets."""
    key = new_key(0)
    await served.client.ask(Deposit(key, 1))
    states = partition_of(served, 0).states
    topic_id = states.replica("balances").topic.topic_id
    page = await change_page(states, PollChanges("balances", key.encode(), 1_000_000, "gone", 0.1, 10))
    assert [(item.is_present, item.is_lagged) for item in page.items] == [(True, True)]
    assert (page.topic_id, page.offset) == (topic_id, page.items[0].offset)


async def test_a_message_tried_too_often_is_not_handled_again(served: Served) -> None:
    """N37: one message that ends its process must not end every node; what an attempt has done is told all the same."""
    key, host = new_key(0), partition_of(served, 0)

    async def attempt(number: int, message_id: str) -> bytes:
        call = Call("Deposit", served.client._codecs.message_bytes(Deposit(key, 1)), key.encode(), message_id)
        request = PartitionRequest("accounts", 0, encode(call), command_id=message_id, attempt=number)
        return await host.handle(request, asyncio.get_running_loop().time() + 5)

    first = await attempt(3, "x")
    with pytest.raises(RequestFailed, match="tried 3 times"):
        await attempt(4, "y")
    assert await attempt(4, "x") == first
    assert await served.client.get("balances", key) == 1


async def test_a_poll_that_finds_nothing_changes_nothing(served: Served) -> None:
    """G13: a subscriber that waits for a new owner to be ready still begins with the present value."""
    key = new_key(0)
    await served.client.ask(Deposit(key, 1))
    states = partition_of(served, 0).states
    feed = states.replica("balances").feed
    feed.hold()
    asked = PollChanges("balances", key.encode(), None, None, -0.9, 10)
    assert await change_page(states, asked) == ChangesPage(None, [], None)
    feed.release()
    request = PartitionRequest("accounts", 0, encode(PollChanges("balances", key.encode(), None, None, 0.1, 10)))
    assert await partition_of(served, 0).handle(request, 0.0)


async def test_a_late_handler_is_known_as_not_done_on_a_busy_node(served: Served) -> None:
    """C18: it finds the handler's time and its caller's to be over at once; still nothing was written."""
    key = new_key(0)
    GATES[key] = asyncio.Event()
    asking = asyncio.create_task(served.client.ask(SlowAdd(key, 1), timeout_s=0.3))

    async def has_begun() -> bool:
        return RUNS[key] == 1

    await eventually(has_begun, every_s=0.001, what="the handler")
    time.sleep(0.4)  # noqa: ASYNC251 - the node is busy until both are over
    with pytest.raises(TimedOut) as ended:
        await asking
    assert ended.value.outcome_known
