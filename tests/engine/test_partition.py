"""One partition of an engine over a real log: batches, replies, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.conftest import EngineSetting, embedded_only
from tests.engine.models import Account, Close, Deposit, Deposited, Note, Query, Withdraw, bank_engine, counter_engine

from headrace.cluster import batch_of
from headrace.engine import CommandContext, Engine, EngineLimits, Rejected, Success
from headrace.engine.batches import LiveAggregates
from headrace.errors import (
    Busy,
    CommandExpired,
    CommandFailed,
    CommandTooLate,
    NotPartitionOwner,
    NotReadable,
    OutcomeUnknown,
    RecordTooLarge,
    StateBroken,
    StateDiskFull,
    Unreachable,
)
from headrace.model import NewRecord, TopicConfig
from headrace.observe import HealthState
from headrace.state import BatchName
from headrace.testing.conformance.log_setting import eventually


async def test_one_command_is_two_records_in_one_transaction(setting: EngineSetting) -> None:
    """N1: exactly one event and one state, with the name of one batch; the id is the prefix, topic and partition."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    done = await node.send("a", Deposit(4))
    assert (done.state, done.version, done.events) == (Account(4), 1, (Deposited(4),))
    (event,), (state,) = await setting.records(bank.name), await setting.records(bank.state_topic)
    assert batch_of(event) == batch_of(state) == BatchName(1, 1)


async def test_the_transactional_id_names_prefix_topic_and_partition(setting: EngineSetting) -> None:
    """N16: who takes `<prefix>-<state topic>-<partition>` stops the owner's commits; the owner takes it again."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    await (await setting.log.transactional(f"{setting.prefix}-{bank.name}-state-0")).close()
    assert (await node.send("a", Deposit(1))).version == 2
    assert node.epochs == [1, 2]


async def test_nothing_is_published_for_what_changes_nothing(setting: EngineSetting) -> None:
    """N2, N3, N5: no record without an id and a change; state-only engines publish states alone, in order."""
    counter = counter_engine(setting.name())
    node = await setting.owner(counter)
    replies = await asyncio.gather(*(node.send("a", Deposit(n)) for n in (1, 0, 2)))
    assert [(each.state, each.version) for each in replies] == [(1, 1), (1, 1), (3, 2)]
    assert len(await setting.records(counter.state_topic)) <= 2
    before = await setting.records(counter.state_topic)
    assert (await node.send("a", Deposit(0))).version == 2
    assert await setting.records(counter.state_topic) == before


async def test_commands_of_many_aggregates_share_a_transaction_and_those_of_one_run_in_order(
    setting: EngineSetting,
) -> None:
    """N9: what arrives while a batch commits forms the next one, on top of it; one state record for each aggregate."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    sends = [node.send(aggregate, Deposit(1)) for _ in range(10) for aggregate in "abcde"]
    replies = await asyncio.gather(*sends)
    assert [each.version for each in replies] == [n for n in range(1, 11) for _ in "abcde"]
    assert len(set(await setting.batches(bank))) < 10
    states = await setting.records(bank.state_topic)
    assert len({(each.key, batch_of(each)) for each in states}) == len(states)


