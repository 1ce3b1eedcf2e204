"""Push: every change of a state is handed to a hook that tells an outside service, such as FCM or APNs.

Changes of a key are pushed in their order; partitions go side by side. A change whose push fails is tried again, and
then set aside as a dead letter, so that one device that is gone does not stop the others. The places of a hook's
partitions and its dead letters are in a compacted topic of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.errors import BadArgument, NotReadable, OperationFailed, PushRefused
from headrace.keyspace.client import KeyspaceClient
from headrace.keyspace.collections import CollectionEvent
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.observe import counter, get_logger
from headrace.runtime import Backoff
from headrace.state import StateChange

__all__ = ["PushHook", "PushLetter", "PushRunner", "PushStorage", "PushedChange"]

PUSHED = counter("keyspace", "pushed", "Changes that a push hook was given, by outcome.", ("hook", "outcome"))

_MOST_WAITING = 100
_SAVE_EVERY = 100
_PLACE, _LETTER = "place/", "letter/"
_logger = get_logger(__name__)


class PushLetter(msgspec.Struct, frozen=True):
    """A change that could not be pushed. `key` is the key as JSON; `id` is what the hook got as the change's id."""

    id: str
    partition: int
    key: msgspec.Raw
    error: str
    attempts: int
    time_ms: int


class PushStorage:
    """The topic. One process writes it at a time; if two do, changes are pushed again, and none is lost."""

    def __init__(self, log: Log, topic: str) -> None:
        self.topic = topic
        self._log = log
        self.places: dict[int, str] = {}
        self.letters: dict[str, PushLetter] = {}

    async def load(self) -> None:
        """Make the topic, and read where the hook stands; until that is known, what was known before is."""
        config = TopicConfig(cleanup=Cleanup.COMPACT)
        await ensure_topic(self._log.admin, self.topic, partitions=1, config=config)
        at = TopicPartition(self.topic, 0)
        bounds = await self._log.bounds(at)
        places: dict[int, str] = {}
        letters: dict[str, PushLetter] = {}
        async for batch in self._log.read(at, bounds.start, bounds.end):
            for record in batch.records:
                self._apply(record, places, letters)
        self.places, self.letters = places, letters

    async def save(self, partition: int, place: str) -> None:
        """Store the place of a partition: all before it is done."""
        await self._write(f"{_PLACE}{partition}", place)
        self.places[partition] = place

    async def bury(self, letter: PushLetter) -> None:
        """Store a dead letter."""
        await self._write(f"{_LETTER}{letter.id}", letter)
        self.letters[letter.id] = letter

    async def remove(self, letter: PushLetter) -> None:
        """Remove a dead letter."""
        await self._log.append([NewRecord(self.topic, f"{_LETTER}{letter.id}".encode(), None, partition=0)])
        self.letters.pop(letter.id, None)

    async def _write(self, key: str, content: Any) -> None:  # noqa: ANN401
        await self._log.append([NewRecord(self.topic, key.encode(), msgspec.json.encode(content), partition=0)])

    def _apply(self, record: Record, places: dict[int, str], letters: dict[str, PushLetter]) -> None:
        key = (record.key or b"").decode()
        try:
            if key.startswith(_PLACE) and record.value is not None:
                places[int(key.removeprefix(_PLACE))] = msgspec.json.decode(record.value, type=str)
            elif key.startswith(_LETTER):
                letters.pop(key.removeprefix(_LETTER), None)
                if record.value is not None:
                    letter = msgspec.json.decode(record.value, type=PushLetter)
                    letters[letter.id] = letter
        except (ValueError, msgspec.MsgspecError) as error:
            raise NotReadable(f"the push topic {self.topic!r}", key[:60], str(error)) from error


class PushedChange(NamedTuple):
    """A change of a key, as a hook gets it.

    `id` is the same whenever the change is pushed again, so a service can drop repeats. `is_present` marks the value as
    it stands, pushed because changes before it may be missing, or from a dead letter.
    """

    id: str
    key: Any
    value: Any
    delta: Any = None
    is_present: bool = False
    is_expiry: bool = False


