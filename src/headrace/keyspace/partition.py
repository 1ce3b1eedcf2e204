"""One partition of a keyspace on one node: it follows its changelogs, and serves calls and reads while it owns them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headrace.cluster import Committed, Owner, PartitionRequest
from headrace.config import KeyspaceSettings
from headrace.errors import (
    HeadraceError,
    NotPartitionOwner,
    OperationFailed,
    StateConflict,
    StateOffline,
    StateReadOnly,
    TimedOut,
)
from headrace.keyspace.calls import CallRunner
from headrace.keyspace.declaration import KeyspaceSpec
from headrace.keyspace.inputs import CommitUnit, InputPump
from headrace.keyspace.messages import (
    PUT_CONFLICT,
    Call,
    CountKeys,
    FindByIndex,
    GetValue,
    MessageCodecs,
    Operation,
    PlacedReply,
    PollChanges,
    PutValue,
    ReadPage,
    decode_operation,
    encode,
)
from headrace.keyspace.reads import (
    CommittedValue,
    change_page,
    count_keys,
    find_by_index,
    put_value,
    read_committed,
    read_page,
    read_value,
)
from headrace.model import ConsistencyToken, NewRecord, Position, TokenPlace, TopicPartition
from headrace.observe import Health, extract, get_logger, span
from headrace.runtime import SYSTEM_CLOCK, Clock, Lookout, moment_of
from headrace.state import DuplicateValue, StatePartition, UnitOfWork, find_duplicates, place_of

if TYPE_CHECKING:
    from headrace.keyspace.client import KeyspaceClient
    from headrace.keyspace.declaration import Keyspace

__all__ = ["KeyspacePartition", "OwnerWriter"]

_logger = get_logger(__name__)
_LOOK_EVERY_S = 0.02
_CONFIRM_EVERY_S = 0.25
_INPUT_GATE_S = 30.0
_EXAMPLES = 10
MakePumps: TypeAlias = Callable[[CallRunner, CommitUnit], Sequence[InputPump]]
ReadOperation: TypeAlias = GetValue | ReadPage | FindByIndex | CountKeys


class OwnerWriter:
    """The owner as states see it: a `ChangelogWriter` that remembers when what it committed may be shown."""

    def __init__(self, owner: Owner, changelogs: Collection[TopicPartition]) -> None:
        self._owner = owner
        self._changelogs = changelogs
        self.last: Committed | None = None

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write the records in one transaction; returns where each landed, as far as that is known."""
        self.last = await self._owner.commit(records)
        return in_order(records, self.last.positions, self._changelogs)


def in_order(
    records: Sequence[NewRecord], positions: Sequence[Position], changelogs: Collection[TopicPartition]
) -> list[Position]:
    """Return the positions in the order of the records.

    A batch that was found by reading has them in the order of reading; within one topic partition that is the order of
    writing. Those of records to other topics are not known then, and nobody needs them: they are at -1. Raises
    OperationFailed if a record of a changelog is not found.
    """
    landed: dict[TopicPartition, deque[Position]] = {}
    for position in positions:
        landed.setdefault(TopicPartition(position.topic, position.partition), deque()).append(position)
    found = []
    for record in records:
        if (record.topic, record.partition) not in changelogs:
            found.append(Position(record.topic, -1, -1, -1))
            continue
        waiting = landed.get(TopicPartition(record.topic, record.partition or 0))
        if not waiting:
            what = f"finding the place of a record in {record.topic}[{record.partition}]"
            raise OperationFailed(what, "it was committed, and is not there any more", outcome_known=False)
        found.append(waiting.popleft())
    return found