@embedded_only
@pytest.mark.parametrize("loses", ["commit", "answer"])
async def test_a_commit_without_an_answer_is_settled_from_the_log(setting: EngineSetting, loses: str) -> None:
    """N12, N28: replied as computed if it was committed, else handled again; what stands on it follows."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    setting.unsure.loses = loses
    first = asyncio.create_task(node.send("a", Deposit(2), command_id="x"))

    async def is_lost() -> bool:
        return not setting.unsure.loses

    await eventually(is_lost, every_s=0.001, what="the loss")
    second = asyncio.create_task(node.send("a", Withdraw(3)))
    assert ((await first).version, (await second).state) == (2, Account(0))
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 2}, {"amount": 3}]
    again = await node.send("a", Deposit(2), command_id="x")
    assert (again.version, again.is_repeated) == (2, True)
    record = await node.record("a")
    assert record is not None
    assert record.version == 3
    assert len(node.epochs) == 2


async def test_what_the_log_refuses_fails_its_command_alone(setting: EngineSetting) -> None:
    """N12, N36: a batch that is refused is tried command by command; the others are done."""
    audit = setting.name()
    await setting.log.admin.create(audit, partitions=1, config=TopicConfig(max_record_bytes=2000))
    bank: Engine[int] = Engine(setting.name(), state=int, journal=None, partitions=1, outputs=[audit])

    @bank.command
    def add(count: int | None, command: Deposit, context: CommandContext[int]) -> None:
        context.update_state((count or 0) + command.amount)
        context.persist_to(audit, bytes(command.amount))

    node = await setting.owner(bank)
    # The topic takes less than it did when the engine started.
    await setting.log.admin.configure(audit, TopicConfig(max_record_bytes=500))
    outcomes = await asyncio.gather(
        *(node.send(f"a{n}", Deposit(1000 if n == 3 else n)) for n in range(6)), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [Success] * 3 + [RecordTooLarge] + [Success] * 2
    assert len(await setting.records(audit)) == 5
    assert (await node.send("a3", Deposit(5))).state == 5


async def test_the_same_id_in_an_uncommitted_batch_has_one_effect(setting: EngineSetting) -> None:
    """N32: two attempts at once get equal replies, and there is one event."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    replies = await asyncio.gather(*(node.send("a", Deposit(5), command_id="x") for _ in range(3)))
    assert {(each.version, each.state.balance) for each in replies} == {(1, 5)}
    assert len(await setting.records(bank.name)) == 1


async def test_a_repeated_command_is_done_once_also_by_the_next_owner(setting: EngineSetting) -> None:
    """N21: after a crash the new owner gives the first attempt's reply, and handles nothing."""
    bank = bank_engine(setting.name())
    first = await setting.owner(bank, "n1")
    done = await first.send("a", Deposit(5), command_id="x")
    rejected = await first.send("a", Withdraw(50), command_id="w")
    second = await setting.node(bank, "n2", rank=1)
    await first.stop()
    await second.serving()
    again, again_rejected = (
        await second.send("a", Deposit(5), command_id="x"),
        await second.send("a", Withdraw(50), command_id="w"),
    )
    assert (again.version, again.state, again.is_repeated) == (done.version, done.state, True)
    assert isinstance(again_rejected, Rejected)
    assert again_rejected.details == rejected.details == {"balance": 5}
    assert (await second.send("a", Note("next"))).version == 2


async def test_commands_wait_for_the_owner_and_are_done_once(setting: EngineSetting) -> None:
    """N17: commands that come before the partition is ours wait in order; a node that is not the owner says who is."""
    bank = bank_engine(setting.name())
    node = await setting.node(bank, "n1")
    sends = [asyncio.create_task(node.send("a", Deposit(n))) for n in (1, 2, 3)]
    assert [(await each).version for each in sends] == [1, 2, 3]
    other = await setting.node(bank, "n2", rank=None)

    async def is_known() -> bool:
        return other.owner.owner == "n1"

    await eventually(is_known, every_s=0.005, what="hearing of the owner")
    with pytest.raises(NotPartitionOwner, match="ask node 'n1'"):
        await other.send("a", Deposit(1))


async def test_a_released_partition_refuses_what_was_in_no_commit(setting: EngineSetting) -> None:
    """N18: the old owner says that nothing was done, and the next one goes on where it stopped."""
    bank = bank_engine(setting.name())
    first = await setting.owner(bank, "n1")
    await first.send("a", Deposit(1))
    second = await setting.node(bank, "n2", rank=1)
    await first.owner.release()
    await second.serving()
    with pytest.raises(NotPartitionOwner):
        await first.send("a", Deposit(1))
    assert (await second.send("a", Deposit(1))).version == 2