class PushHook(Protocol):
    """Tells an outside service of a change.

    Promised to it: every change is pushed at least once, those of a key in their order, one at a time for a partition.
    Not promised: that a change is pushed only once; see `PushedChange.id`.
    """

    async def push(self, change: PushedChange) -> None:
        """Push a change. Raises PushRefused if it never can be, anything else to have it tried again."""
        ...


class PushRunner:
    """Feeds a hook from a state. Only one process runs a hook at a time; two would push every change twice.

    `name` names the hook: its place and its dead letters are in the topic `push.NAME`. On its first start it begins
    with changes from then on.
    """

    def __init__(
        self,
        log: Log,
        client: KeyspaceClient,
        state: str,
        hook: PushHook,
        *,
        name: str,
        attempts: int = 5,
        timeout_s: float = 30.0,
        backoff: Backoff | None = None,
    ) -> None:
        if attempts < 1:
            raise BadArgument("attempts", attempts, "a change is pushed at least once")
        self.name = name
        self._client = client
        self._state = state
        self._hook = hook
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._backoff = backoff or Backoff(first_s=0.5, limit_s=30.0)
        self._storage = PushStorage(log, f"push.{name}")
        self._lanes: dict[int, _Lane] = {}
        self.ready = asyncio.Event()
        """Set when every partition has a place: from then on no change is missed."""

    async def run(self) -> None:
        """Push changes until cancelled. Raises what ends a subscription, and Unavailable if the log stays away."""
        await self._storage.load()
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        feeding = asyncio.create_task(self._feed(failed), name=f"headrace-push-{self.name}")
        try:
            await asyncio.wait({feeding, failed}, return_when=asyncio.FIRST_COMPLETED)
            for each in (feeding, failed):
                if each.done():
                    each.result()
        finally:
            feeding.cancel()
            failed.cancel()
            await asyncio.gather(feeding, failed, return_exceptions=True)
            await self._end_lanes()

    async def letters(self) -> list[PushLetter]:
        """Return the dead letters, oldest first."""
        await self._storage.load()
        return sorted(self._storage.letters.values(), key=lambda each: each.time_ms)

    async def replay(self, letter: PushLetter) -> bool:
        """Push the present value of a dead letter's key; if that works, remove the letter and return True."""
        key = self._client.key_from_json(self._state, bytes(letter.key))
        change = PushedChange(letter.id, key, await self._client.get(self._state, key), is_present=True)
        if await self._push(letter.partition, change, attempts=1) is not None:
            return False
        await self._storage.remove(letter)
        return True

    async def discard(self, letter: PushLetter) -> None:
        """Remove a dead letter."""
        await self._storage.remove(letter)

    async def _feed(self, failed: asyncio.Future[None]) -> None:
        """Hand the events of each partition to its lane. When a lane is full, the other partitions wait, too."""
        is_first, fresh = not self._storage.places, set[int]()
        found = self._client.collection(self._state, after=dict(self._storage.places))
        async with contextlib.aclosing(found) as events:  # type: ignore[type-var]
            async for event in events:
                if event.kind == "begin":
                    # A second beginning is a resize: what changed meanwhile is only known from the values, and what
                    # waits is pushed before, because a value that was deleted is not among them.
                    is_first, fresh = False, set(event.partitions) if is_first else set()
                    for lane in self._lanes.values():
                        await lane.finish()
                    await self._end_lanes()
                    self._lanes = {each: _Lane(self, each, failed) for each in event.partitions}
                    self._look_ready()
                    continue
                lane = self._lanes[event.partition]
                # What is there before the first start is not pushed; a later snapshot stands for changes.
                for change in () if event.kind == "pairs" and event.partition in fresh else _changes_of(event):
                    await lane.put(change)
                if event.kind == "ready":
                    fresh.discard(event.partition)
                if event.token:
                    await lane.put(event.token)

    def _look_ready(self) -> None:
        if self._lanes and all(each in self._storage.places for each in self._lanes):
            self.ready.set()

    async def _end_lanes(self) -> None:
        for lane in self._lanes.values():
            await lane.close()
        self._lanes = {}

    async def deliver(self, partition: int, change: PushedChange) -> None:
        """Push a change, again after failures; then set it aside."""
        letter = await self._push(partition, change, attempts=self._attempts)
        if letter is not None:
            _logger.error("a change was not pushed", hook=self.name, id=change.id, error=letter.error)
            await self._storage.bury(letter)
            PUSHED.labels(self.name, "dead").inc()

    async def save(self, partition: int, place: str) -> None:
        """Store that all changes of a partition up to a place are done."""
        await self._storage.save(partition, place)
        self._look_ready()

    async def _push(self, partition: int, change: PushedChange, *, attempts: int) -> PushLetter | None:
        """Push a change; return the dead letter that it becomes if no attempt worked."""
        for attempt in range(1, attempts + 1):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await _pushed(self._hook, change)
            except Exception as error:  # whatever a hook raises is about this change
                PUSHED.labels(self.name, "failed").inc()
                _logger.warning("push failed", hook=self.name, id=change.id, attempt=attempt, error=repr(error))
                if attempt == attempts or isinstance(error, PushRefused):
                    key = msgspec.Raw(msgspec.json.encode(change.key))
                    return PushLetter(change.id, partition, key, repr(error), attempt, time.time_ns() // 1_000_000)
                await asyncio.sleep(self._backoff.delay_s(attempt))
            else:
                PUSHED.labels(self.name, "pushed").inc()
                return None
        return None


async def _pushed(hook: PushHook, change: PushedChange) -> None:
    """Push a change. Raises OperationFailed if something that the hook waited for was cancelled, and not the hook."""
    try:
        await hook.push(change)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise OperationFailed("a push", "what the hook waited for was cancelled") from error


class _Lane:
    """The changes of one partition, pushed one after another; a place is stored when all before it is done."""

    def __init__(self, runner: PushRunner, partition: int, failed: asyncio.Future[None]) -> None:
        self._runner = runner
        self._partition = partition
        self._failed = failed
        self._waiting: asyncio.Queue[PushedChange | str] = asyncio.Queue(_MOST_WAITING)
        self._task = asyncio.create_task(self._work(), name=f"headrace-push-{runner.name}-{partition}")
        self._task.add_done_callback(self._ended)

    async def put(self, item: PushedChange | str) -> None:
        """Add a change, or the place that is reached with the changes before it; waits while the lane is full."""
        await self._waiting.put(item)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let what ended the lane end the whole run: a lane that stands still is not seen otherwise."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def finish(self) -> None:
        """Return when all that waits was pushed, or set aside."""
        await self._waiting.join()

    async def close(self) -> None:
        """End the lane; what was not stored as done is pushed again by the next run."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        unsaved = 0
        while True:
            item = await self._waiting.get()
            if isinstance(item, PushedChange):
                await self._runner.deliver(self._partition, item)
            else:
                unsaved += 1
                if self._waiting.empty() or unsaved >= _SAVE_EVERY:
                    await self._runner.save(self._partition, item)
                    unsaved = 0
            self._waiting.task_done()


def _changes_of(event: CollectionEvent) -> list[PushedChange]:
    """Return what is pushed of an event: a change, or the values of a snapshot after a gap."""
    if event.change is not None:
        change: StateChange[Any, Any] = event.change
        return [PushedChange(change.token, change.key, change.value, change.delta, is_expiry=change.is_expiry)]
    return [PushedChange(_present_id(key), key, value, is_present=True) for key, value in event.pairs]


def _present_id(key: Any) -> str:  # noqa: ANN401
    return f"present:{msgspec.json.encode(key).decode()}"