class KeyspacePartition:
    """A `PartitionHost` over the states of a partition.

    Promises: a reply, a read and a refusal leave this node only while it owns the partition, and after everything that
    they depend on is committed. What a handler wrote is committed whole or not at all.
    """

    def __init__(
        self,
        spec: KeyspaceSpec,
        states: StatePartition,
        codecs: MessageCodecs,
        client_of: Callable[[type[Keyspace]], KeyspaceClient],
        *,
        node: str,
        settings: KeyspaceSettings,
        pumps: MakePumps | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._spec = spec
        self._states = states
        self._node = node
        self._settings = settings
        self._clock = clock
        self._owner: Owner | None = None
        self._writer: OwnerWriter | None = None
        self._tenure = 0
        self._is_owned = False
        self._stepping_down: asyncio.Task[None] | None = None
        self._minding: asyncio.Task[None] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._lookout = Lookout(self._is_settled, every_s=_LOOK_EVERY_S)
        self.health = Health("upkeep")
        self._calls = CallRunner(spec, states, codecs, client_of, settings=settings)
        self._make_pumps = pumps
        self._pumping: list[asyncio.Task[None]] = []

    # What the node asks.

    @property
    def changelogs(self) -> tuple[TopicPartition, ...]:
        """The changelogs of all states that are ours to write."""
        return tuple(each.at for each in self._states.replicas.values() if not each.spec.is_external)

    @property
    def ownership_read_from(self) -> Mapping[TopicPartition, int]:
        """From where on the changelogs say who owns the partition."""
        return {at: offset for at, offset in self._states.ownership_read_from.items() if at in self.changelogs}

    @property
    def offset(self) -> int:
        """How far the copies have come, together."""
        return sum(each.progress.position for each in self._states.replicas.values() if each.is_online)

    @property
    def is_online(self) -> bool:
        """True if every copy has read all that was there when it began."""
        return self._states.is_online

    @property
    def is_owned(self) -> bool:
        """True while this node owns the partition."""
        return self._is_owned

    @property
    def states(self) -> StatePartition:
        """The copies."""
        return self._states

    def begin(self, owner: Owner) -> None:
        """Begin to follow."""
        self._owner = owner
        self._states.follow()

    async def owns(self, epoch: int) -> None:
        """Read everything, then serve; what is published waits until the last owner can't answer any more."""
        del epoch  # the owner puts it into what it writes
        if self._stepping_down is not None:
            await self._stepping_down
        owner = self._expect_owner()
        await self._states.catch_up()
        self._writer = OwnerWriter(owner, self.changelogs)
        self._states.own(self._writer, is_held=True)
        self._tenure += 1
        self._is_owned = True
        self._calls.start()
        self._minding = asyncio.create_task(self._mind(owner), name=f"headrace-{self._spec.name}-mind")
        if any(replica.spec.unique for replica in self._states.replicas.values()):
            self._comparing = asyncio.create_task(self._report_duplicates(), name=f"headrace-{self._spec.name}-unique")
        self._start_pumps(self._tenure)

    async def lost(self) -> None:
        """Refuse what is not committed, at once; follow again as soon as the last commit has ended.

        It does not wait for that commit: the owner calls this while it settles it.
        """
        self._is_owned = False
        self.health.up()  # what failed here is the next owner's now
        for task in (self._minding, self._comparing, *self._pumping):
            if task is not None:
                task.cancel()
        self._stepping_down = asyncio.create_task(self._step_down(), name=f"headrace-{self._spec.name}-step-down")

    async def handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        """Answer a request."""
        operation = decode_operation(request.payload)
        if isinstance(operation, PollChanges):
            return encode(await change_page(self._states, operation))
        if isinstance(operation, ReadOperation) and not self._is_owned:
            return await self._read_standby(operation)
        tenure = self._expect_tenure()
        while True:
            try:
                return await self._serve(request, operation, tenure, deadline_s)
            except (StateOffline, StateReadOnly) as error:
                # The states are between two owners, or are being read again after a commit that was not answered.
                self._expect_same(tenure)
                if not getattr(error, "outcome_known", True) or not self._is_between(error):
                    raise
            await self._settled(deadline_s)

    def read_at_once(self, state: str, key: bytes) -> CommittedValue | None:
        """Return the value of a key, as its owner; None without one, or if this node does not own it or has to wait."""
        if not self._is_owned or self._owner is None:
            return None
        found = read_committed(self._states, state, key)
        # The lease is looked at behind the read: who may serve now was the only one to write until the value was read.
        return found if self._owner.may_serve() else None

    async def close(self) -> None:
        """Stop everything."""
        self._is_owned = False
        self._lookout.close()
        for task in (self._minding, self._comparing, *self._pumping, self._stepping_down):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._states.close()

    # Serving as the owner.

    async def _serve(self, request: PartitionRequest, operation: Operation, tenure: int, deadline_s: float) -> bytes:
        match operation:
            case Call():
                return await self._call(request, operation, tenure, deadline_s)
            case PollChanges():
                raise AssertionError(operation)
            case _:
                return await self._until_committed(operation, tenure, deadline_s)

    async def _until_committed(
        self, operation: PutValue | GetValue | ReadPage | FindByIndex | CountKeys, tenure: int, deadline_s: float
    ) -> bytes:
        """Do it again whenever a key that it has read changes before its commit: a put, or a read that expires keys."""
        while True:
            unit = self._states.begin()
            is_put, answer = False, PUT_CONFLICT
            if isinstance(operation, PutValue):
                is_put = put_value(unit, self._states.replica(operation.state), operation)
            else:
                await self._gate(tenure, deadline_s)
                answer = await self._read(unit, operation, deadline_s)
            try:
                await self._commit(unit, tenure, deadline_s)  # what was found due becomes a tombstone
            except StateConflict:
                continue
            return PlacedReply(self._places(unit)).encode() if is_put else answer

    async def _call(self, request: PartitionRequest, call: Call, tenure: int, deadline_s: float) -> bytes:
        places: tuple[TokenPlace, ...] = ()

        async def commit(unit: UnitOfWork) -> None:
            nonlocal places
            await self._commit(unit, tenure, deadline_s)
            places = self._places(unit) if call.wants_places else ()

        async def gate() -> None:
            await self._gate(tenure, deadline_s)

        try:
            parent = extract(call.trace) if call.trace else None
            with span("keyspace.handle", parent=parent, keyspace=self._spec.name, message=call.message):
                reply = await self._calls.run(request, call, deadline_s, commit, gate)
            return PlacedReply(places, reply).encode() if call.wants_places else reply
        except (StateOffline, StateReadOnly):
            raise
        except HeadraceError as error:
            # A refusal is an answer, too: it may rest on what was read.
            if getattr(error, "outcome_known", True) and not isinstance(error, NotPartitionOwner | TimedOut):
                await self._gate(tenure, deadline_s)
            raise

    async def _commit(self, unit: UnitOfWork, tenure: int, deadline_s: float) -> None:
        """Commit what there is, and wait until it may be shown."""
        self._expect_same(tenure)
        if unit.is_empty:
            await self._gate(tenure, deadline_s)
            return
        # This tenure's: when the commit returns, the node may have lost the partition and taken it again.
        owner, writer = self._expect_owner(), self._writer
        await unit.commit()
        if writer is not None and writer.last is not None:
            await owner.reply_gate(writer.last)

    async def _gate(self, tenure: int, deadline_s: float) -> None:
        """Wait until this node may answer without a commit. Raises NotPartitionOwner, TimedOut."""
        self._expect_same(tenure)
        owner = self._expect_owner()
        if owner.may_serve():
            return
        left_s = deadline_s - asyncio.get_running_loop().time()
        await owner.serve_gate(timeout_s=max(left_s, 0.0))
        self._expect_same(tenure)

    async def _settled(self, deadline_s: float) -> None:
        """Wait until the states can be used again."""
        loop = asyncio.get_running_loop()
        while not self._is_settled():
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise TimedOut(f"waiting for the states of {self._spec.name}[{self._states.partition}]", 0.0)
            await self._lookout.wait(left_s)
        if not self._is_owned:
            self._expect_tenure()

    def _is_settled(self) -> bool:
        """Return True if the states can be used, or if this node has lost them."""
        return not self._is_owned or (self._states.unsettled is None and self._states.is_online)

    def _is_between(self, error: HeadraceError) -> bool:
        """Return True if the states refuse because of their owner, and not because of what was asked."""
        return isinstance(error, StateOffline) or not self._is_owned

    async def _mind(self, owner: Owner) -> None:
        """Do what an owner does beside requests: publish after the wait, settle, stay young, remove what is due."""
        loop = asyncio.get_running_loop()
        is_held, expire_at_s, confirm_at_s = True, 0.0, 0.0
        told: type[Exception] | None = None
        while True:
            try:
                if self._states.unsettled is not None:
                    await self._states.catch_up()
                # Before it is looked at whether this node is the owner: it may be stopped in between, and deposed.
                moment = moment_of(self._clock)
                if owner.may_serve():
                    if is_held:
                        self._states.release()
                        is_held = False
                    if loop.time() >= confirm_at_s:
                        self._states.confirm(moment)
                        confirm_at_s = loop.time() + _CONFIRM_EVERY_S
                    if loop.time() >= expire_at_s:
                        await self._states.expire_due()
                        expire_at_s = loop.time() + self._settings.expire_every_s
                        self.health.up()
                        told = None
            except StateConflict:
                pass  # a value that was due was written again; it is looked at in the next round
            except Exception as error:  # whatever it is, the partition needs this task for as long as it is owned
                if type(error) is not told:  # a full disk stays full for a while: once says it
                    at = self.changelogs[0].partition
                    _logger.warning("minding failed", keyspace=self._spec.name, partition=at, error=f"{error!r}")
                told = type(error)
                self.health.down(f"{type(error).__name__}: {error}")
                expire_at_s = confirm_at_s = 0.0  # the next round tries all of it again
                await asyncio.sleep(_CONFIRM_EVERY_S)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _report_duplicates(self) -> None:
        """Report the values that must be unique and are not, each state's first ones, and how many there are."""
        for name, replica in self._states.replicas.items():
            count, examples = 0, list[DuplicateValue]()
            async for duplicate in find_duplicates(replica):
                count += 1
                if len(examples) < _EXAMPLES:
                    examples.append(duplicate)
            if count:
                _logger.error(
                    "values that must be unique were written before that was declared",
                    keyspace=self._spec.name,
                    partition=self._states.partition,
                    state=name,
                    duplicates=count,
                    examples=[f"{each.key} and {each.holder} have {each.index} {each.value}" for each in examples],
                    next_step="write another value to all but one of the keys, or delete them; until then a write that "
                    "keeps the value is refused",
                )

    def _start_pumps(self, tenure: int) -> None:
        async def commit(unit: UnitOfWork) -> None:
            await self._commit(unit, tenure, asyncio.get_running_loop().time() + _INPUT_GATE_S)

        pumps = self._make_pumps(self._calls, commit) if self._make_pumps is not None else ()

        async def run(pump: InputPump) -> None:
            with contextlib.suppress(NotPartitionOwner):  # while it waited; the next owner reads on
                await self._gate(tenure, math.inf)  # what its handlers ask and tell may leave only after the wait
                await pump.run()

        self._pumping = [asyncio.create_task(run(pump), name=f"headrace-{self._spec.name}-input") for pump in pumps]

    async def _step_down(self) -> None:
        await self._states.disown()
        self._states.release()
        self._states.follow()

    # Serving as a standby, and as either.

    async def _read_standby(self, operation: ReadOperation) -> bytes:
        if operation.max_staleness_s is None:
            self._expect_tenure()
        if self._stepping_down is not None and not self._stepping_down.done():
            raise StateOffline(operation.state, "it was owned here until now, and is not followed yet")
        at_least = operation.at_least if isinstance(operation, GetValue) else None
        await self._states.check_fresh(operation.state, max_staleness_s=operation.max_staleness_s, at_least=at_least)
        if isinstance(operation, GetValue) and operation.token is not None:
            token = ConsistencyToken.parse(operation.token)
            await self._states.check_token(operation.state, token, timeout_s=0.0)
        return await self._read(self._states.begin(), operation, deadline_s=0.0)

    async def _read(self, unit: UnitOfWork, operation: ReadOperation, deadline_s: float) -> bytes:
        replica = self._states.replica(operation.state)
        match operation:
            case GetValue():
                if self._is_owned:
                    await self._states.check_fresh(operation.state, max_staleness_s=None, at_least=operation.at_least)
                    await self._reach(operation, deadline_s)
                return encode(read_value(unit, replica, operation))
            case ReadPage():
                return encode(read_page(unit, replica, operation))
            case FindByIndex():
                return encode(find_by_index(unit, replica, operation))
            case CountKeys():
                return encode(count_keys(unit, replica))

    async def _reach(self, operation: GetValue, deadline_s: float) -> None:
        """Wait, as the owner, until the copy has what the read's token names."""
        if operation.token is not None:
            left_s = max(deadline_s - asyncio.get_running_loop().time(), 0.0)
            token = ConsistencyToken.parse(operation.token)
            await self._states.check_token(operation.state, token, timeout_s=left_s)

    def _places(self, unit: UnitOfWork) -> tuple[TokenPlace, ...]:
        """Return where the states are that a unit of work has written or read, or all if it has only searched them."""
        touched = {*unit.writes, *(replica for replica, _ in unit.seen)} or {*self._states.replicas.values()}
        wanted = (replica for replica in touched if replica.spec.name in self._spec.states)
        return tuple(place for replica in wanted if (place := place_of(replica)) is not None)

    def _expect_owner(self) -> Owner:
        if self._owner is None:
            raise self._not_owner()
        return self._owner

    def _expect_tenure(self) -> int:
        if not self._is_owned:
            raise self._not_owner()
        return self._tenure

    def _expect_same(self, tenure: int) -> None:
        """Raise unless this node has owned the partition all the time since the request came."""
        if not self._is_owned or self._tenure != tenure:
            raise self._not_owner()

    def _not_owner(self) -> NotPartitionOwner:
        owner = self._owner.owner if self._owner is not None else ""
        return NotPartitionOwner(
            self._spec.name, self._states.partition, self._node, "" if owner == self._node else owner
        )
