"""One command on one aggregate: decisions without a log."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.engine.models import (
    Account,
    Close,
    Deposit,
    Deposited,
    Fail,
    Note,
    Noted,
    Query,
    Withdraw,
    bank_engine,
    counter_engine,
)

from headrace.engine import (
    AggregateRecord,
    AggregateValues,
    CommandContext,
    CommandHandling,
    CommandRequest,
    Engine,
    EngineLimits,
    Failed,
    RecordLimits,
    Reject,
    Rejected,
    Repeated,
    Success,
    result_of,
)
from headrace.errors import (
    BadArgument,
    CommandFailed,
    CommandIdReused,
    CommandTooLarge,
    CommandTooLate,
    ContextEnded,
    NotReadable,
    UnknownCommand,
    WrongVersion,
)
from headrace.model import NewRecord, Record
from headrace.protocol import Append, Purge, decode_action, events_of_record
from headrace.state import BatchName

FLOOR = BatchName(0, 0)
LIMITS = RecordLimits(1_000_000, 1_000_000)


class Bench:
    """One aggregate, and batches in which its commands are handled one after the other."""

    def __init__(self, engine: Engine[Any], *, limits: RecordLimits = LIMITS) -> None:
        self.engine = engine
        self.values = AggregateValues(engine.state_codec())
        self.handling = CommandHandling(engine, self.values, 0, limits)
        self.record: AggregateRecord | None = None
        self.batch = BatchName(1, 1)
        self.floor = FLOOR
        self.now_ms = 1_000_000
        self.written: list[NewRecord] = []
        self.states = 0

    async def send(self, command: Any, **options: Any) -> Any:
        kind, data = self.engine.commands.encode(command)
        return await self.ask(CommandRequest(aggregate="a", kind=kind, data=data, **options))

    async def ask(self, request: CommandRequest) -> Any:
        repeated = self.handling.admit(self.record, request, self.floor)
        if repeated is not None:
            return repeated
        decision = await self.handling.decide(self.record, request, now_ms=self.now_ms)
        handled = self.handling.finish(
            self.record, request, decision, batch=self.batch, floor=self.floor, now_ms=self.now_ms
        )
        self.written = list(handled.records)
        if handled.record is not None:
            assert self.values.decode(handled.value) == handled.record
            self.record, self.states = handled.record, self.states + 1
        return result_of(self.engine, self.values.inner, handled.reply, since=self.batch, is_repeated=False)

    @property
    def actions(self) -> list[Any]:
        return [decode_action(_record(each)) for each in self.written]

    @property
    def state(self) -> Any:
        assert self.record is not None
        return None if self.record.state is None else self.values.inner.decode(self.record.state)


def _record(new: NewRecord) -> Record:
    return Record(new.topic, new.partition or 0, 0, 0, new.key, new.value, new.headers)


async def test_a_command_leads_to_one_append_and_one_state() -> None:
    """N1: State (3, 3) and one more: the reply has both numbers, the append continues the journal and expects it."""
    bench = Bench(bank_engine())
    for _ in range(3):
        await bench.send(Deposit(1))
    done = await bench.send(Deposit(1), command_id="x")
    assert (done.state, done.version, done.events) == (Account(4), 4, (Deposited(1),))
    (append,) = bench.actions
    assert (append.first, append.last, append.expected, append.append_id) == (4, 4, 3, "x")
    (event,) = events_of_record("a", _record(bench.written[0]), append)
    assert event.payload == {"type": "Deposited", "data": {"amount": 1}}
    assert (bench.states, bench.state) == (4, Account(4))


async def test_a_command_that_changes_nothing_writes_nothing_unless_it_has_an_id() -> None:
    """N2: without an id there is no record; with one, a state record remembers it."""
    bench = Bench(bank_engine())
    await bench.send(Deposit(1))
    asked = await bench.send(Query())
    assert (asked.value, asked.events, bench.written, bench.states) == (1, (), [], 1)
    await bench.send(Query(), command_id="q")
    assert (bench.written, bench.states) == ([], 2)
    assert isinstance(await bench.send(Query(), command_id="q"), Repeated)


async def test_an_engine_without_a_journal_writes_the_state_only() -> None:
    """N3, N5: a change is one state record and its version; applied events that change nothing write nothing."""
    bench = Bench(counter_engine())
    done = await bench.send(Deposit(2))
    assert (done.state, done.version, bench.written, bench.states) == (2, 1, [], 1)
    for events, states in (([Deposited(1)], 2), ([Deposited(2)], 3), ([Deposited(0)], 3), ([], 3)):
        data = msgspec.json.encode([bench.engine.events.payload(each) for each in events])
        await bench.ask(CommandRequest(aggregate="a", kind="events", data=data, is_events=True))
        assert (bench.states, bench.written) == (states, [])
    assert (bench.state, bench.record and bench.record.version) == (5, 3)


async def test_an_event_that_leaves_the_state_equal_still_counts() -> None:
    """N4, N31: it is in the journal, and the version in the state topic moves with it."""
    bench = Bench(bank_engine())
    await bench.send(Deposit(1))
    done = await bench.send(Note("hello"))
    assert (done.version, done.state, done.events) == (2, Account(1), (Noted("hello"),))
    assert bench.record is not None
    assert (bench.record.version, bench.actions[0].last) == (2, 2)


async def test_models_as_functions_classes_and_with_a_context() -> None:
    """N6: what a context persists, writes elsewhere and replies is part of one result, and reject undoes all of it."""
    shop: Engine[Account] = Engine("shop", state=Account, outputs=["audit"])

    @shop.model
    class Model:
        def handle_deposit(self, account: Account | None, command: Deposit, context: CommandContext[Account]) -> None:
            context.persist(Deposited(command.amount))
            context.persist_to("audit", b"seen", key="k")
            if command.amount > 100:
                context.reject("too-much", limit=100)
            context.reply({"balance": context.state.balance if context.state else 0})

        async def handle_withdraw(self, account: Account | None, command: Withdraw) -> list[Deposited]:
            return [Deposited(-command.amount), Deposited(-1)]

        def apply(self, account: Account | None, event: Deposited) -> Account:
            return Account((account.balance if account else 0) + event.amount)

        def tags(self, event: Deposited) -> list[str]:
            return ["large"] if event.amount >= 50 else []

    bench = Bench(shop, limits=RecordLimits(1_000_000, 1_000_000, {"audit": 1000}))
    done = await bench.send(Deposit(60))
    assert (done.value, done.state) == ({"balance": 60}, Account(60))
    assert [(each.topic, each.key) for each in bench.written] == [("shop", b"a"), ("audit", b"k")]
    (event,) = events_of_record("a", _record(bench.written[0]), bench.actions[0])
    assert event.tags == ("large",)
    rejected = await bench.send(Deposit(101))
    assert (rejected.code, rejected.details, bench.written, bench.states) == ("too-much", {"limit": 100}, [], 1)
    assert (await bench.send(Withdraw(9))).version == 3
    assert bench.state == Account(50)


async def test_a_rejection_is_a_result_of_its_own() -> None:
    """N7: with code, message and details; no event, and a state record only if the command has an id."""
    bench = Bench(bank_engine())
    rejected = await bench.send(Withdraw(5))
    assert rejected == Rejected(
        code="overdrawn", message="there are 0", details={"balance": 0}, version=0, since=str(bench.batch)
    )
    assert (bench.written, bench.states) == ([], 0)
    await bench.send(Withdraw(5), command_id="w")
    assert (bench.written, bench.states, bench.state) == ([], 1, None)


@pytest.mark.parametrize(
    ("where", "stage"),
    [("handler", "handler"), ("event handler", "event handler"), ("serializer", "serialization")],
)
@pytest.mark.parametrize("command_id", [None, "x"])
async def test_an_error_of_the_application_fails_its_command_alone(
    where: str, stage: str, command_id: str | None
) -> None:
    """N8: a typed error that names the stage, the state as before, and the next command works."""
    bench = Bench(bank_engine())
    await bench.send(Deposit(7))
    failed = await bench.send(Fail(where), command_id=command_id)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, CommandFailed)
    assert (failed.error.stage, failed.outcome_known, bench.state) == (stage, True, Account(7))
    assert bench.written == []
    assert (await bench.send(Deposit(1))).state == Account(8)


async def test_a_failure_that_was_told_is_never_followed_by_a_success() -> None:
    """N8: with an id the failure is remembered; a late copy of the command gets it again, whatever the state is."""
    bench = Bench(bank_engine())
    first = await bench.send(Deposit(1), command_id="x", expected_version=5)
    assert isinstance(first.error, WrongVersion)
    again = await bench.send(Deposit(1), command_id="x", expected_version=0)
    result = result_of(bench.engine, bench.values.inner, again.reply, since=FLOOR, is_repeated=True)
    assert isinstance(result, Failed)
    assert str(result.error) == str(first.error)
    assert type(result.error) is WrongVersion


async def test_the_expected_version_must_match() -> None:
    """N22: the refusal has both numbers; nothing is written without an id."""
    bench = Bench(bank_engine())
    await bench.send(Deposit(1), expected_version=0)
    failed = await bench.send(Deposit(1), expected_version=7)
    assert (failed.error.expected, failed.error.actual, bench.states) == (7, 1, 1)


async def test_the_same_id_gets_the_same_reply_and_is_looked_at_before_the_version() -> None:
    """N21, N32: a repetition is not handled, though its expected version is over; another payload is refused."""
    bench = Bench(bank_engine())
    first = await bench.send(Deposit(5), command_id="x", expected_version=0)
    await bench.send(Deposit(1))
    again = await bench.send(Deposit(5), command_id="x", expected_version=0)
    assert isinstance(again, Repeated)
    assert result_of(bench.engine, bench.values.inner, again.reply, since=bench.batch, is_repeated=False) == first
    with pytest.raises(CommandIdReused, match="'x' was used for another command of 'a'"):
        await bench.send(Deposit(6), command_id="x")
    assert bench.state == Account(6)


@pytest.mark.parametrize(
    "limits",
    [
        EngineLimits(command_ids=2),
        EngineLimits(command_ids_bytes=300),
        EngineLimits(command_ids_s=10.0),
    ],
    ids=["count", "bytes", "age"],
)
async def test_a_forgotten_id_is_too_late_and_never_done_twice(limits: EngineLimits) -> None:
    """N33: dropped by number, bytes or age, an id whose first attempt may lie before that is refused."""
    bench = Bench(bank_engine(limits=limits))
    await bench.send(Deposit(1), command_id="first", since=(1, 0))
    for n in range(4):
        bench.batch, bench.now_ms = BatchName(1, 2 + n), bench.now_ms + 4_000
        await bench.send(Deposit(1), command_id=f"other-{n}", since=(1, 1 + n))
    assert bench.record is not None
    assert bench.record.find("first") is None
    with pytest.raises(CommandTooLate, match="first sent after batch 1:0"):
        await bench.send(Deposit(1), command_id="first", since=(1, 0))
    assert bench.state == Account(5)
    fresh = await bench.send(Deposit(1), command_id="new", since=bench.record.forgotten)
    assert fresh.version == 6, "one that is known to be new is done"


async def test_an_aggregate_without_a_record_forgets_as_its_partition_does() -> None:
    """N33: what the partition forgot of aggregates whose records are gone holds for new ones, too, from then on."""
    bench = Bench(bank_engine())
    bench.floor = BatchName(3, 5)
    with pytest.raises(CommandTooLate):
        await bench.send(Deposit(1), command_id="old", since=(3, 4))
    await bench.send(Deposit(1), command_id="new", since=(3, 5))
    bench.floor = FLOOR
    with pytest.raises(CommandTooLate):
        await bench.send(Deposit(1), command_id="old", since=(3, 4))


async def test_a_reply_that_is_too_large_is_remembered_as_done() -> None:
    """N33: the repetition is known as done, with its version, and without the reply."""
    bench = Bench(bank_engine(limits=EngineLimits(remembered_reply_bytes=40)))
    await bench.send(Note("x" * 100), command_id="n")
    again = await bench.send(Note("x" * 100), command_id="n")
    result = result_of(bench.engine, bench.values.inner, again.reply, since=FLOOR, is_repeated=True)
    assert isinstance(result, Success)
    assert (result.is_kept, result.version, result.state) == (False, 1, None)


@pytest.mark.parametrize(
    ("part", "limits", "engine_limits"),
    [
        ("events", RecordLimits(10_000, 500), EngineLimits()),
        ("state", RecordLimits(400, 10_000), EngineLimits()),
        ("reply", RecordLimits(10_000, 10_000), EngineLimits(reply_bytes=300)),
    ],
)
async def test_what_is_too_large_fails_alone(part: str, limits: RecordLimits, engine_limits: EngineLimits) -> None:
    """N36: the error names the part and both sizes; the state is as before, and the failure is remembered."""
    texts: Engine[list[str]] = Engine("texts", state=list[str], limits=engine_limits)

    @texts.command
    def note(state: list[str] | None, command: Note) -> Noted:
        return Noted(command.text)

    @texts.event
    def noted(state: list[str] | None, event: Noted) -> list[str]:
        return [*(state or []), event.text]

    bench = Bench(texts, limits=limits)
    assert (await bench.send(Note("small"))).version == 1
    failed = await bench.send(Note("x" * 600), command_id="large")
    assert isinstance(failed.error, CommandTooLarge)
    assert failed.error.part == part
    assert failed.error.size_bytes > failed.error.limit_bytes
    advice = "EngineLimits.reply_bytes" if part == "reply" else "max_record_bytes of the topic"
    assert str(failed.error).endswith(f"make it smaller, or raise {advice}")
    assert bench.state == ["small"]
    assert isinstance(await bench.send(Note("x" * 600), command_id="large"), Repeated)


async def test_ids_give_way_to_a_large_state() -> None:
    """N36: a record that would be too large drops its oldest ids, and remembers that it did."""
    bench = Bench(bank_engine(), limits=RecordLimits(900, 10_000))
    for n in range(8):
        bench.batch = BatchName(1, n + 1)
        done = await bench.send(Deposit(1), command_id=f"id-{n}" + "x" * 50, since=(1, n))
        assert done.version == n + 1
    assert bench.record is not None
    assert 0 < len(bench.record.ids) < 8
    assert bench.record.forgotten == BatchName(1, 8 - len(bench.record.ids))


async def test_a_state_that_becomes_none_is_kept_or_purged_with_its_journal() -> None:
    """N20: keep goes on with the next number; purge writes a Purge behind the events and begins with 1 again."""
    keep, purge = Bench(bank_engine()), Bench(bank_engine(none_states="purge"))
    for bench in (keep, purge):
        await bench.send(Deposit(1))
        closed = await bench.send(Close(), command_id="c")
        assert (closed.state, closed.version) == (None, 2)
    assert [type(each) for each in keep.actions] == [Append]
    assert [type(each) for each in purge.actions] == [Append, Purge]
    versions = [(await bench.send(Deposit(1))).version for bench in (keep, purge)]
    assert versions == [3, 1]
    assert [bench.actions[0].expected for bench in (keep, purge)] == [2, 0]
    assert isinstance(await purge.send(Close(), command_id="c"), Repeated)


async def test_commands_and_declarations_that_make_no_sense_are_refused() -> None:
    """N8: unknown commands, ids that no aggregate can have, handlers without annotations, two for one class."""
    bench = Bench(bank_engine())
    failed = await bench.ask(CommandRequest(aggregate="a", kind="Nonsense", data=b"{}"))
    assert isinstance(failed.error, UnknownCommand)
    broken = await bench.ask(CommandRequest(aggregate="a", kind="Deposit", data=b'{"amount":"many"}'))
    assert isinstance(broken.error, CommandFailed)
    for request in (
        CommandRequest(aggregate="", kind="Query", data=b"{}"),
        CommandRequest(aggregate="\x00hr.owner", kind="Query", data=b"{}"),
        CommandRequest(aggregate="a", kind="Query", data=b"{}", command_id=""),
        CommandRequest(aggregate="a", kind="Query", data=b"{}", expected_version=-1),
    ):
        with pytest.raises(BadArgument):
            await bench.ask(request)

    def second(account: Account | None, command: Deposit) -> None: ...
    def unannotated(account, command): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    def alone(account: Account | None) -> None: ...
    async def waits(account: Account | None, event: Noted) -> Account: ...  # type: ignore[empty-body]

    for declare in (
        lambda: bench.engine.command(second),
        lambda: bench.engine.command(unannotated),
        lambda: bench.engine.command(alone),
        lambda: bench.engine.event(waits),
        lambda: Engine("x", state=Account, partitions=0),
        lambda: Engine("x", state=Account, none_states="drop"),  # type: ignore[arg-type]
        lambda: Engine("no/name", state=Account),
    ):
        with pytest.raises(BadArgument):
            declare()


@pytest.mark.parametrize(
    "topics",
    [
        {"journal": "one", "state_topic": "one"},
        {"journal": "x-state"},
        {"command_topic": "x-state"},
        {"command_topic": "x"},
        {"journal": None, "state_topic": "one", "command_topic": "one"},
        {"outputs": ["other", "x-state"]},
        {"outputs": ["x"]},
    ],
)
def test_an_engine_uses_each_topic_for_one_thing(topics: dict[str, Any]) -> None:
    """What handlers and callers write to journal or state topic would be taken for events and states."""
    with pytest.raises(BadArgument, match="engine 'x' uses it as"):
        Engine("x", state=Account, **topics)


@pytest.mark.parametrize(
    "limits",
    [
        {"batch_commands": 0},
        {"batch_bytes": 0},
        {"waiting": 0},
        {"reply_bytes": 0},
        {"timers": -1},
        {"command_ids": -1},
        {"command_ids": True},
        {"command_ids": 1.5},
        {"batch_commands": "5"},
        {"command_ids_s": -1.0},
        {"command_ids_s": float("nan")},
        {"idle_s": "30"},
        {"timeout_s": 0.0},
        {"timeout_s": float("inf")},
    ],
)
def test_limits_under_which_nothing_could_be_handled_are_refused(limits: dict[str, Any]) -> None:
    """N41: an engine without room for one command would be served, and let all its callers wait."""
    with pytest.raises(BadArgument, match=f"{next(iter(limits))} is"):
        EngineLimits(**limits)
    EngineLimits(command_ids=0, command_ids_s=0, command_ids_bytes=0, remembered_reply_bytes=0, idle_s=0, timers=0)


@pytest.mark.parametrize("tags", ["vip", b"vip", None, 5])
async def test_tags_that_are_no_list_fail_their_command(tags: Any) -> None:
    """N8: a text would become a tag for each of its letters, for as long as the journal lives."""
    bank = bank_engine()
    bank.tags(lambda _: tags)
    failed = await Bench(bank).ask(CommandRequest(aggregate="a", kind="Deposit", data=b'{"amount":1}'))
    assert isinstance(failed.error, CommandFailed)
    assert "a list of texts" in str(failed.error)


def test_the_command_topic_that_an_engine_gets_later_is_its_own() -> None:
    """An input makes a command topic, whose name may be that of another of the engine's topics."""
    with pytest.raises(BadArgument, match="'x-commands', but engine 'x' uses it as its journal"):
        Engine("x", state=Account, journal="x-commands").commands_from("others")
    Engine("y", state=Account, outputs=["y-commands"]).commands_from("others")  # handlers may send commands


