"""What a keyspace promises to its callers and handlers, on whichever log it stands: one node, many keys."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta
from typing import Literal

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.keyspace.accounts import (
    GATES,
    LATE,
    LATE_TASKS,
    RUNS,
    Accounts,
    Audit,
    Break,
    Customer,
    Deposit,
    Describe,
    Emit,
    Forward,
    LeaveBehind,
    Notify,
    SlowAdd,
    Sneak,
    Sum,
)
from tests.keyspace.setting import Served, new_key

from headrace.errors import (
    AskCycle,
    BadArgument,
    BadToken,
    MessageIdReused,
    NotStorable,
    NotUnique,
    RecordTooLarge,
    ReplyNotKept,
    RequestFailed,
    StateConflict,
    TimedOut,
    TokenAhead,
    TokenOfOtherTopic,
    UnknownMessage,
    WritesInRead,
)
from headrace.keyspace import NO_VALUE, KeyspaceClient
from headrace.model import ConsistencyToken, combine_tokens
from headrace.observe import traces
from headrace.testing.conformance.log_setting import eventually, new_topic, read_all


class StubbornGate(asyncio.Event):
    """A gate that opens to whoever stops waiting for it, as code does that catches every error."""

    async def wait(self) -> Literal[True]:
        """Wait until the waiting is cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            await super().wait()
        return True