async def test_an_owner_without_a_lease_answers_nothing_without_a_commit(setting: EngineSetting) -> None:
    """N30: no read, no rejection and no "nothing changed" leaves while the lease is not held; commits prove it anew."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    node.tasks[0].cancel()

    async def is_over() -> bool:
        return not node.owner.may_serve()

    await eventually(is_over, every_s=0.005, what="the end of the lease")
    asked = [
        node.send("a", Query(), timeout_s=0.2),
        node.send("a", Withdraw(50), timeout_s=0.2),
        node.send("a", Deposit(1), timeout_s=0.2, expected_version=9),
        node.partition.read("a", timeout_s=0.2),
    ]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, Exception) for each in outcomes), outcomes


async def test_a_deadline_is_looked_at_before_handling(setting: EngineSetting) -> None:
    """N35: past it nothing is done; one that was handled stays in its batch, and its caller is told so."""
    bank: Engine[Account] = Engine(setting.name(), state=Account, partitions=1)
    entered, go_on = asyncio.Event(), asyncio.Event()

    @bank.command
    async def deposit(account: Account | None, command: Deposit) -> Deposited:
        entered.set()
        await go_on.wait()
        return Deposited(command.amount)

    @bank.event
    def deposited(account: Account | None, event: Deposited) -> Account:
        return Account((account.balance if account else 0) + event.amount)

    node = await setting.owner(bank)
    slow = asyncio.create_task(node.send("a", Deposit(1), timeout_s=0.1))
    await entered.wait()
    with pytest.raises(CommandExpired, match="nothing was done"):
        await node.send("a", Deposit(2), timeout_s=0.05)
    with pytest.raises(OutcomeUnknown):
        await slow
    go_on.set()
    assert (await node.send("a", Deposit(4))).state == Account(5)


@embedded_only
async def test_a_slow_handler_holds_up_no_other_aggregate(setting: EngineSetting) -> None:
    """N9: the batch goes without it; its own aggregate waits for it."""
    bank: Engine[Account] = Engine(setting.name(), state=Account, partitions=1)
    go_on = asyncio.Event()

    @bank.command
    async def deposit(account: Account | None, command: Deposit) -> Deposited:
        if command.amount == 1:
            await go_on.wait()
        return Deposited(command.amount)

    @bank.event
    def deposited(account: Account | None, event: Deposited) -> Account:
        return Account((account.balance if account else 0) + event.amount)

    node = await setting.owner(bank)
    slow = asyncio.create_task(node.send("slow", Deposit(1)))
    behind = asyncio.create_task(node.send("slow", Deposit(2)))
    assert (await node.send("fast", Deposit(3))).version == 1
    assert not behind.done()
    go_on.set()
    assert ((await slow).version, (await behind).version) == (1, 2)


async def test_more_waiting_commands_than_allowed_are_refused_at_once(setting: EngineSetting) -> None:
    """N41, N19: Busy, known as not done; those that wait are done."""
    bank = bank_engine(setting.name(), limits=EngineLimits(waiting=3))
    node = await setting.node(bank, rank=None)
    waiting = [asyncio.create_task(node.send("a", Deposit(1))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="3 requests in flight") as busy:
        await node.send("a", Deposit(1))
    assert busy.value.outcome_known
    node.owner.propose(0)
    assert [(await each).version for each in waiting] == [1, 2, 3]


async def test_a_command_tried_too_often_is_not_handled_again(setting: EngineSetting) -> None:
    """N37: from the second attempt on it is alone in its batch; after the third it is refused, unless it was done."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    both = [node.send("a", Deposit(1), command_id="x", attempt=2), node.send("b", Deposit(1))]
    await asyncio.gather(*both)
    assert len({batch_of(each) for each in await setting.records(bank.name)}) == 2
    with pytest.raises(CommandFailed, match="tried 3 times"):
        await node.send("a", Deposit(1), command_id="y", attempt=4)
    assert (await node.send("a", Deposit(1), command_id="x", attempt=4)).is_repeated


