"""Random histories of an engine's partition, and the oracle that judges them.

The nodes run the shipped EnginePartition, Owner and LeaseKeeper over a scripted log. They are frozen, killed, cut off,
deposed and released at random, and answers to commits are late or lost. Clients send commands with and without ids,
repeat what was not answered, send some twice at once, and read. Others write commands to a topic. Some commands set
timers, and some of these are cancelled. The oracle: every acknowledged command is in the journal exactly once, in
order; nothing that was refused is there; no append is void; the state is the journal's fold; each command of the topic
is there once, or a dead letter, and each timer's is there once, unless it was cancelled before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.cluster.scripted_log import Brokers, ScriptedLog
from tests.cluster.simulation import PREFIX, Replica, World
from tests.cluster.virtual_time import SimulatedNode

from headrace.cluster import Identity, LeaseKeeper, LeaseTerms, OwnedPartition, Owner
from headrace.engine import (
    AggregateRecord,
    AggregateValues,
    Answer,
    Cancel,
    CommandHandling,
    CommandRequest,
    Engine,
    EngineLimits,
    EnginePartition,
    RecordLimits,
    Reject,
    Schedule,
)
from headrace.engine.commands import FailedReply, RejectedReply, SuccessReply
from headrace.engine.topics import state_spec
from headrace.errors import CommandTooLate, HeadraceError, Unavailable
from headrace.model import NewRecord, Record, Topic, TopicConfig, TopicPartition
from headrace.protocol import Append, decode_action, events_of_record
from headrace.state import KeyValueStore, StatePartition, StateSpec, is_reserved
from headrace.state.memory import MemoryStore

STATE = TopicPartition("tally-state", 0)
JOURNAL = TopicPartition("tally", 0)
COMMANDS = TopicPartition("tally-commands", 0)
AGGREGATES = ("a", "b")
# A timer's token is that of the command which set it and this, that of its cancellation twice as much.
TIMER = 100_000
_TRIES = 12
_TRY_S = 1.5
_CALM_WITHIN_S = 20.0
_LOOKS, _LOOK_EVERY_S = 20, 5.0
_LIMITS = RecordLimits(1_000_000, 1_000_000, {COMMANDS.topic: 1_000_000})


class Add(msgspec.Struct, frozen=True):
    token: int


class Added(msgspec.Struct, frozen=True):
    token: int


class Drop(msgspec.Struct, frozen=True):
    """Cancel the timer that a token has set."""

    token: int


tally = Engine(
    "tally",
    state=list[int],
    partitions=1,
    command_topic=COMMANDS.topic,
    limits=EngineLimits(command_ids=6, idle_s=0.5, timers=10_000),
)


@tally.command
async def add(tokens: list[int] | None, command: Add) -> list[Any] | Reject:
    """Add a token, or two events of it; every seventh is rejected, some handlers take their time, some set timers."""
    if is_rejected(command.token):
        return Reject("seventh", details={"count": len(tokens or [])})
    if command.token % 5 == 0:
        await asyncio.sleep(0.004)
    added = [Added(command.token)] if command.token % 3 else [Added(command.token), Added(-command.token)]
    if not sets_timer(command.token):
        return added
    timer = Schedule(command=Add(command.token + TIMER), after=command.token % 5 / 5, name=str(command.token))
    return [*added, timer]


@tally.command
def drop(tokens: list[int] | None, command: Drop) -> list[Any]:
    return [Cancel(str(command.token)), Added(command.token + 2 * TIMER)]


def is_rejected(token: int) -> bool:
    return token % 7 == 0


def sets_timer(token: int) -> bool:
    return token % 4 == 1 and 0 < token < TIMER and not is_rejected(token)


@tally.event
def added(tokens: list[int] | None, event: Added) -> list[int]:
    return [*(tokens or []), event.token]


@dataclass
class Op:
    """A command of a client, and what it was told; `outcome` is that of the last attempt that was answered."""

    aggregate: str
    token: int
    command_id: str | None
    begun_s: float
    ended_s: float = float("inf")
    outcome: str = "unknown"
    replies: list[Any] = field(default_factory=list)
    is_unsure: bool = False  # an attempt may have been done, or may still be


@dataclass
class Seen:
    """A read: the tokens that it showed."""

    aggregate: str
    begun_s: float
    ended_s: float
    tokens: list[int]


class _Admin(ScriptedLog):
    async def configure(self, topic: str, config: TopicConfig) -> Topic:
        return self._brokers.topic(topic)


class EngineReplica(Replica):
    """One process of a node with its copy of the engine's partition; the node's part is played as HostingNode does."""

    def __init__(self, brokers: Brokers, name: str, process: str, dice: random.Random) -> None:
        self.name = name
        self.node = SimulatedNode(process, rate=dice.uniform(0.97, 1.03), boot_s=dice.uniform(0, 1000))
        self.log = _Admin(brokers)
        me = Identity("cluster", name, process)
        self.keeper = LeaseKeeper(self.log, PREFIX, me, clock=self.node, terms=LeaseTerms())  # type: ignore[arg-type]
        self.owner = Owner(
            self.log,  # type: ignore[arg-type]
            OwnedPartition(PREFIX, (STATE,)),
            self.keeper,
            self,
            clock=self.node,
            read_timeout_s=1.0,
            dice=random.Random(dice.random()),
        )
        self.partition: EnginePartition[list[int]] | None = None
        self._is_owned = False
        self.task = self.node.start(self._run)

    async def _run(self) -> None:
        while self.partition is None:
            try:
                self.partition = await self._open()
            except Unavailable:
                await asyncio.sleep(0.1)
        self.partition.begin(self.owner)
        await asyncio.gather(self.keeper.run(), self.owner.run())

    async def _open(self) -> EnginePartition[list[int]]:
        values = AggregateValues(tally.state_codec())
        states = await StatePartition.open(
            self.log,  # type: ignore[arg-type]
            [state_spec(tally)],
            0,
            open_store=_open_store,
            clock=self.node,
        )
        handling = CommandHandling(tally, values, 0, _LIMITS)
        return EnginePartition(handling, states, node=self.name, log=self.log, clock=self.node)  # type: ignore[arg-type]

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        assert self.partition is not None
        if not self._is_owned:
            await self.partition.owns(epoch)
        self._is_owned = True

    async def lost(self) -> None:
        assert self.partition is not None
        self._is_owned = False
        await self.partition.lost()


async def _open_store(spec: StateSpec[Any, Any]) -> KeyValueStore:
    return MemoryStore()


class EngineWorld(World):
    """One history of commands."""

    topics: Mapping[str, int] = {
        STATE.topic: 1,
        JOURNAL.topic: 1,
        COMMANDS.topic: 1,
        f"{COMMANDS.topic}.dead-letters": 1,
        f"{PREFIX}-leases": 4,
    }

    def __init__(self, seed: int, harms: Sequence[str]) -> None:
        super().__init__(seed, harms)
        self.commands: list[Op] = []
        self.reads: list[Seen] = []
        self.written: list[tuple[str, int]] = []
        self.failures: list[str] = []
        self._since: dict[str, tuple[int, int]] = {}

    def _made(self, name: str, process: str) -> Replica:
        return EngineReplica(self.brokers, name, process, self.dice)

    async def run(self) -> list[str]:
        for rank, replica in enumerate(self.replicas):
            replica.owner.propose(rank)
        clients = [asyncio.create_task(self._client(f"c{n}")) for n in range(4)]
        clients += [asyncio.create_task(self._watcher()) for _ in range(2)]
        clients.append(asyncio.create_task(self._producer()))
        await self._be_rough()
        self._is_rough = False
        self._be_well()
        await asyncio.gather(*clients)
        problems = await self._calm()
        await self._end()
        tokens, voids = tokens_of(self._journal())
        problems += voids + judge(self.commands, self.reads, tokens, self._states())
        return self.failures + problems + self._own_work()

    def _dead_letters(self) -> list[int]:
        """Return the tokens of commands that were set aside: too many owners in a row did not get past them."""
        letters = self.brokers.committed(TopicPartition(f"{COMMANDS.topic}.dead-letters", 0))
        return [msgspec.json.decode(letter.value or b"")["token"] for letter in letters]

    # Clients.

    async def _client(self, name: str) -> None:
        while self._is_rough:
            await asyncio.sleep(self.dice.expovariate(25.0))
            burst = [self._new_op(name) for _ in range(self.dice.choice((1, 1, 3)))]
            copies = [2 if op.command_id and self.dice.random() < 0.2 else 1 for op in burst]
            pairs = zip(burst, copies, strict=True)
            sends = [self._tried(op, is_only=count == 1) for op, count in pairs for _ in range(count)]
            await asyncio.gather(*sends)

    async def _producer(self) -> None:
        """Write commands to the topic, in bursts."""
        while self._is_rough:
            await asyncio.sleep(self.dice.expovariate(10.0))
            for _ in range(self.dice.choice((1, 1, 5))):
                self._values += 1
                aggregate, token = self.dice.choice(AGGREGATES), self._values
                self.written.append((aggregate, token))
                data, headers = b'{"token":%d}' % token, (("headrace.command", b"Add"),)
                self.brokers.append(NewRecord(COMMANDS.topic, aggregate.encode(), data, headers))

    def _new_op(self, name: str) -> Op:
        set_by = [op for op in self.commands[-20:] if sets_timer(op.token)]
        if set_by and self.dice.random() < 0.1:
            cancelled = self.dice.choice(set_by)
            op = Op(cancelled.aggregate, cancelled.token + 2 * TIMER, None, self._loop.time())
            if all(each.token != op.token for each in self.commands):
                self.commands.append(op)
                return op
        self._values += 1
        token = self._values
        has_id = self.dice.random() < 0.75
        op = Op(self.dice.choice(AGGREGATES), token, f"{name}-{token}" if has_id else None, self._loop.time())
        self.commands.append(op)
        return op

    async def _tried(self, op: Op, *, is_only: bool) -> None:
        """Send until there is an answer, as a router does: what may have been done is repeated only with an id."""
        since = self._since.get(op.aggregate, (0, 0))
        kind, token = ("Add", op.token) if op.token < TIMER else ("Drop", op.token - 2 * TIMER)
        request = CommandRequest(
            aggregate=op.aggregate, kind=kind, data=b'{"token":%d}' % token, command_id=op.command_id, since=since
        )
        if op.command_id is None:
            request = msgspec.structs.replace(request, since=None)
        attempt = 1
        for _ in range(_TRIES):
            request = msgspec.structs.replace(request, is_first=is_only and not op.is_unsure)
            outcome = await self._attempt(request, attempt)
            if isinstance(outcome, Answer):
                self._told(op, outcome)  # type: ignore[arg-type]
                return
            is_known = outcome is not None and bool(getattr(outcome, "outcome_known", True))
            attempt += not is_known
            if not is_known or isinstance(outcome, CommandTooLate):
                op.is_unsure = True
            if isinstance(outcome, CommandTooLate) or (op.command_id is None and not is_known):
                return
            await asyncio.sleep(self.dice.random() * 0.1)
        op.is_unsure = op.is_unsure or op.outcome == "unknown"

    async def _attempt(self, request: CommandRequest, attempt: int) -> Answer | HeadraceError | None:
        """Ask one node; None if it did not answer in time."""
        replica: Any = self.dice.choice([r for r in self.replicas if r.owner.epoch is not None] or self.replicas)

        async def submit() -> Answer:
            assert replica.partition is not None
            answer: Answer = await replica.partition.submit(
                request, deadline_s=self._loop.time() + _TRY_S, attempt=attempt
            )
            return answer

        if replica.partition is None:
            await asyncio.sleep(0.05)
            return HeadraceError()
        asked = replica.node.start(submit)
        await asyncio.wait([asked], timeout=_TRY_S + 0.2)
        if not asked.done():
            asked.cancel()
            return None
        error = asked.exception()
        if error is None:
            return asked.result()  # type: ignore[no-any-return]
        if not isinstance(error, HeadraceError):
            self.failures.append(f"{request.command_id}: {error!r}")
            return None
        return error

    def _told(self, op: Op, answer: Answer) -> None:  # type: ignore[override]
        op.ended_s = min(op.ended_s, self._loop.time())
        self._since[op.aggregate] = max(self._since.get(op.aggregate, (0, 0)), answer.since)
        if isinstance(answer.reply, SuccessReply) and not answer.reply.is_kept:
            return
        op.replies.append(answer.reply)
        match answer.reply:
            case SuccessReply():
                op.outcome = "done"
            case RejectedReply():
                op.outcome = "rejected"
            case FailedReply():
                self.failures.append(f"a handler failed: {answer.reply}")

    async def _watcher(self) -> None:
        while self._is_rough:
            await asyncio.sleep(self.dice.expovariate(30.0))
            replica: Any = self.dice.choice(self.replicas)
            if replica.partition is None or not (replica.owner.may_serve() or not replica.node.is_running):
                continue
            aggregate, begun_s = self.dice.choice(AGGREGATES), self._loop.time()
            asked = replica.node.start(lambda r=replica, a=aggregate: r.partition.read(a, timeout_s=0.05))
            asked.add_done_callback(lambda task, a=aggregate, b=begun_s: self._saw(a, b, task))
            await asyncio.wait([asked], timeout=0.1)

    def _saw(self, aggregate: str, begun_s: float, asked: asyncio.Task[Any]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            record: AggregateRecord | None = asked.result().record
            tokens = msgspec.json.decode(record.state) if record is not None and record.state is not None else []
            self.reads.append(Seen(aggregate, begun_s, self._loop.time(), tokens))

    # The end.

    def _be_well(self) -> None:
        self.weather.lost = self.weather.late = 0.0
        self.hasty.clear()
        for rank, replica in enumerate(self.replicas):
            replica.owner.propose(rank)

    async def _calm(self) -> list[str]:
        """After all is well again, each aggregate must take a command."""
        self._be_well()
        deadline_s = self._loop.time() + _CALM_WITHIN_S
        for aggregate in AGGREGATES:
            self._values += 1
            token = self._values * 7 + 1
            op = Op(aggregate, token, f"last-{aggregate}", self._loop.time())
            self.commands.append(op)
            while op.outcome != "done":
                if self._loop.time() > deadline_s:
                    return [
                        f"no command of {aggregate!r} was done within {_CALM_WITHIN_S:g} s after all was well again"
                    ]
                await self._tried(op, is_only=False)
        for _ in range(_LOOKS):  # a timer that too many owners did not get past waits for a minute
            if not self._own_work():
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        return []

    def _own_work(self) -> list[str]:
        return judge_own_work(self.written, tokens_of(self._journal())[0], self._dead_letters())

    def _journal(self) -> list[Record]:
        return self.brokers.committed(JOURNAL)

    def _states(self) -> dict[str, AggregateRecord]:
        values = AggregateValues(tally.state_codec())
        records = [each for each in self.brokers.committed(STATE) if not is_reserved(each.key)]
        return {(each.key or b"").decode(): values.decode(each.value or b"") for each in records}


def tokens_of(journal: Sequence[Record]) -> tuple[dict[str, list[int]], list[str]]:
    """Return the tokens of each aggregate in the journal, and the appends that are void."""
    problems: list[str] = []
    tokens: dict[str, list[int]] = {aggregate: [] for aggregate in AGGREGATES}
    for record in journal:
        id_, action = (record.key or b"").decode(), decode_action(record)
        assert isinstance(action, Append)
        if action.expected != len(tokens[id_]) or action.first != len(tokens[id_]) + 1:
            problems.append(f"a void append of {id_}: {action} at version {len(tokens[id_])}")
            continue
        tokens[id_] += [event.payload["data"]["token"] for event in events_of_record(id_, record, action)]
    return tokens, problems


def judge_own_work(
    written: Sequence[tuple[str, int]], tokens: Mapping[str, Sequence[int]], dead: Sequence[int]
) -> list[str]:
    """Return what is wrong with the commands of the topic, and with timers."""
    problems = []
    for aggregate, token in written:
        count = tokens[aggregate].count(token) + dead.count(token)
        if count != (0 if is_rejected(token) and token not in dead else 1):
            problems.append(f"command {token} of the topic was done {count} times")
    for journaled in tokens.values():
        for token in filter(sets_timer, journaled):
            problems += _judge_timer(token, journaled)
    return problems


def _judge_timer(token: int, journaled: Sequence[int]) -> list[str]:
    fired, count = token + TIMER, journaled.count(token + TIMER)
    if token + 2 * TIMER not in journaled:
        expected = 0 if is_rejected(fired) else 1
        return [] if count == expected else [f"the timer of {token} fired {count} times"]
    cancelled = journaled.index(token + 2 * TIMER)
    if cancelled < journaled.index(token):
        return []  # it was cancelled before it was set
    if count > 1 or fired in journaled[cancelled:]:
        return [f"the timer of {token} fired {count} times, once after it was cancelled"]
    return []


def judge(
    ops: Sequence[Op],
    reads: Sequence[Seen],
    tokens: Mapping[str, Sequence[int]],
    states: Mapping[str, AggregateRecord],
) -> list[str]:
    """Return what is wrong with the commands of clients."""
    problems: list[str] = []
    for op in ops:
        problems += _judge_op(op, tokens[op.aggregate])
    for aggregate, journaled in tokens.items():
        state = states.get(aggregate)
        stored = msgspec.json.decode(state.state) if state is not None and state.state is not None else []
        if stored != journaled or (state is not None and state.version != len(journaled)):
            problems.append(f"the state of {aggregate} is not the fold of its journal")
        problems += _out_of_order(aggregate, ops, reads, journaled)
    return problems


def _judge_op(op: Op, journaled: Sequence[int]) -> list[str]:
    count, problems = journaled.count(op.token), []
    if count > 1:
        problems.append(f"done {count} times: {op}")
    if op.outcome == "done" and count != 1:
        problems.append(f"acknowledged and not there: {op}")
    if op.outcome == "rejected" and count:
        problems.append(f"rejected and there: {op}")
    if op.outcome == "unknown" and not op.is_unsure and count:
        problems.append(f"refused and there: {op}")
    if any(reply != op.replies[0] for reply in op.replies):
        problems.append(f"two replies to one id: {op}")
    for reply in op.replies:
        if isinstance(reply, SuccessReply) and count == 1:
            last = -op.token if op.token % 3 == 0 and op.token < TIMER else op.token
            if reply.version != journaled.index(last) + 1:
                problems.append(f"version {reply.version} is not that of the journal: {op}")
    return problems


def _out_of_order(aggregate: str, ops: Sequence[Op], reads: Sequence[Seen], journaled: Sequence[int]) -> list[str]:
    """Return what went back behind what had been told before it began."""
    problems = []
    done = [op for op in ops if op.aggregate == aggregate and op.outcome == "done" and op.token in journaled]
    seen = [read for read in reads if read.aggregate == aggregate]
    told = [(op.ended_s, journaled.index(op.token) + 1) for op in done]
    told += [(read.ended_s, len(read.tokens)) for read in seen]
    for op in done:
        place = journaled.index(op.token) + 1
        if any(ended_s < op.begun_s and before > place for ended_s, before in told):
            problems.append(f"before what was told already: {op}")
    for read in seen:
        if list(journaled[: len(read.tokens)]) != read.tokens:
            problems.append(f"read and never so: {read}")
        if any(ended_s < read.begun_s and before > len(read.tokens) for ended_s, before in told):
            problems.append(f"a read went back: {read}")
    return problems