@pytest.mark.asyncio(loop_scope="module")
class KeyspaceExam:
    """The tests. A tier has the fixture `served`, a node that all of them share: each has keys of its own."""

    @pytest.fixture
    def accounts(self, served: Served) -> KeyspaceClient:
        """Return the client."""
        return served.client

    @pytest_asyncio.fixture(loop_scope="module")
    async def output(self, served: Served) -> str:
        """Make a topic to emit to."""
        return await new_topic(served.headrace.log)

    async def test_what_a_handler_wrote_is_read_everywhere(self, accounts: KeyspaceClient) -> None:
        """A reply means that both states have the write; reads, pages and counts show it."""
        key, before = new_key(), await accounts.count("entries")
        assert [await accounts.ask(Deposit(key, amount)) for amount in (5, 7)] == [5, 12]
        assert await accounts.ask(Audit(key)) == (12, 12)
        assert await accounts.get(Accounts.balances, key) == 12
        assert (await accounts.prefix("entries", (key,))).items == [((key, 1), 5), ((key, 2), 7)]
        first = await accounts.prefix("entries", key, limit=1)
        assert (first.items, first.next_after) == ([((key, 1), 5)], (key, 1))
        assert (await accounts.prefix("entries", key, after=(key, 1))).items == [((key, 2), 7)]
        assert await accounts.count("entries") == before + 2
        assert [value async for at, value in accounts.items("balances") if at == key] == [12]

    async def test_writes_reads_and_replies_carry_tokens(self, accounts: KeyspaceClient) -> None:
        """Every token is accepted by a later read of what it was given for, alone or combined; others are refused."""
        key = new_key()
        put = await accounts.put("balances", key, 5)
        asked = await accounts.ask_with_token(Deposit(key, 7), message_id=key)
        assert asked.reply == 12
        assert {place.topic for place in ConsistencyToken.parse(asked.token).places} == {
            "accounts-balances",
            "accounts-entries",
        }
        repeated = await accounts.ask_with_token(Deposit(key, 7), message_id=key)
        audited = await accounts.ask_with_token(Audit(key))
        read = await accounts.read("balances", key)
        for token in (put.token, asked.token, repeated.token, audited.token, read.token):
            assert await accounts.get("balances", key, at_least=combine_tokens(token, put.token)) == 12
        deleted = await accounts.delete("balances", key)
        assert await accounts.get("balances", key, at_least=deleted.token) is None
        (place,) = ConsistencyToken.parse(deleted.token).places
        for wrong, error in (
            (place._replace(offset=place.offset + 1_000_000), TokenAhead),
            (place._replace(topic_id="another"), TokenOfOtherTopic),
        ):
            with pytest.raises(error):
                await accounts.get("balances", key, at_least=str(ConsistencyToken.of([wrong])))
        with pytest.raises(BadToken):
            await accounts.get("balances", key, at_least=deleted.token[:-1])

    async def test_a_message_is_traced_from_the_caller_to_the_owner(
        self, accounts: KeyspaceClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The spans of the caller and of the handler have one trace."""
        exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(traces, "_tracer", provider.get_tracer("test"))
        await accounts.ask(Deposit(new_key(), 1))
        spans = {each.name: each for each in exporter.get_finished_spans()}
        asked, handled = spans["keyspace.ask"], spans["keyspace.handle"]
        assert asked.context is not None
        assert handled.parent is not None
        assert handled.parent.span_id == asked.context.span_id

    async def test_reads_in_a_loop_let_others_have_their_turns(self, accounts: KeyspaceClient) -> None:
        """A caller on the owner's node need not wait for anything; the lease is renewed all the same."""
        key, turns, is_over = new_key(), 0, False

        async def take_turns() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        await accounts.put("balances", key, 1)
        taking = asyncio.create_task(take_turns())
        for _ in range(100):
            await accounts.get("balances", key)
        is_over = True
        await taking
        assert turns >= 100

    async def test_ack_and_tell_and_scatter(self, accounts: KeyspaceClient) -> None:
        """C8, C11: an ack does the work once, a tell does it some time, a scatter asks every partition."""
        word = new_key()
        keys = [f"{word}{n}" for n in range(8)]
        assert await asyncio.gather(*(accounts.ack(Deposit(key, 1)) for key in keys)) == [1] * 8
        for key in keys:
            accounts.tell(Deposit(key, 1))

        async def is_done() -> bool:
            gathered = await accounts.scatter(Sum(word))
            return not gathered.failures and len(gathered.replies) == 2 and sum(gathered.replies.values()) == 16

        await eventually(is_done, every_s=0.01, what="all tells")

    async def test_a_message_id_is_handled_once(self, accounts: KeyspaceClient) -> None:
        """A repeat gets the first reply; the id is refused with another message, and is another one at another key."""
        key, other = new_key(), new_key()
        replies = [await accounts.ask(Deposit(key, 5), message_id="m") for _ in range(2)]
        together = await asyncio.gather(*(accounts.ask(Deposit(key, 1), message_id="n") for _ in range(5)))
        assert (replies, set(together), await accounts.get("balances", key)) == ([5, 5], {6}, 6)
        with pytest.raises(MessageIdReused, match="'m' was used in keyspace 'accounts'"):
            await accounts.ask(Deposit(key, 6), message_id="m")
        assert await accounts.ask(Deposit(other, 6), message_id="m") == 6

    async def test_a_reply_that_is_too_large_is_not_kept(self, accounts: KeyspaceClient) -> None:
        """The first caller gets it; a repeat hears that the work is done, and does not do it again."""
        key, chain = new_key(), [new_key() for _ in range(120)]
        GATES.clear()
        message = Forward(key, [chain[0] * 120])
        assert len((await accounts.ask(message, message_id="m"))[1]) == 1440
        with pytest.raises(ReplyNotKept):
            await accounts.ask(message, message_id="m")

    @pytest.mark.parametrize("how", ["error", "timeout", "cancelled", "unprintable", "panic"])
    async def test_a_handler_that_fails_leaves_nothing_behind(self, served: Served, output: str, how: str) -> None:
        """G2: its writes and records are forgotten, it is not run again, and the next call of the key goes on."""
        key, accounts = new_key(), served.client
        kinds = "(Key|Timeout|Cancelled|Unprintable|Panic)Error"
        with pytest.raises(RequestFailed, match=f"Break was not handled by keyspace 'accounts': {kinds}"):
            await accounts.ask(Break(key, output, how), timeout_s=2)
        assert RUNS[key] == 1
        assert await accounts.ask(Deposit(key, 1)) == 1
        assert await read_all(served.headrace.log, output) == []

    async def test_what_a_handler_left_running_writes_nothing(self, accounts: KeyspaceClient) -> None:
        """A write, record or message that comes after the handler has returned is in no transaction, and is refused."""
        key = new_key()
        GATES[key] = asyncio.Event()
        await accounts.ask(LeaveBehind(key))
        GATES[key].set()
        await LATE_TASKS.pop()
        written, emitted, told = map(str, LATE.pop(key))
        assert "has returned" in written
        assert "context.emit comes after the handler" in emitted
        assert "context.tell comes after the handler" in told
        assert await accounts.get("balances", key) is None

    async def test_a_handler_runs_again_if_what_it_read_has_changed(self, accounts: KeyspaceClient) -> None:
        """Rule 25: a write that came between reading and commit is not overwritten."""
        key = new_key()
        GATES[key] = asyncio.Event()
        asking = asyncio.create_task(accounts.ask(SlowAdd(key, 1)))
        await _has_run(key, 1)
        await accounts.put("balances", key, 100)
        GATES[key].set()
        assert (await asking, RUNS[key]) == (101, 2)

    async def test_the_deadline_holds_for_a_handler_that_runs_again(self, accounts: KeyspaceClient) -> None:
        """C18: one that gets stuck when it runs again ends as known, too: nothing was written."""
        key = new_key()
        GATES[key] = asyncio.Event()
        asking = asyncio.create_task(accounts.ask(SlowAdd(key, 1, stuck_in_run=2), timeout_s=0.6))
        await _has_run(key, 1)
        await accounts.put("balances", key, 100)
        GATES[key].set()
        with pytest.raises(TimedOut) as ended:
            await asking
        assert (ended.value.outcome_known, await accounts.get("balances", key)) == (True, 100)

    async def test_a_handler_that_never_returns_holds_only_its_key(self, accounts: KeyspaceClient) -> None:
        """C18: others of the partition go on; it ends at its deadline, known as not done, and the key is free again."""
        key = new_key(0)
        GATES[key] = asyncio.Event()
        began_s = time.monotonic()
        asking = asyncio.create_task(accounts.ask(SlowAdd(key, 1), timeout_s=1))
        await _has_run(key, 1)
        with pytest.raises(TimedOut) as behind:
            await accounts.ask(Deposit(key, 1), timeout_s=0.1)
        assert await accounts.ask(Deposit(new_key(0), 1), timeout_s=5) == 1
        with pytest.raises(TimedOut) as ended:
            await asking
        assert (behind.value.outcome_known, ended.value.outcome_known) == (True, True)
        assert time.monotonic() - began_s < 5
        assert await accounts.ask(Deposit(key, 1)) == 1

    async def test_a_handler_that_goes_on_when_it_is_ended_writes_nothing(self, accounts: KeyspaceClient) -> None:
        """C18: what it does after its deadline is not committed, and its caller knows that."""
        key = new_key()
        GATES[key] = StubbornGate()
        with pytest.raises(TimedOut) as ended:
            await accounts.ask(SlowAdd(key, 1), timeout_s=0.3)
        assert ended.value.outcome_known
        assert await accounts.ask(Deposit(key, 1)) == 1

    async def test_asks_along_a_chain_and_in_a_circle(self, accounts: KeyspaceClient) -> None:
        """C18: a chain of keys is answered; a circle is refused with the whole chain, and soon."""
        first, second, third = (new_key() for _ in range(3))
        assert await accounts.ask(Forward(first, [second, third])) == [first, second, third]
        circle = f"accounts/{first} → accounts/{second} → accounts/{first}"
        with pytest.raises(AskCycle, match=circle):
            await accounts.ask(Forward(first, [second, first]), timeout_s=5)
        with pytest.raises(AskCycle):
            await accounts.ask(Forward(first, [first]), timeout_s=5)

    async def test_the_longest_id_leaves_room_for_asks_within(self, accounts: KeyspaceClient) -> None:
        """A handler's asks have ids made from the caller's; that one may have all the length that is allowed."""
        key, other = new_key(), new_key()
        assert await accounts.ask(Forward(key, [other]), message_id="m" * 300) == [key, other]
        with pytest.raises(BadArgument, match="1 to 300"):
            await accounts.ask(Deposit(key, 1), message_id="m" * 301)

    async def test_wrong_names_and_types_are_refused(self, accounts: KeyspaceClient) -> None:
        """Each error names what is wrong, and what there is."""
        key = new_key()
        with pytest.raises(UnknownMessage, match=r"no handler for Customer; it handles Audit, Break, "):
            await accounts.ask(Customer("a", "b"))
        with pytest.raises(BadArgument, match="balances"):
            await accounts.get("saldo", key)
        with pytest.raises(BadArgument, match="replies"):
            await accounts.get("replies", key)
        with pytest.raises(NotStorable, match="keys are str"):
            await accounts.get("balances", 5)
        with pytest.raises(NotStorable, match="values of this state are int"):
            await accounts.put("balances", key, "much")
        with pytest.raises(BadArgument, match="None is no value"):
            await accounts.put("papers", key, None)
        with pytest.raises(BadArgument, match=r"\['city', 'mail'\]"):
            await accounts.find("customers", "street", "x")
        with pytest.raises(BadArgument, match="use scatter"):
            await accounts.ask(Sum("x"))
        with pytest.raises(BadArgument, match="scatter=True"):
            await accounts.scatter(Deposit(key, 1))

    async def test_put_only_what_is_as_expected(self, accounts: KeyspaceClient) -> None:
        """A put with the version of a read is refused at once if the key has another one by now."""
        key = new_key()
        await accounts.put("balances", key, 1, expected=NO_VALUE)
        version = (await accounts.read("balances", key)).version
        await accounts.put("balances", key, 2, expected=version)
        for expected in (version, NO_VALUE):
            with pytest.raises(StateConflict, match=f"'{key}' of state 'balances' changed"):
                await accounts.put("balances", key, 3, expected=expected, timeout_s=5)
        await accounts.delete("balances", key, expected=(await accounts.read("balances", key)).version)
        assert (await accounts.read("balances", key))[:2] == (None, NO_VALUE)
        await accounts.delete("balances", key)

    async def test_puts_of_one_key_at_once_all_succeed(self, accounts: KeyspaceClient) -> None:
        """A put without a condition takes its turn; of those that expect no value one succeeds."""
        key, other = new_key(), new_key()
        await asyncio.gather(*(accounts.put("balances", key, n, timeout_s=5) for n in range(20)))
        assert await accounts.get("balances", key) in range(20)
        tries = (accounts.put("balances", other, n, expected=NO_VALUE, timeout_s=5) for n in range(10))
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        (done,) = [n for n, each in enumerate(outcomes) if not isinstance(each, StateConflict)]
        assert await accounts.get("balances", other) == done

    async def test_a_put_has_the_time_to_live_that_its_state_gives_it(self, accounts: KeyspaceClient) -> None:
        """S4: that of the state's function, or of the put itself; one that is over is a deletion."""
        key = new_key()
        await accounts.put("notes", f"due-{key}", "x")
        await accounts.put("notes", key, "x", ttl=timedelta(milliseconds=1))

        async def is_gone() -> bool:
            return await accounts.get("notes", f"due-{key}") is None and await accounts.get("notes", key) is None

        await eventually(is_gone, every_s=0.01, what="the end of both")
        await accounts.put("notes", key, "x")
        await accounts.put("notes", key, "y", ttl=0)
        assert await accounts.get("notes", key) is None

    async def test_indexes_of_all_partitions(self, accounts: KeyspaceClient) -> None:
        """Find gathers what all partitions have under a value, in the order of the keys."""
        city, keys = new_key(), sorted(new_key(n % 2) for n in range(6))
        for key in keys:
            await accounts.put("customers", key, Customer(city, key))
        found = await accounts.find("customers", "city", city)
        assert found == [(key, Customer(city, key)) for key in keys]
        assert await accounts.find("customers", "city", city, limit=2) == found[:2]
        with pytest.raises(NotUnique):
            await accounts.put(
                "customers", new_key(0), Customer(city, next(key for key in keys if key in _of(0, keys)))
            )

    async def test_what_is_emitted_is_in_the_transaction(self, served: Served, output: str) -> None:
        """A record to another topic is there when the reply is, with its key."""
        key = new_key()
        await served.client.ask(Emit(key, output, 3, partition=0))
        await served.client.ask(Emit(key, output, 4))
        found = await read_all(served.headrace.log, output)
        assert [(record.key, record.value) for record in found] == [(key.encode(), bytes(3)), (key.encode(), bytes(4))]

    async def test_what_the_log_refuses_fails_alone(self, served: Served, output: str) -> None:
        """Calls that share a transaction with one whose record is too large are done without it."""
        bad, keys = new_key(0), [new_key(0) for _ in range(8)]
        calls = [served.client.ask(Emit(bad, output, 2_000_000))] + [served.client.ask(Deposit(key, 1)) for key in keys]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], RecordTooLarge)
        assert outcomes[1:] == [1] * 8
        assert await served.client.get("balances", bad) is None

    async def test_changelogs_are_not_written_by_hand(self, accounts: KeyspaceClient) -> None:
        """A record that went past the store would be seen by the next owner, and not by this one."""
        with pytest.raises(BadArgument, match="changelog of a state"):
            await accounts.ask(Emit(new_key(), "accounts-balances", 8, partition=0))

    async def test_a_handler_that_is_marked_as_a_read_can_not_write(self, accounts: KeyspaceClient) -> None:
        """A read may be done twice, so what it writes is refused, and nothing of it is kept."""
        key = new_key()
        with pytest.raises(WritesInRead, match="'sneak' of keyspace 'accounts'"):
            await accounts.ask(Sneak(key))
        assert await accounts.get("balances", key) is None

    async def test_a_context_knows_its_key(self, accounts: KeyspaceClient) -> None:
        """It is the key that the message has, and its partition is that of a plain Kafka producer."""
        for partition in range(2):
            key = new_key(partition)
            assert await accounts.ask(Describe(key)) == {"key": key, "partition": partition, "has_time": True}

    async def test_tells_of_a_handler_wait_for_its_commit(self, accounts: KeyspaceClient) -> None:
        """What a handler tells leaves if it is committed, and not at all if it fails."""
        key, told, untold = (new_key() for _ in range(3))
        with pytest.raises(RequestFailed, match="after the tell"):
            await accounts.ask(Notify(key, untold, fails=True))
        await accounts.ask(Notify(key, told, fails=False))

        async def is_told() -> bool:
            return bool(await accounts.get("balances", told))

        await eventually(is_told, every_s=0.01, what="the tell")
        assert await accounts.get("balances", untold) is None

    async def test_changes_of_a_key(self, accounts: KeyspaceClient) -> None:
        """S7: first the present value, then each change once and in order; a token resumes exactly behind it."""
        key = new_key()
        await accounts.ask(Deposit(key, 1))
        async with contextlib.aclosing(accounts.changes("balances", key)) as changes:
            first = await anext(changes)
            assert (first.value, first.is_present, first.is_lagged) == (1, True, False)
            for _ in range(3):
                await accounts.ask(Deposit(key, 1))
            seen = [await anext(changes) for _ in range(3)]
        assert [(each.key, each.value, each.is_present) for each in seen] == [(key, n, False) for n in range(2, 5)]
        for after in (first.token, first.offset):
            async with contextlib.aclosing(accounts.changes("balances", key, after=after)) as resumed:
                assert [await anext(resumed) for _ in range(3)] == seen


async def _has_run(key: str, times: int) -> None:
    async def has() -> bool:
        return RUNS[key] >= times

    await eventually(has, every_s=0.005, what="the handler")


def _of(partition: int, keys: list[str]) -> list[str]:
    from headrace.model import partition_of

    return [key for key in keys if partition_of(key.encode(), 2) == partition]
