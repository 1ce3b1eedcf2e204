"""The relay's loop: what happens to a lane, from the look that finds its messages to the end of its lease.

One task looks for lanes with messages (`find_lanes`); each worker takes one lane after the other (`work`). The rest of
the module follows a worker's turn with a lane from top to bottom.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from headrace.config import OutboxSettings
from headrace.errors import Fenced, Misconfigured, Unavailable
from headrace.observe import get_logger
from headrace.outbox.leases import LaneLease, LaneLeases, LaneQueue, Lanes, LeaseLost, free_lanes, soonest_s
from headrace.outbox.log_lines import MessageLog, warn_without_logging
from headrace.outbox.messages import Lane, PendingMessage
from headrace.outbox.metrics import DEAD, LEASES_LOST, PROCESSED, SEND_ERRORS, SUPERSEDED
from headrace.outbox.ports import PoisonPolicy
from headrace.outbox.rows import MessageRows, RowBatch
from headrace.outbox.send import Sender, Sent, compact, keep_all
from headrace.runtime import Backoff, crash_point

__all__ = ["RelayLoop"]

_logger = get_logger(__name__)

# After something happened more is likely to follow: the first looks come quickly, then ever more slowly.
_FIRST_LOOK_S = 0.005
# A lane whose messages are all held back is looked at again after this.
_BLOCKED_PAUSE_MS = 1000
# About what it takes to hand a full batch to a producer.
_PRODUCING_S = 0.003
# How long a turn that is over waits for a database that may be frozen.
_LAST_WAIT_S = 1.0


class _TurnEnd(NamedTuple):
    """How the batches of a turn ended: more messages may wait, or all that wait are blocked by dead ones."""

    has_more: bool
    is_blocked: bool = False


class RelayLoop:
    """The work of one relay, for one task that finds lanes and any number of workers.

    Promises: an idle table is looked at once per `poll_interval_s`, however many workers there are; lanes get fair
    turns of at most `turn_batches` batches; only what was acknowledged is deleted, and only under a lease that is ours.
    `stop` lets each worker finish the batch in hand, and end.
    """

    def __init__(
        self,
        lanes: Lanes,
        leases: LaneLeases,
        rows: MessageRows,
        sender: Sender,
        message_log: MessageLog,
        settings: OutboxSettings,
    ) -> None:
        self.leases = leases
        self.rows = rows
        self.sender = sender
        self._lanes = lanes
        self._message_log = message_log
        self._settings = settings
        self._backoff = Backoff(settings.first_retry_s, 2.0, max(settings.first_retry_s, settings.max_retry_s))
        self._queue = LaneQueue()
        self._was_woken = asyncio.Event()
        self._is_stopping = False
        # What is in the log but perhaps still in the table, because its delete is under way or has failed.
        self._unsettled: dict[Lane, list[Sent]] = {}

    def wake(self) -> None:
        """Look for messages now: something was committed. On the event loop only."""
        self._was_woken.set()

    async def stop(self) -> None:
        """Have each worker end after the batch in hand."""
        self._is_stopping = True
        await self._queue.close()

    async def find_lanes(self) -> None:
        """Look for lanes with messages, queue those that are free, and wait; without an end."""
        delay_s = _FIRST_LOOK_S
        while True:
            self._was_woken.clear()
            waiting = await self._lanes.waiting()
            has_found = await self._queue.add(free_lanes(waiting, self.leases.times, self.leases.owners))
            delay_s = _FIRST_LOOK_S if has_found else min(delay_s * 2, self._settings.poll_interval_s)
            if await self._wait_to_be_woken(soonest_s(waiting, delay_s)):
                delay_s = _FIRST_LOOK_S

    async def _wait_to_be_woken(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._was_woken.wait()
        except TimeoutError:
            return False

    async def work(self, owner: str) -> None:
        """Take one lane after the other and send its messages, until the relay stops. Raises what the database raises.

        `owner` is the worker's uuid.
        """
        while (lane := await self._queue.take()) is not None:
            has_more = False
            try:
                has_more = await self._take_turn(lane, owner)
            finally:
                if not await self._queue.give_back(lane, has_more=has_more):
                    self.wake()

    async def _take_turn(self, lane: Lane, owner: str) -> bool:
        """Take the lane's lease, work under it, and give it back, however the work ends; returns True if more waits."""
        lease = await self.leases.acquire(lane, owner)
        if lease is None:
            return False
        try:
            return await self._work_while_renewed(lease)
        except LeaseLost:
            LEASES_LOST.labels(lane.topic).inc()
            _logger.warning("lease lost, its new holder goes on", topic=lane.topic, bucket=lane.bucket)
            return False
        except asyncio.CancelledError:
            await self._abandon(lease)
            raise
        except SQLAlchemyError:
            raise  # the lease can't be given back without the database; the worker starts again
        except Exception as error:
            await self._hold_back(lease, error)
            return False

    async def _work_while_renewed(self, lease: LaneLease) -> bool:
        """Work while another task renews the lease; when that finds it lost, the work stops where it stands."""
        work = asyncio.create_task(self._work_under(lease))
        renewal = asyncio.create_task(self._renew(lease))
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            if renewal.done() and not work.done():
                renewal.result()
            return await work
        finally:
            await _end(work, renewal)

    async def _renew(self, lease: LaneLease) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            try:
                await self.leases.renew(lease)
            except SQLAlchemyError as error:
                _logger.warning("lease not renewed, will try again", topic=lease.lane.topic, error=str(error))

    async def _work_under(self, lease: LaneLease) -> bool:
        await self._settle_earlier(lease)
        end = await self._send_batches(lease)
        await self.leases.release(lease, pause_ms=_BLOCKED_PAUSE_MS if end.is_blocked else 0)
        return end.has_more

    async def _settle_earlier(self, lease: LaneLease) -> None:
        """Delete what an earlier owner, or an earlier turn, got into the log: to send it again would be a duplicate."""
        recovered = await self.sender.recover(lease)
        if not recovered.is_empty:
            self._remember(lease.lane, recovered)
        for sent in list(self._unsettled.get(lease.lane, ())):
            await self._settle(lease, sent)

    async def _send_batches(self, lease: LaneLease) -> _TurnEnd:
        """Send batch after batch while they are full, `turn_batches` at most.

        Beside the sending of a batch the next one is read and the last one is deleted.
        """
        settings, lane = self._settings, lease.lane
        policy = settings.poison_policy_of(lane.topic)
        batch = await self.rows.read(lane, policy)
        if not batch.rows:
            return _TurnEnd(has_more=False, is_blocked=policy != "skip")
        reading: asyncio.Task[RowBatch] | None = None
        deleting: asyncio.Task[None] | None = None
        being_deleted: list[int] = []
        try:
            for batches_left in reversed(range(settings.turn_batches)):
                ids = [row.id for row in batch.rows]
                if batch.is_full and batches_left:
                    reading = asyncio.create_task(self._read_ahead(lane, policy, in_hand=[*being_deleted, *ids]))

                sent = await self._send(lease, batch.rows, policy)
                if deleting is not None:
                    await deleting
                deleting = asyncio.create_task(self._settle(lease, sent))
                if settings.delivery == "exactly_once":
                    await deleting  # the notes in the log have the last batch only

                is_whole = len(sent.ids) == len(ids)
                if reading is None or not is_whole or self._is_stopping:
                    return _TurnEnd(has_more=batch.is_full or not is_whole)
                batch, reading, being_deleted = await reading, None, ids
                if not batch.rows:
                    break
            return _TurnEnd(has_more=False)
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            if deleting is not None:
                await deleting

    async def _read_ahead(self, lane: Lane, policy: PoisonPolicy, *, in_hand: Sequence[int]) -> RowBatch:
        """Read the next batch, once the batch in hand is with the log's producer.

        Until then both would compete for the interpreter; afterwards the sending waits for the network anyway.
        """
        await asyncio.sleep(_PRODUCING_S)
        return await self.rows.read(lane, policy, in_hand=in_hand)

    async def _send(self, lease: LaneLease, rows: Sequence[PendingMessage], policy: PoisonPolicy) -> Sent:
        """Send one batch and remember what the log acknowledged, so that it is deleted even if this turn fails."""
        topic = lease.lane.topic
        if time.monotonic() - lease.confirmed_s > self._settings.lease_s * 2 / 3:
            await self.leases.renew(lease)  # this process stood still, perhaps for longer than the lease
        batch = compact(rows) if topic in self._settings.compact_topics else keep_all(rows)
        try:
            sent = await self.sender.send(lease, batch, policy)
        except Exception as error:
            self._message_log.failed(topic, batch.kept, error)
            raise
        crash_point("outbox.after-send")
        self._remember(lease.lane, sent)  # before anything can fail: it is in the log
        self._message_log.sent(topic, batch.kept)
        SUPERSEDED.labels(topic).inc(len(sent.superseded))
        return sent

    def _remember(self, lane: Lane, sent: Sent) -> None:
        self._unsettled.setdefault(lane, []).append(sent)

    async def _settle(self, lease: LaneLease, sent: Sent) -> None:
        """Delete exactly what was acknowledged and bury what was refused. Raises LeaseLost."""
        lane = lease.lane
        gone = await self.rows.settle(lease, sent)
        self._unsettled[lane].remove(sent)
        PROCESSED.labels(lane.topic).inc(max(0, gone - len(sent.refused)))
        for id_, reason in sent.refused.items():
            DEAD.labels(lane.topic).inc()
            _logger.error("message is dead", topic=lane.topic, id=id_, reason=reason)

    async def _abandon(self, lease: LaneLease) -> None:
        """Give the lease back as it was found, unless the database does not answer."""
        try:
            await asyncio.wait_for(asyncio.shield(self.leases.abandon(lease)), _LAST_WAIT_S)
        except (TimeoutError, SQLAlchemyError) as error:
            lane = lease.lane
            _logger.warning("lease is left to run out", topic=lane.topic, bucket=lane.bucket, error=repr(error))

    async def _hold_back(self, lease: LaneLease, error: Exception) -> None:
        """Give the lease back with the error: the lane is taken again after a delay that doubles with each failure."""
        lane, reason = lease.lane, f"{type(error).__name__}: {error}"
        (LEASES_LOST if isinstance(error, Fenced) else SEND_ERRORS).labels(lane.topic).inc()
        delay_s = self._backoff.delay_s(lease.retries + 1)
        _logger.warning("sending failed", topic=lane.topic, bucket=lane.bucket, error=reason, retry_in_s=delay_s)
        if isinstance(error, Unavailable | Misconfigured):
            warn_without_logging(f"sending to {lane.topic} failed: {reason}")
        await self.leases.hold(lease, reason, delay_s=delay_s)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait for their end, but not for a database that does not answer."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen here, or raised to the waiter
    await asyncio.wait(tasks, timeout=_LAST_WAIT_S)