def test_a_record_that_is_none_is_not_readable() -> None:
    """N11: bytes that no engine wrote, and formats of other versions, raise a typed error."""
    values = AggregateValues(bank_engine().state_codec())
    for data in (b"", b"\xff", msgspec.msgpack.encode([9, 0, None, [], [0, 0]])):
        with pytest.raises(NotReadable):
            values.decode(data)


async def test_a_mutated_copy_does_not_reach_the_next_command() -> None:
    """N8: a handler that changes its state object and rejects leaves the aggregate as it is."""
    bank: Engine[Account] = Engine("m", state=Account)

    @bank.command
    def spend(account: Account | None, command: Withdraw) -> Deposited | Reject:
        if account is None:
            return Deposited(10)
        account.balance = -1
        return Reject("no")

    @bank.event
    def deposited(account: Account | None, event: Deposited) -> Account:
        return Account(event.amount)

    bench = Bench(bank)
    await bench.send(Withdraw(1))
    await bench.send(Withdraw(1), command_id="r")
    assert bench.state == Account(10)


class Start(msgspec.Struct, frozen=True):
    how: str


@pytest.mark.parametrize("how", ["returns", "waits", "rejects", "fails"])
async def test_a_context_that_is_used_after_its_handler_is_refused(how: str) -> None:
    """N6: what a task does that the handler has not awaited is in no transaction, so every call says so."""
    engine: Engine[int] = Engine("late", state=int, partitions=1, outputs=["out"])
    left: list[CommandContext[int]] = []

    def start(count: int | None, command: Start, context: CommandContext[int]) -> Any:
        left.append(context)
        if how == "fails":
            raise ValueError
        return Reject("no") if how == "rejects" else asyncio.sleep(0, Deposited(1)) if how == "waits" else Deposited(1)

    engine.command(start)
    engine.event(_counted)
    bench = Bench(engine)
    await bench.send(Start(how))
    (context,) = left
    calls = (
        lambda: context.persist(Deposited(1)),
        lambda: context.persist_to("out", b"x"),
        lambda: context.update_state(1),
        lambda: context.schedule(Start(how), after="1s"),
        lambda: context.cancel("x"),
        lambda: context.reply(1),
        lambda: context.reject("no"),
    )
    for call in calls:
        with pytest.raises(
            ContextEnded, match=r"comes after the handler of a command for 'a' of engine 'late' has ended"
        ):
            call()


