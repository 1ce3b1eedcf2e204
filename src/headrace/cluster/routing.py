"""Requests to partitions, wherever their owners are: ask, ack, tell, scatter and gather."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import msgspec

from headrace.cluster.requests import Gathered, PartitionHandler, PartitionRequest, Peers, TypedRequest
from headrace.cluster.retries import Attempts, RequestLanes, Ticket, Trail, explain, judge, not_ours, out_of_time
from headrace.cluster.routing_table import RoutingTable
from headrace.cluster.server import IncomingRequest
from headrace.errors import (
    BadArgument,
    Busy,
    Closed,
    HeadraceError,
    NotPartitionOwner,
    TimedOut,
    Unavailable,
)
from headrace.model import partition_of
from headrace.observe import counter, get_logger

__all__ = ["ROUTED", "Router"]

T = TypeVar("T")

ROUTED = "partition"
"""The method of the transport that carries requests to partitions."""

RETRIES = counter("cluster", "request_retries", "Requests to partitions that were sent again.", ["group", "reason"])
LOST_TELLS = counter("cluster", "tells_lost", "Tells that failed; they are sent at most once.", ["group"])

ACK_ATTEMPTS = 3
ACK_ATTEMPT_S = 3.5  # longer than the three seconds in which a partition finds its next owner
_NOT_NOTED = nullcontext()
# A whole number above it is no time: it can't be added to one.
_LONGEST_S = sys.float_info.max
# A member that may, but need not, be the owner is given so long to answer what can be repeated, and then as long again
# as the request has taken: one that is frozen must not hold it up until its deadline.
OTHERS_S = 1.0
SHORTEST_RETRY_S = 0.02  # with less time left nothing is sent again: its outcome would only become unknown

_log = get_logger(__name__)


_decoder = msgspec.msgpack.Decoder(PartitionRequest)


class Router:
    """Sends requests to the owners of partitions.

    Promises: a node that is not the owner, and an owner that can't be reached, are retried until the deadline, within
    which a partition finds its next owner. What may have been done is repeated only if it is a read or has a command
    id. While a request of a key is being repeated, this router's later ones of that key wait, but for reads. A refusal
    is raised.
    """

    def __init__(
        self,
        node: str,
        table: RoutingTable,
        peers: Peers,
        handlers: Mapping[str, PartitionHandler],
        *,
        timeout_s: float = 10.0,
        max_tells: int = 10_000,
    ) -> None:
        self._node = node
        self._table = table
        self._peers = peers
        self._handlers = handlers
        self._timeout_s = timeout_s
        self._max_tells = max_tells
        self._loop = asyncio.get_running_loop()
        self._lanes = RequestLanes()
        self._tells: set[asyncio.Task[None]] = set()
        self._away: dict[tuple[str, int], dict[asyncio.Timeout, str]] = {}
        self._closed_groups: set[str] = set()
        self._is_closed = False
        self._is_leaving = False
        table.on_move(self._interrupt)

    def knows(self, group: str) -> bool:
        """Return True if the cluster has a plan for a group."""
        return group in self._table.view.groups

    def partition(self, group: str, key: bytes) -> int:
        """Return the partition of a key: the one that a plain Kafka producer would choose."""
        _check_bytes("key", key)
        return partition_of(key, self.partitions(group))

    async def ask(
        self,
        group: str,
        key: bytes,
        payload: bytes,
        *,
        command_id: str | None = None,
        is_read: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the owner's reply. Raises its error, or TimedOut when the deadline has passed."""
        request = PartitionRequest(group, self.partition(group, key), payload, command_id, is_read=is_read)
        if is_read:  # it overtakes nothing, and need not wait for what a frozen owner will not answer
            return await self._send(request, self.time_for(timeout_s), None)
        with self._lanes.ticket((group, key)) as ticket:
            return await self._send(request, self.time_for(timeout_s), ticket)

    def is_here(self, group: str, partition: int) -> bool:
        """Return True if this node is the likely owner of a partition."""
        candidates = self._table.candidates(group, partition)
        return bool(candidates) and candidates[0] == self._node

    async def ask_here(
        self,
        group: str,
        key: bytes,
        partition: int,
        asked: TypedRequest[T],
        *,
        command_id: str | None = None,
        timeout_s: float,
    ) -> T:
        """Return the reply of this node's own copy; if that can't give one, go on as `ask` does."""
        if self._is_closed:
            raise Closed("the router")
        deadline_s = self._loop.time() + timeout_s
        failed: HeadraceError | None = None
        with self._lanes.ticket((group, key)) as ticket:
            if not ticket.must_wait:
                try:
                    if command_id is None:
                        return await asked.here(deadline_s)
                    return await self._repeatable_here(asked, (group, partition), deadline_s)
                except NotPartitionOwner as error:
                    self._correct(group, partition, self._node, error)
                    failed = error
                except HeadraceError as error:
                    failed = error
                except Exception as error:  # what the copy raised and is not ours
                    failed = not_ours(error, self._node)
                await asyncio.sleep(0)  # whoever asks again in a loop would let nobody else run
            request = PartitionRequest(group, partition, asked.payload(), command_id)
            return asked.decoded(await self._send(request, timeout_s, ticket, deadline_s=deadline_s, failed=failed))

    async def ask_partition(
        self, group: str, partition: int, payload: bytes, *, is_read: bool = False, timeout_s: float | None = None
    ) -> bytes:
        """Return the reply of a partition's owner to a request that has no key."""
        if not 0 <= partition < self.partitions(group):
            raise BadArgument("partition", partition, f"group {group!r} has {self.partitions(group)}, from 0 on")
        request = PartitionRequest(group, partition, payload, is_read=is_read)
        return await self._send(request, self.time_for(timeout_s), None)

    async def ack(
        self,
        group: str,
        key: bytes,
        payload: bytes,
        *,
        message_id: str | None = None,
        attempt_s: float = ACK_ATTEMPT_S,
    ) -> bytes:
        """Return the owner's reply, after three attempts at most if it does not answer. Never repeats a refusal.

        The attempts carry one id, by which the owner does the work once.
        """
        number = message_id or uuid.uuid4().hex
        request = PartitionRequest(group, self.partition(group, key), payload, number)
        with self._lanes.ticket((group, key)) as ticket:
            for _ in range(ACK_ATTEMPTS - 1):
                try:
                    return await self._send(request, self.time_for(attempt_s), ticket, repeats_unknown=False)
                except Unavailable as error:
                    RETRIES.labels(group, type(error).__name__).inc()
                    if not error.outcome_known:
                        request = msgspec.structs.replace(request, attempt=request.attempt + 1)
                    await ticket.wait_to_repeat()
            return await self._send(request, attempt_s, ticket, repeats_unknown=False)

    def tell(self, group: str, key: bytes, payload: bytes, *, timeout_s: float | None = None) -> None:
        """Send at most once, and return at once; failures are counted and logged. Raises Busy."""
        if self._is_closed:
            raise Closed("the router")
        if len(self._tells) >= self._max_tells:
            raise Busy("the router", self._max_tells)
        work = self._tell(group, key, payload, timeout_s)
        task = self._loop.create_task(work, name=f"headrace-tell-{group}")
        self._tells.add(task)
        task.add_done_callback(self._tells.discard)

    async def scatter(
        self,
        group: str,
        payload: bytes,
        *,
        partitions: Iterable[int] | None = None,
        is_read: bool = True,
        timeout_s: float | None = None,
    ) -> Gathered:
        """Ask all partitions of a group, or some, at once, and gather their replies."""
        asked = list(range(self.partitions(group)) if partitions is None else partitions)
        calls = (self.ask_partition(group, each, payload, is_read=is_read, timeout_s=timeout_s) for each in asked)
        replies, failures = dict[int, bytes](), dict[int, HeadraceError]()
        for partition, outcome in zip(asked, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(outcome, HeadraceError):
                failures[partition] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                replies[partition] = outcome
        return Gathered(replies, failures)

    async def serve(self, incoming: IncomingRequest) -> bytes:
        """Handle what another node's router sends; a handler of the transport."""
        request = _decoder.decode(incoming.payload)
        handler = None if self._is_leaving else self._handlers.get(request.group)
        if handler is None:
            owner = self._table.owner(request.group, request.partition) or ""
            raise NotPartitionOwner(request.group, request.partition, self._node, "" if owner == self._node else owner)
        return await handler(request, incoming.deadline_s)

    def close_group(self, group: str) -> None:
        """Wait for no owner of this group any more: nobody will be. Requests that were not done raise their error."""
        self._closed_groups.add(group)

    def stop_serving(self) -> None:
        """Answer further requests of other nodes as one that owns nothing: this node is about to leave."""
        self._is_leaving = True

    async def close(self) -> None:
        """Wait for nothing: tells that are under way are cancelled."""
        self._is_closed = True
        for task in self._tells:
            task.cancel()
        await asyncio.gather(*self._tells, return_exceptions=True)

    async def _tell(self, group: str, key: bytes, payload: bytes, timeout_s: float | None) -> None:
        try:
            await self.ask(group, key, payload, timeout_s=timeout_s)
        except HeadraceError as error:
            LOST_TELLS.labels(group).inc()
            _log.warning("a tell failed", group=group, reason=str(error))

    async def _send(
        self,
        request: PartitionRequest,
        timeout_s: float,
        ticket: Ticket | None,
        *,
        repeats_unknown: bool = True,
        deadline_s: float | None = None,
        failed: HeadraceError | None = None,
    ) -> bytes:
        """Send until there is a reply, a refusal, or the deadline. `failed` is the error of an attempt before."""
        _check_bytes("payload", request.payload)
        if self._is_closed:
            raise Closed("the router")
        deadline_s = self._loop.time() + timeout_s if deadline_s is None else deadline_s
        attempts, trail, last = Attempts(number=request.attempt), Trail(self._loop.time()), failed
        if ticket is not None and ticket.must_wait and failed is None:  # else it waits below, when it was judged
            await self._in_time(ticket.wait_to_send(), deadline_s, timeout_s, last, attempts)
        while True:
            if last is not None:
                is_repeatable, has_unknown = request.is_repeatable and repeats_unknown, attempts.number > 1
                verdict = judge(last, is_repeatable=is_repeatable, has_unknown=has_unknown)
                attempts = attempts.after(is_unknown=verdict.is_unknown)
                if not verdict.retries or (request.group in self._closed_groups and not verdict.is_unknown):
                    raise last
                RETRIES.labels(request.group, type(last).__name__).inc()
                if ticket is not None:
                    await self._in_time(ticket.wait_to_repeat(), deadline_s, timeout_s, last, attempts)
                # A change of the table ends the pause; a node that is wrong twice in a row is not asked in a loop.
                await self._table.changed(timeout_s=min(attempts.pause_s, max(0.0, deadline_s - self._loop.time())))
            if self._loop.time() >= deadline_s - (SHORTEST_RETRY_S if attempts.failures else 0):
                raise out_of_time(request.group, request.partition, timeout_s, attempts) from last
            try:
                return await self._attempt(request, attempts, deadline_s, trail)
            except HeadraceError as error:
                last = error

    async def _in_time(
        self, work: Awaitable[None], deadline_s: float, timeout_s: float, last: HeadraceError | None, attempts: Attempts
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                await work
        except TimeoutError:
            raise TimedOut("waiting for an earlier request of the key", timeout_s, attempts.number == 1) from last

    async def _attempt(self, request: PartitionRequest, attempts: Attempts, deadline_s: float, trail: Trail) -> bytes:
        """Ask one member once."""
        group, partition = request.group, request.partition
        candidates = self._table.candidates(group, partition)
        if not candidates:
            raise NotPartitionOwner(group, partition, self._node, "")
        member = trail.next(candidates)
        if request.attempt != attempts.number:
            request = msgspec.structs.replace(request, attempt=attempts.number)
        if member != candidates[0] and request.is_repeatable:
            now_s = self._loop.time()
            deadline_s = min(deadline_s, now_s + max(OTHERS_S, now_s - trail.began_s))
        try:
            reply = await self._ask_member(member, request, deadline_s)
        except NotPartitionOwner as error:
            self._correct(group, partition, member, error)
            raise
        if member != candidates[0]:
            self._table.learn(group, partition, member)
        return reply

    def _correct(self, group: str, partition: int, member: str, error: NotPartitionOwner) -> None:
        """Take note of what a member that is not the owner knows."""
        self._table.forget(group, partition, member)
        if error.owner and error.owner != member:
            self._table.learn(group, partition, error.owner)

    async def _ask_member(self, member: str, request: PartitionRequest, deadline_s: float) -> bytes:
        timeout_s = max(0.001, deadline_s - self._loop.time())
        handler = self._handlers.get(request.group) if member == self._node else None
        limit = asyncio.timeout_at(deadline_s)
        where = (request.group, request.partition)
        with self._under_way(member, where, limit) if request.is_repeatable else _NOT_NOTED:
            try:
                async with limit:
                    if handler is not None:
                        # Nothing here need wait; whoever asks its own node in a loop would let nobody else run.
                        await asyncio.sleep(0)
                        return await handler(request, deadline_s)
                    peer = self._peers.peer(member, self._table.addresses[member])
                    return await peer.call(ROUTED, msgspec.msgpack.encode(request), timeout_s=timeout_s)
            except HeadraceError:
                raise
            except Exception as error:  # a time-out, or what a handler of this node raised; others' arrive as ours
                raise explain(error, member, timeout_s, limit, self._loop.time() >= deadline_s) from error

    async def _repeatable_here(self, asked: TypedRequest[T], where: tuple[str, int], deadline_s: float) -> T:
        """Ask this node's own copy what may be asked of another one, too, when the partition moves."""
        timeout_s, limit = deadline_s - self._loop.time(), asyncio.timeout_at(deadline_s)
        with self._under_way(self._node, where, limit):
            try:
                async with limit:
                    return await asked.here(deadline_s)
            except TimeoutError as error:
                raise explain(error, self._node, timeout_s, limit, self._loop.time() >= deadline_s) from error

    @contextmanager
    def _under_way(self, member: str, where: tuple[str, int], limit: asyncio.Timeout) -> Iterator[None]:
        """Note whom a repeatable request waits for: when the partition moves, it need not wait for a dead owner."""
        self._away.setdefault(where, {})[limit] = member
        try:
            yield
        finally:
            del self._away[where][limit]
            if not self._away[where]:
                del self._away[where]

    def _interrupt(self, group: str, partition: int, owner: str) -> None:
        for limit, member in self._away.get((group, partition), {}).items():
            if member != owner and not limit.expired():
                limit.reschedule(self._loop.time())

    def time_for(self, timeout_s: float | None) -> float:
        """Return how long a request may take. Raises BadArgument."""
        if timeout_s is None:
            return self._timeout_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _LONGEST_S:
            raise BadArgument("timeout_s", timeout_s, "a request has a time above 0")
        return timeout_s

    def partitions(self, group: str) -> int:
        """Return how many partitions a group has. Raises BadArgument for one that no node serves."""
        spec = self._table.view.groups.get(group)
        if spec is None:
            known = ", ".join(sorted(map(repr, self._table.view.groups))) or "none"
            step = "start a node that serves it, or wait for one with `node.online(…)`"
            raise BadArgument("group", group, f"the groups of the cluster are {known}; {step}")
        return spec.partitions


def _check_bytes(name: str, value: object) -> None:
    if type(value) is not bytes:
        raise BadArgument(name, value, "it must be bytes")
