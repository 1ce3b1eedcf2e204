"""Random histories of a partition's ownership, and the oracle that judges them.

The nodes run the shipped Owner and LeaseKeeper over a scripted log. They are frozen and killed, cut off from the log,
proposed and released at random; answers are late or lost. Clients write and read two keys. The oracle: there is one
linear history for each key. Its order is the log's.

`World` has leases of one length, `UnevenWorld` leases of many, whose owners are deposed one after the other.
`StarvedWorld` is about liveness: its processes get the processor now and then, and calls must succeed all the same.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from unittest.mock import patch

from tests.cluster.scripted_log import Brokers, ScriptedLog, Weather
from tests.cluster.virtual_time import SimulatedNode, run_virtually

from headrace.cluster import Identity, LeaseKeeper, LeaseTerms, OwnedPartition, Owner, owner
from headrace.cluster.lease_length import LeaseLength
from headrace.cluster.ownership import PartitionView, due_s
from headrace.model import NewRecord, TopicPartition
from headrace.state import is_reserved

PREFIX = "sim"
AT = TopicPartition("state", 0)
SIDE = TopicPartition("side", 0)
CHANGELOGS = {b"a": AT, b"b": SIDE}  # each key has its own, so that a batch touches one of them
KEYS = tuple(CHANGELOGS)
Kind: TypeAlias = Literal["write", "read"]
_KINDS: tuple[Kind, ...] = ("write", "read")
_WRITE_TIMEOUT_S = 2.0
_READ_TIMEOUT_S = 0.1
SUSPICIONS = ("suspect", "cut and suspect", "slow and suspect")
HARMS = ("freeze", "freeze", "kill", "cut", "stall", "rank", "release", *SUSPICIONS)
CHAINS = ("chain", "chain", "cut and chain")
LENGTHS_S = (0.5, 0.5, 1.0, 2.0, 4.0)
_CALM_WITHIN_S = 20.0


@dataclass
class Op:
    """What a client asked for, and what it was told."""

    kind: Kind
    key: bytes
    value: bytes | None
    begun_s: float
    ended_s: float = float("inf")
    outcome: Literal["done", "refused", "unknown"] = "unknown"


class Replica:
    """One process of a node, with a store of its own, as an application would have it."""

    def __init__(
        self, brokers: Brokers, name: str, process: str, dice: random.Random, terms: LeaseTerms | None = None
    ) -> None:
        self.name = name
        self.node = SimulatedNode(process, rate=dice.uniform(0.97, 1.03), boot_s=dice.uniform(0, 1000))
        self.log = ScriptedLog(brokers)
        me = Identity("cluster", name, process)
        self.keeper = LeaseKeeper(self.log, PREFIX, me, clock=self.node, terms=terms)  # type: ignore[arg-type]
        self.owner = Owner(
            self.log,  # type: ignore[arg-type]
            OwnedPartition(PREFIX, (AT, SIDE)),
            self.keeper,
            self,
            clock=self.node,
            read_timeout_s=1.0,
            dice=random.Random(dice.random()),
        )
        self._store: dict[bytes, bytes] = {}
        self._applied = dict.fromkeys(CHANGELOGS.values(), 0)
        self._turn = asyncio.Lock()
        self.task = self.node.start(self._run)

    async def _run(self) -> None:
        await asyncio.gather(self.keeper.run(), self.owner.run())

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        """Bring the store to all that was committed before."""
        for at, applied in self._applied.items():
            async for batch in self.log.read(at, applied, read_to[at]):
                for record in batch.records:
                    if not is_reserved(record.key):
                        self._store[record.key or b""] = record.value or b""
                self._applied[at] = batch.next_offset

    async def lost(self) -> None:
        """Keep the store: it holds nothing that was not committed."""

    async def write(self, key: bytes, value: bytes) -> bytes | None:
        at = CHANGELOGS[key]
        async with self._turn:
            committed = await self.owner.commit([NewRecord(at.topic, key, value, partition=at.partition)])
            self._store[key] = value
            self._applied[at] = max(self._applied[at], committed.positions[-1].offset + 1)
        await self.owner.reply_gate(committed)
        return value

    async def read(self, key: bytes, timeout_s: float) -> bytes | None:
        await self.owner.serve_gate(timeout_s=timeout_s)
        return self._store.get(key)


class World:
    """One history."""

    topics: Mapping[str, int] = {AT.topic: 1, SIDE.topic: 1, f"{PREFIX}-leases": 4}
    rough_s = 4.0
    most_takings = 10

    def __init__(self, seed: int, harms: Sequence[str], *, nodes: int = 3) -> None:
        self.dice = random.Random(seed)
        self._harms = harms
        self.weather = Weather(random.Random(self.dice.random()))
        if self.dice.random() < 0.5:
            self.weather.lost = self.weather.late = 0.0
        self.ops: list[Op] = []
        self.hasty: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._values = 0
        self._is_rough = True
        self._all: list[Replica] = []
        self.brokers = Brokers(self.weather, self.topics)
        self.replicas = [self._started(f"n{n}") for n in range(nodes)]

    def _made(self, name: str, process: str) -> Replica:
        return Replica(self.brokers, name, process, self.dice)

    def _started(self, name: str) -> Replica:
        self._all.append(self._made(name, f"{name}-{len(self._all)}"))
        return self._all[-1]

    async def run(self) -> list[str]:
        """Let it go on, roughly and then calmly; returns what the oracle has to say."""
        for rank, replica in enumerate(self.replicas):
            replica.owner.propose(rank)
        kinds = itertools.product((self._writer, self._reader), range(len(self.replicas)))
        clients = [asyncio.create_task(client(which)) for client, which in kinds]
        await self._be_rough()
        self._is_rough = False
        await asyncio.gather(*clients)
        problems = await self._calm_down()
        await self._end()
        written = [record for at in CHANGELOGS.values() for record in self.brokers.committed(at)]
        return problems + judge(self.ops, [record.value for record in written if not is_reserved(record.key)])

    async def _be_rough(self) -> None:
        until_s = self._loop.time() + self.rough_s
        while self._loop.time() < until_s:
            await asyncio.sleep(self.dice.expovariate(3.0))
            owners = [which for which, replica in enumerate(self.replicas) if replica.owner.epoch is not None]
            which = self.dice.choice([*range(len(self.replicas)), *owners * 3])
            await self._harm(which, self.replicas[which])

    async def _harm(self, which: int, replica: Replica) -> None:
        now_s = self._loop.time()
        match harm := self.dice.choice(self._harms):
            case "freeze":
                replica.node.freeze(self.dice.choice((0.1, 0.4, 0.6, 1.0)) * (0.5 + self.dice.random()))
            case "kill":
                await self._kill(which)
            case "cut":
                replica.log.cut_until_s = now_s + self.dice.random()
            case "stall":  # it writes, and does not hear what others wrote
                replica.log.stalled_until_s = now_s + self.dice.random() * 1.5
            case "rank":  # two may both be told that they are first
                replica.owner.propose(self.dice.choice((0, 0, 1, 2)))
            case "cut and suspect":
                replica.log.cut_until_s = now_s + 0.7
                self._suspect(replica)
            case "slow and suspect":
                replica.log.slow_until_s = now_s + 0.7
                await asyncio.sleep(self.dice.random() * 0.5)
                self._suspect(replica)
            case "suspect":
                self._suspect(replica)
            case "release":
                replica.node.start(replica.owner.release)
                replica.node.start(lambda: self._propose_later(replica))
            case _:
                await self._harm_for_long(harm, replica)

    async def _harm_for_long(self, harm: str, replica: Replica) -> None:
        """Do what takes as long as the longest leases do."""
        if harm == "starve":
            replica.node.starve(self.dice, for_s=self.dice.uniform(1, 5), step_s=self.dice.uniform(0.2, 3))
            return
        if harm == "cut and chain":
            replica.log.cut_until_s = self._loop.time() + self.dice.uniform(0.5, 4)
        await self._depose_in_a_row(replica)

    async def _kill(self, which: int) -> None:
        killed = self.replicas[which]
        killed.node.kill()
        await asyncio.sleep(self.dice.random() * 0.5)
        self.replicas[which] = self._started(killed.name)
        self.replicas[which].owner.propose(self.dice.choice((0, which)))

    def _suspect(self, replica: Replica, *, stalled_s: float = 0.7) -> Replica:
        """Have another node depose this one at once, though it lives; it is slow to hear of it."""
        rival = self.dice.choice([each for each in self.replicas if each is not replica])
        replica.log.stalled_until_s = self._loop.time() + stalled_s
        self._hurry(rival)
        return rival

    def _hurry(self, rival: Replica) -> None:
        self.hasty[rival.keeper.me.process] = self._loop.time() + 1.0
        rival.owner.propose(0)

    async def _depose_in_a_row(self, replica: Replica) -> None:
        """Have a node deposed by another one, and that one killed soon after, while it may be waiting."""
        rival = self._suspect(replica, stalled_s=self.dice.uniform(1, 5))
        await asyncio.sleep(self.dice.uniform(0.05, 0.6))
        for each in self.replicas:
            if each not in (replica, rival):
                self._hurry(each)
        if rival in self.replicas:
            await self._kill(self.replicas.index(rival))

    async def _propose_later(self, replica: Replica) -> None:
        await asyncio.sleep(self.dice.random())
        replica.owner.propose(0)

    async def _writer(self, which: int) -> None:
        """Write to one node all the time."""
        while self._is_rough:
            await asyncio.sleep(self.dice.expovariate(12.0))
            replica = self.replicas[which]
            if replica.owner.epoch is not None or not replica.node.is_running:
                await self._send(self._op("write", self.dice.choice(KEYS)), replica, timeout_s=_WRITE_TIMEOUT_S)

    async def _reader(self, which: int) -> None:
        """Read at one node all the time: several may believe that they are the owner."""
        while self._is_rough:
            await asyncio.sleep(self.dice.expovariate(30.0))
            replica = self.replicas[which]
            if replica.owner.may_serve() or not replica.node.is_running:
                await self._send(self._op("read", self.dice.choice(KEYS)), replica, timeout_s=_READ_TIMEOUT_S)

    def _op(self, kind: Kind, key: bytes) -> Op:
        self._values += 1
        return Op(kind, key, key + b"%d" % self._values if kind == "write" else None, self._loop.time())

    async def _send(self, op: Op, replica: Replica, *, timeout_s: float) -> None:
        """Ask a node, and note what the client knows afterwards; an answer counts, whenever it comes."""
        self.ops.append(op)
        call = replica.write(op.key, op.value or b"") if op.kind == "write" else replica.read(op.key, timeout_s / 2)
        asked = replica.node.start(lambda: call)
        asked.add_done_callback(lambda task: self._told(op, task))
        await asyncio.wait([asked], timeout=timeout_s)

    def _told(self, op: Op, asked: asyncio.Task[bytes | None]) -> None:
        if asked.cancelled():
            return
        op.ended_s = self._loop.time()
        error = asked.exception()
        if error is None:
            op.outcome, op.value = "done", asked.result()
        elif getattr(error, "outcome_known", True):
            op.outcome = "refused"

    async def _calm_down(self) -> list[str]:
        """Give the nodes time; every key must be readable and writable again, without a duel for it."""
        self.weather.lost = self.weather.late = 0.0
        self.hasty.clear()
        for rank, replica in enumerate(self.replicas):
            replica.owner.propose(rank)
        deadline_s = self._loop.time() + _CALM_WITHIN_S
        takings = sum(replica.owner.takings for replica in self.replicas)
        for kind, key in itertools.product(_KINDS, KEYS):
            outcome = "unknown"
            while outcome != "done":
                if self._loop.time() > deadline_s:
                    return [f"no {kind} was done within {_CALM_WITHIN_S:g} s after all was well again"]
                op = self._op(kind, key)
                await self._send(op, self.dice.choice(self.replicas), timeout_s=_WRITE_TIMEOUT_S)
                outcome = op.outcome
                await asyncio.sleep(0.05)
        takings = sum(replica.owner.takings for replica in self.replicas) - takings
        return [f"{takings} takings until one node served"] if takings > self.most_takings else []

    async def _end(self) -> None:
        """Stop all nodes, the dead ones too, so that nothing is left half-way."""
        await asyncio.sleep(0.5)  # what brokers have decided is marked
        failed = [r.task.exception() for r in self.replicas if r.task.done()]
        self.brokers.is_over = True
        SimulatedNode.all_run = True
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # one that ends may have started another
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert not failed, failed


class ChangingLength(LeaseLength):
    """A length that changes at random, also while all is well."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(LeaseTerms())
        self._dice = dice
        self.lease_s = dice.choice(LENGTHS_S)

    def came_in_time(self, took_s: float, *, now_s: float) -> bool:
        return self._dice.random() < 0.1 and self.ran_out()

    def ran_out(self) -> bool:
        before_s, self.lease_s = self.lease_s, self._dice.choice(LENGTHS_S)
        return self.lease_s != before_s