def _counted(count: int | None, event: Deposited) -> int:
    return (count or 0) + event.amount


class Basket(msgspec.Struct):
    items: list[str] = []


class Fill(msgspec.Struct, frozen=True):
    items: list[str]
    how: str = ""


class Filled(msgspec.Struct):
    items: list[str]


class Added(msgspec.Struct):
    item: str


def basket_engine() -> Engine[Basket]:
    """Return an engine whose handlers change what they get, and share lists between events and states."""
    engine: Engine[Basket] = Engine("baskets", state=Basket, partitions=1)

    @engine.command
    def fill(basket: Basket | None, command: Fill, context: CommandContext[Basket]) -> Any:
        if command.how == "changes its state":
            assert basket is not None
            basket.items.append("only here")
            return [Added(each) for each in command.items]
        if command.how == "asks":
            assert basket is not None
            basket.items.clear()
            return None
        if command.how == "changes its event":
            event = Added("first")
            context.persist(event)
            event.item = "second"
            return event
        return [Filled(command.items), *(Added(each) for each in command.items)]

    @engine.event
    def filled(basket: Basket | None, event: Filled) -> Basket:
        return Basket(event.items)

    @engine.event
    def added(basket: Basket | None, event: Added) -> Basket:
        basket = basket or Basket([])
        basket.items.append(event.item)
        return basket

    return engine


