"""Input streams of an application: a function for each record of any topic, which calls keyspaces.

Its offsets are those of a group, committed when the function has returned: at least once. Its asks carry ids made from
the record's place, so keyspaces do them once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Literal

from headrace.errors import BadArgument, HeadraceError, OffsetOutOfRange, Unavailable
from headrace.keyspace.client import KeyspaceClient
from headrace.keyspace.declaration import Keyspace
from headrace.log import Log, Member
from headrace.model import Record, TopicPartition
from headrace.observe import counter, get_logger
from headrace.runtime import Backoff
from headrace.serde import Registry
from headrace.state import ValueCodec, codec_of

__all__ = ["InputStream", "StreamContext"]

STREAMED = counter(
    "keyspace", "stream_records", "Records of input streams, by what became of them.", ["topic", "outcome"]
)

_BACKOFF = Backoff(first_s=0.1, limit_s=10.0)
_ATTEMPTS = 3
# How long a poll waits while nothing is being handled, and while something is.
_IDLE_S = 1.0
_LOOK_EVERY_S = 0.05

_logger = get_logger(__name__)


class StreamContext:
    """One record's way to keyspaces. Other streams of the topic may ask the same keys: ids have the group in them."""

    def __init__(self, at: str, client_of: Callable[[type[Keyspace]], KeyspaceClient], group: str) -> None:
        self.record_id = at
        self._stream = hashlib.blake2b(group.encode(), digest_size=8).hexdigest()
        self._client_of = client_of
        self._asks = 0

    async def ask(self, keyspace: type[Keyspace], message: object, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401
        """Ask a keyspace; if the record is handled again, the message is not."""
        self._asks += 1
        return await self._client_of(keyspace).ask(
            message, message_id=f"{self._stream}/{self.record_id}/{self._asks}", timeout_s=timeout_s
        )


Function = Callable[[Any, StreamContext], Awaitable[None]]


class InputStream:
    """A topic, and what is done with each of its records, in the order of their partition.

    `value` is the class of the values; without it the function gets the record. While it fails, its partition waits and
    it is tried again; with `on_error="skip"` it is passed over after three attempts. All nodes share the work.
    """

    def __init__(
        self,
        topic: str,
        function: Function,
        *,
        group: str | None = None,
        value: Any = None,  # noqa: ANN401
        start: Literal["earliest", "latest"] = "earliest",
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        if not asyncio.iscoroutinefunction(function):
            raise BadArgument("function", function, "it must be an async function of a record or value and a context")
        self.topic = topic
        self.group = group or f"{topic}-{function.__name__}"
        self._function = function
        self._value = value
        self._start: Literal["earliest", "latest"] = start
        self._on_error = on_error
        self._codec: ValueCodec[Any] | None = None
        self._rounds = 0

    async def run(
        self, log: Log, registry: Registry | None, client_of: Callable[[type[Keyspace]], KeyspaceClient]
    ) -> None:
        """Handle records until cancelled."""
        failures = 0
        while True:
            before = self._rounds
            try:
                topic_id = (await log.admin.describe(self.topic)).topic_id
                if self._value is not None and self._codec is None:
                    self._codec = await codec_of(self._value, self.topic, registry)
                member = await log.groups.join(self.group, [self.topic], start_at=self._start)
                try:
                    await self._read_on(member, topic_id, client_of)
                except OffsetOutOfRange as error:
                    if not await self._go_past_removed(log, member, str(error)):
                        raise
                finally:
                    await member.leave()
            except HeadraceError as error:
                failures = failures + 1 if self._rounds == before else 1
                delay_s = _BACKOFF.delay_s(failures)
                _logger.warning("a stream stops for a while", topic=self.topic, error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    async def _go_past_removed(self, log: Log, member: Member, reason: str) -> bool:
        """Go on where the log begins now in each partition whose next records it has removed; False if there is none.

        Otherwise the log ends before a committed offset: it has lost records, and new ones would be taken for those.
        """
        moved = {}
        for at, offset in (await log.groups.committed(self.group, sorted(member.assignment))).items():
            start = (await log.bounds(at)).start
            if offset < start:
                moved[at] = start
                STREAMED.labels(self.topic, "lost").inc(start - offset)
        if moved:
            _logger.error("records were removed before they were read", topic=self.topic, error=reason)
            await member.commit(moved)
        return bool(moved)

    async def _read_on(
        self, member: Member, topic_id: str, client_of: Callable[[type[Keyspace]], KeyspaceClient]
    ) -> None:
        """Poll without end. Each partition has a task of its own, and is paused while that handles its records.

        So the member takes part in its group all the time, or it would lose its partitions, and whatever a poll brings
        is handled: a poll moves the member's position, and what it brought does not come again.
        """
        handling: dict[TopicPartition, asyncio.Task[None]] = {}
        try:
            while True:
                if handling:
                    await asyncio.wait(handling.values(), timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                    await _resume_handled(member, handling)
                by_partition = _by_partition(await member.poll(timeout_s=_LOOK_EVERY_S if handling else _IDLE_S))
                self._rounds += 1
                await member.pause(by_partition, paused=True)
                for at, records in by_partition.items():
                    handle = partial(self._handle, member, at, records, topic_id, client_of)
                    handling[at] = asyncio.create_task(_after(handling.get(at), handle))
        finally:
            for task in handling.values():
                task.cancel()
            await asyncio.gather(*handling.values(), return_exceptions=True)

    async def _handle(
        self,
        member: Member,
        at: TopicPartition,
        records: list[Record],
        topic_id: str,
        client_of: Callable[[type[Keyspace]], KeyspaceClient],
    ) -> None:
        for record in records:
            for attempt in range(1, 1 << 30):
                context = StreamContext(f"{topic_id}/{record.partition}/{record.offset}", client_of, self.group)
                try:
                    await self._function(await self._decoded(record), context)
                    STREAMED.labels(self.topic, "handled").inc()
                    break
                except Exception as error:  # whatever the application raises must not lose the record
                    _logger.warning("a record was not handled", at=str(at), offset=record.offset, error=repr(error))
                    is_passed = self._on_error == "skip" and attempt >= _ATTEMPTS
                    if is_passed and not isinstance(error, Unavailable):
                        STREAMED.labels(self.topic, "skipped").inc()
                        break
                    STREAMED.labels(self.topic, "failed").inc()
                await asyncio.sleep(_BACKOFF.delay_s(attempt))
                if at not in member.assignment:
                    return  # another member goes on from the last commit
            await member.commit({at: record.offset + 1})

    async def _decoded(self, record: Record) -> Any:  # noqa: ANN401
        if self._codec is None:
            return record
        if record.value is None:
            return None
        await self._codec.prepare(record.value)
        return self._codec.decode(record.value)


def _by_partition(records: Iterable[Record]) -> dict[TopicPartition, list[Record]]:
    found: dict[TopicPartition, list[Record]] = {}
    for record in records:
        found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return found


async def _after(earlier: asyncio.Task[None] | None, handle: Callable[[], Awaitable[None]]) -> None:
    """Handle records after those that are under way: their partition was given back and taken again meanwhile."""
    if earlier is not None:
        await earlier
    await handle()


async def _resume_handled(member: Member, handling: dict[TopicPartition, asyncio.Task[None]]) -> None:
    """Fetch the partitions again whose records are handled. Raises what one of them has failed with."""
    for at in [at for at, task in handling.items() if task.done()]:
        handling.pop(at).result()
        if at in member.assignment:
            await member.pause([at], paused=False)