class UnevenWorld(World):
    """Nodes whose settings differ, and whose leases grow and shrink at random."""

    rough_s = 8.0
    most_takings = 40  # with each other length the owner writes another Epoch

    def _made(self, name: str, process: str) -> Replica:
        replica = Replica(self.brokers, name, process, self.dice, LeaseTerms(self.dice.choice(LENGTHS_S)))
        if self.dice.random() < 0.7:
            replica.keeper._length = ChangingLength(random.Random(self.dice.random()))
        return replica


class StarvedWorld(World):
    """Nodes that get the processor only now and then, or whose log is slow: calls succeed once leases have grown."""

    starved_s = 50.0
    growing_s = 30.0
    within_s = 8.0  # callers have 10 s

    async def _be_rough(self) -> None:
        began_s = self._loop.time()
        self.weather.lost = self.weather.late = 0.0
        usual_s = self.weather.usual_s
        if self.dice.random() < 0.5:
            self.weather.usual_s = 0.175  # a commit takes 0.7 s
        else:
            for replica in self.replicas:
                replica.node.starve(self.dice, for_s=self.starved_s, step_s=1.5)
        await asyncio.sleep(self.starved_s)
        self.weather.usual_s = usual_s
        self.problems = self._gaps(began_s + self.growing_s, began_s + self.starved_s)

    def _gaps(self, begin_s: float, end_s: float) -> list[str]:
        """Return for how long no call succeeded, for each kind, if that was too long."""
        problems = []
        for kind in _KINDS:
            ends = sorted(op.ended_s for op in self.ops if op.kind == kind and op.outcome == "done")
            moments = [begin_s, *(each for each in ends if begin_s < each < end_s), end_s]
            longest_s = max(later - sooner for sooner, later in itertools.pairwise(moments))
            if longest_s > self.within_s:
                problems.append(f"no {kind} was done for {longest_s:.1f} s")
        return problems

    async def run(self) -> list[str]:
        return await super().run() + self.problems

    async def _writer(self, which: int) -> None:
        """Write to whoever owns the partition."""
        while self._is_rough:
            await asyncio.sleep(0.1)
            replica = self.replicas[which]
            if replica.owner.epoch is not None:
                await self._send(self._op("write", self.dice.choice(KEYS)), replica, timeout_s=5.0)

    async def _reader(self, which: int) -> None:
        """Read from whoever owns the partition; a read waits for the lease."""
        while self._is_rough:
            await asyncio.sleep(0.1)
            replica = self.replicas[which]
            if replica.owner.epoch is not None:
                await self._send(self._op("read", self.dice.choice(KEYS)), replica, timeout_s=5.0)