async def test_the_state_is_the_fold_of_the_events_whatever_handlers_change_in_place() -> None:
    """N1, N42: a handler that changes its state, its events, or a list that both share, changes no journal by that."""
    engine = basket_engine()
    bench, journal = Bench(engine), list[Any]()
    for how in ("", "changes its state", "asks", "changes its event"):
        done = await bench.send(Fill(["x", "y"], how))
        for action, new in zip(bench.actions, bench.written, strict=True):
            journal += [each.payload for each in events_of_record("a", _record(new), action)]
        folded = engine.fold(engine.events.of_payload(each) for each in journal)
        assert (how, done.state, bench.state) == (how, folded, folded)
    assert [each["data"] for each in journal[:2]] == [{"items": ["x", "y"]}, {"item": "x"}]
    assert [each["data"]["item"] for each in journal[-2:]] == ["first", "second"]
    assert bench.state == Basket(["x", "y", "x", "y", "x", "y", "first", "second"])


class Label(msgspec.Struct, frozen=True):
    names: set[int]


async def test_a_command_with_a_set_is_the_same_command_in_every_order() -> None:
    """N32: sets have another order in each process; a retry from there is no other command."""
    engine = counter_engine()

    def label(count: int | None, command: Label, context: CommandContext[int]) -> None:
        context.reply(sorted(command.names))

    engine.command(label)
    bench = Bench(engine)
    assert list({0, 8}) != list({8, 0}), "the test is about this"
    assert (await bench.send(Label({0, 8}), command_id="x")).value == [0, 8]
    assert isinstance(await bench.send(Label({8, 0}), command_id="x"), Repeated)