@embedded_only
async def test_a_command_that_must_be_alone_is_not_starved(setting: EngineSetting) -> None:
    """N37: a repeated command gets its own batch, however many others arrive; those go on afterwards."""
    bank = bank_engine(setting.name(), limits=EngineLimits(batch_commands=2))
    node = await setting.owner(bank)
    is_over = asyncio.Event()

    async def flood(aggregate: str) -> int:
        count = 0
        while not is_over.is_set():
            count = (await node.send(aggregate, Deposit(1))).version
        return count

    floods = [asyncio.create_task(flood(f"flood-{n % 2}")) for n in range(20)]
    await asyncio.sleep(0)
    for number in range(3):
        asked = await node.send("a", Query(), attempt=2, command_id=f"q-{number}", timeout_s=3)
        done = await node.send("a", Deposit(1), attempt=2, command_id=f"x-{number}", timeout_s=3)
        assert (asked.value, done.version) == (number or None, number + 1)
    is_over.set()
    assert min(await asyncio.gather(*floods)) > 1
    own = [each for each in await setting.records(bank.name) if each.key == b"a"]
    assert len({batch_of(each) for each in own}) == 3


async def test_a_marker_without_ids_becomes_a_tombstone_and_nothing_is_done_twice(setting: EngineSetting) -> None:
    """N20, N33: the record goes when its ids are too old; the partition remembers that it forgot them."""
    limits = EngineLimits(command_ids_s=0.0)
    bank = bank_engine(setting.name(), none_states="purge", limits=limits)
    node = await setting.owner(bank)
    since = (1, 0)
    await node.send("a", Deposit(1), command_id="d", since=since)
    await node.send("a", Close(), command_id="c", since=since)

    async def is_gone() -> bool:
        node.partition.housekeeping.sweep()
        return (await setting.states(bank))[-1] is None

    await eventually(is_gone, every_s=0.01, what="the tombstone")
    with pytest.raises(CommandTooLate, match="ids up to batch"):
        await node.send("a", Deposit(1), command_id="d", since=since)
    await node.stop()
    second = await setting.owner(bank, "n2")
    with pytest.raises(CommandTooLate, match="ids up to batch"):
        await second.send("a", Deposit(1), command_id="d", since=since)
    assert (await second.send("a", Deposit(1))).version == 1
    assert (await setting.records(bank.name))[-1].value is not None


@embedded_only
async def test_a_first_attempt_is_never_too_late(setting: EngineSetting) -> None:
    """N33: a caller that knows little, and has sent nothing, is not refused; its repetition would be."""
    bank = bank_engine(setting.name(), limits=EngineLimits(command_ids=1))
    node = await setting.owner(bank)
    for number in range(3):
        await node.send("a", Deposit(1), command_id=f"other-{number}")
    with pytest.raises(CommandTooLate):
        await node.send("a", Deposit(1), command_id="x", since=(1, 0), is_first=True, attempt=2)
    done = await node.send("a", Deposit(1), command_id="x", since=(1, 0), is_first=True)
    assert (done.version, done.is_repeated) == (4, False)


async def test_an_idle_aggregate_leaves_the_memory_and_comes_back(setting: EngineSetting) -> None:
    """N19: passivated after its idle time; the next command sees the newest state, in order."""
    bank = bank_engine(setting.name(), limits=EngineLimits(idle_s=0.0))
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    assert "a" in node.partition.live
    assert node.partition.live.passivate(before_s=asyncio.get_running_loop().time() + 1) == 1
    replies = await asyncio.gather(*(node.send("a", Deposit(1)) for _ in range(3)))
    assert [each.version for each in replies] == [2, 3, 4]