def judge(ops: Sequence[Op], order: Sequence[bytes | None]) -> list[str]:
    """Return what is wrong with a history, given the order in which the log has the writes."""
    problems: list[str] = []
    if len(set(order)) != len(order):
        problems.append("a write is in the log twice")
    places = {value: n for n, value in enumerate(order, start=1)}
    for op in ops:
        if op.kind == "write" and op.outcome == "done" and op.value not in places:
            problems.append(f"acknowledged and lost: {op}")
        if op.kind == "write" and op.outcome == "refused" and op.value in places:
            problems.append(f"refused and written: {op}")
        if op.kind == "read" and op.outcome == "done" and op.value is not None and op.value not in places:
            problems.append(f"read and never committed: {op}")
    for key in KEYS:
        known = [
            op for op in ops if op.key == key and op.outcome == "done" and (op.value is None or op.value in places)
        ]
        problems += _out_of_order(known, places)
    return problems


def _out_of_order(ops: Sequence[Op], places: Mapping[bytes | None, int]) -> list[str]:
    """Return what was seen or written in another order than in the log: nothing goes back behind what was told."""
    problems = []
    ended = sorted(ops, key=lambda op: op.ended_s)
    next_ended, furthest, by = 0, 0, None
    for op in sorted(ops, key=lambda op: op.begun_s):
        while next_ended < len(ended) and ended[next_ended].ended_s < op.begun_s:
            place = places.get(ended[next_ended].value, 0) if ended[next_ended].value is not None else 0
            if place > furthest:
                furthest, by = place, ended[next_ended]
            next_ended += 1
        place = places.get(op.value, 0) if op.value is not None else 0
        if place < furthest:
            problems.append(f"{op} is behind {by}")
    return problems


def run_history(seed: int, harms: Sequence[str] = HARMS, kind: type[World] = World) -> list[str]:
    """Run one history and judge it."""
    random.seed(seed)  # some waits are spread by it

    worlds: list[World] = []

    def hasty_due_s(view: PartitionView, me: Identity, terms: LeaseTerms, **facts: Any) -> float:
        is_hasty = asyncio.get_running_loop().time() < worlds[0].hasty.get(me.process, 0.0)
        return view.last_s if is_hasty else due_s(view, me, terms, **facts)

    async def main() -> list[str]:
        SimulatedNode.all_run = False
        worlds.append(kind(seed, harms))
        return await worlds[0].run()

    with patch.object(owner, "due_s", hasty_due_s):  # suspecting a live owner must do no harm
        return run_virtually(main)