def test_an_aggregate_is_current_only_when_its_last_batch_is_committed() -> None:
    """N10, N15: changed by batches 1 and 4, it stays in memory until 4 is committed, and is never read from disk."""
    live, record = LiveAggregates(), None
    live.change("foo", record, BatchName(1, 1), 0.0)
    live.change("bar", record, BatchName(1, 2), 0.0)
    live.change("foo", record, BatchName(1, 4), 0.0)
    for number, in_flight in ((1, ["foo", "bar"]), (2, ["foo"]), (4, [])):
        live.committed(BatchName(1, number))
        assert [each for each in ("foo", "bar") if live.is_in_flight(each)] == in_flight
        live.passivate(before_s=1.0)
        assert sorted(live) == sorted(in_flight)


@embedded_only
async def test_a_state_that_cannot_be_read_fails_the_command_alone(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11: the store's error reaches the caller; the next command tries afresh."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    replica: Any = node.partition._replica

    def broken(key: bytes) -> None:
        raise StateBroken("folder", "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(replica, "entry", broken)
        with pytest.raises(StateBroken, match="the disk is gone"):
            await node.send("a", Deposit(1))
    assert (await node.send("a", Deposit(1))).version == 1


async def test_what_is_committed_and_not_applied_is_read_from_the_log(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11, N28: a store that fails after the commit costs nothing: the next command sees what was done."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    replica: Any = node.partition._replica
    apply, failures = replica.apply_committed, [StateDiskFull("folder", "no space left")]

    def full_once(*args: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        apply(*args, **options)

    monkeypatch.setattr(replica, "apply_committed", full_once)
    first, second = await asyncio.gather(node.send("a", Deposit(1)), node.send("a", Deposit(2)))
    third = await node.send("a", Withdraw(3))
    assert [each.version for each in (first, second, third)] == [1, 2, 3]
    assert not failures
    assert [each["amount"] for each in await setting.payloads(bank)] == [1, 2, 3]


async def test_an_event_without_a_change_moves_the_version_over_a_failover(setting: EngineSetting) -> None:
    """N31: the next owner's append continues the numbers, so that it is not void."""
    bank = bank_engine(setting.name())
    first = await setting.owner(bank, "n1")
    await first.send("a", Note("one"))
    second = await setting.node(bank, "n2", rank=1)
    await first.stop()
    await second.serving()
    done = await second.send("a", Note("two"))
    assert done.version == 2
    assert [each["text"] for each in await setting.payloads(bank)] == ["one", "two"]


@embedded_only
async def test_records_of_others_in_the_state_topic_do_not_matter(setting: EngineSetting) -> None:
    """N11: a record that no engine wrote fails the commands of its aggregate with a typed error, and no other."""
    setting.is_spoiled = True
    bank = bank_engine(setting.name())
    first = await setting.owner(bank, "n1")
    await first.stop()
    keys = (b"bad", b"\xff")
    await setting.log.append([NewRecord(bank.state_topic, key, b"nonsense", partition=0) for key in keys])
    second = await setting.owner(bank, "n2")
    with pytest.raises(NotReadable, match="record of an aggregate"):
        await second.send("bad", Deposit(1))
    assert (await second.send("good", Deposit(1))).version == 1
    assert second.partition.housekeeping.sweep() == 3


@embedded_only
async def test_a_partition_that_can_not_read_its_log_is_down_until_it_can(
    setting: EngineSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N26: the health of a partition says why its commands wait."""
    bank = bank_engine(setting.name())
    node = await setting.owner(bank)
    await node.send("a", Deposit(1))
    states, is_back = node.partition._states, asyncio.Event()
    catch_up = states.catch_up

    async def unreachable() -> None:
        if not is_back.is_set():
            raise Unreachable("broker:9092", "refused")
        await catch_up()

    monkeypatch.setattr(states, "catch_up", unreachable)
    reading = asyncio.create_task(node.partition._commits.read_again())

    async def is_down() -> bool:
        return node.partition.health.state is HealthState.DOWN

    await eventually(is_down, every_s=0.005, what="being down")
    assert "refused" in node.partition.health.reason
    is_back.set()
    await reading
    assert node.partition.health.is_up
    assert (await node.send("a", Deposit(1))).version == 2
